"""What an agent in a process of its own is given: directory, environment, and the assignment as JSON."""

import base64
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rota.executors.sandbox import Sandbox
from rota.model.approval import as_json as answer_as_json
from rota.model.executor import Assignment

# Nothing else of the worker's environment reaches an agent: it holds the way to the database.
ALLOWED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")


def prepare_directory(assignment: Assignment, sandbox: Sandbox) -> None:
    assignment.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    sandbox.prepare(assignment.directory)


def environment(assignment: Assignment, env: Mapping[str, str], allowed: Sequence[str] = ALLOWED) -> dict[str, str]:
    """The later wins: what the machine has, what the agent's configuration says, what this attempt is."""
    return {
        **of_machine(allowed),
        "HOME": str(assignment.directory),
        **env,
        "ROTA_RUN_ID": str(assignment.run_id),
        "ROTA_SESSION_ID": str(assignment.session_id),
        "ROTA_ATTEMPT": str(assignment.attempt),
        "ROTA_IDEMPOTENCY_KEY": assignment.idempotency_key,
        **assignment.environment,
    }


def of_machine(allowed: Sequence[str]) -> dict[str, str]:
    return {**{name: os.environ[name] for name in allowed if name in os.environ}, "PATH": _path()}


def _path() -> str:
    """The machine's, and at its end where this Rota is: scripts call `rota desk`."""
    found = os.environ.get("PATH") or os.defpath
    ours = str(Path(sys.executable).parent)
    return found if ours in found.split(os.pathsep) else f"{found}{os.pathsep}{ours}"


def as_json(assignment: Assignment) -> dict[str, Any]:
    """All but the configuration and the environment, which may hold credentials."""
    return {
        "workspace_id": str(assignment.workspace_id),
        "run_id": str(assignment.run_id),
        "session_id": str(assignment.session_id),
        "attempt": assignment.attempt,
        "source": assignment.source,
        "slot": assignment.slot.isoformat() if assignment.slot else None,
        "missed": dict(assignment.missed) if assignment.missed else None,
        "payload": assignment.payload,
        "instructions": assignment.instructions,
        "prompt": assignment.prompt,
        "input": assignment.input,
        "transcript": [{"speaker": turn.speaker, "text": turn.text} for turn in assignment.transcript],
        "timeout_seconds": assignment.timeout.total_seconds(),
        "idempotency_key": assignment.idempotency_key,
        "directory": str(assignment.directory),
        "automation_id": str(assignment.automation_id) if assignment.automation_id else None,
        "checkpoint": base64.b64encode(assignment.checkpoint).decode() if assignment.checkpoint is not None else None,
        "answer": answer_as_json(assignment.answer) if assignment.answer else None,
    }
