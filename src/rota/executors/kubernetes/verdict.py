"""The last verdict of the agent of a Job, kept for the attempt that adopts the Job and does not hear it again."""

import json
from dataclasses import replace

from rota.executors.events import Done, Error
from rota.model.outcome import ErrorClass

LONGEST = 10_000  # all annotations of an object have 256 KiB


def write_verdict(verdict: Done | Error | None, job_uid: str) -> str:
    match verdict:
        case None:
            return ""
        case Done(summary):
            return json.dumps({"job": job_uid, "summary": summary[:LONGEST] if summary else summary})
        case Error(detail, retryable, error_class):
            return json.dumps(
                {"job": job_uid, "detail": detail[:LONGEST], "retryable": retryable, "error_class": error_class}
            )


def read_verdict(text: str | None, job_uid: str) -> Done | Error | None:
    """None also for the verdict of a Job that was replaced."""
    found = json.loads(text) if text else {}
    if found.pop("job", None) != job_uid:
        return None
    if "summary" in found:
        return Done(found["summary"])
    return replace(Error(**found), error_class=ErrorClass(found["error_class"]))
