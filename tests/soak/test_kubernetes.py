"""Agents as Jobs of a real cluster, the one that `KUBECONFIG` names: what its double promises must hold there too.

`ROTA_TEST_KUBERNETES_NAMESPACE` is where (else the context's namespace), and `ROTA_TEST_KUBERNETES_IMAGE` an image with
a shell that nodes can pull.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.executors.kubernetes import KubernetesExecutor
from rota.executors.kubernetes.cluster import JOBS, SECRETS, Cluster, Where
from rota.executors.kubernetes.manifest import name_of
from rota.model.executor import LostAttempt
from rota.model.ids import RunId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support.stand_ins import RecordingDesk, assignment, until

KUBECONFIG = os.environ.get("KUBECONFIG", "")
WHERE: dict[str, Any] = {"kubeconfig": KUBECONFIG, "namespace": os.environ.get("ROTA_TEST_KUBERNETES_NAMESPACE", "")}
IMAGE = os.environ.get("ROTA_TEST_KUBERNETES_IMAGE", "busybox:1.37")
TO_START = 180.0

pytestmark = pytest.mark.skipif(not KUBECONFIG, reason="KUBECONFIG names no cluster")


def begin(script: str, run_id: RunId, desk: RecordingDesk, **changes: Any) -> "asyncio.Task[Outcome]":
    config: Mapping[str, Any] = {"image": IMAGE, "command": ["sh", "-c", script], "start_timeout": TO_START}
    given = assignment({**config, **changes.pop("config", {})}, Path("/unused"), run_id=run_id, **changes)
    return asyncio.create_task(KubernetesExecutor(**WHERE).execute(given, desk))


async def left(run_id: RunId) -> list[str]:
    async with Cluster.reached(Where(**WHERE)) as cluster:
        return [kind for kind in (JOBS, SECRETS) if await cluster.find(kind, name_of(run_id)) is not None]


async def remove(run_id: RunId) -> None:
    given = assignment({}, Path("/unused"))
    lost = LostAttempt("kubernetes", given.workspace_id, run_id, given.session_id, 99, {}, ended=True)
    await KubernetesExecutor(**WHERE).abandon(lost)


async def test_a_pod_is_told_its_prompt_heard_to_its_end_and_leaves_no_secret() -> None:
    run_id, desk = RunId(new_id()), RecordingDesk()
    script = (
        'cat "$ROTA_PROMPT_FILE"; echo; cat "$ROTA_TOKEN_FILE"; echo; touch "$HOME/x" /tmp/x && echo written; id -u'
    )
    outcome = await begin(script, run_id, desk, prompt="Hello", environment={"ROTA_TOKEN": "t0ken"})
    assert outcome == Succeeded()
    assert desk.text.splitlines()[:3] == ["Hello", "t0ken", "written"]
    assert SECRETS not in await left(run_id)
    await remove(run_id)


async def test_a_failure_has_its_exit_code_and_its_last_words() -> None:
    run_id, desk = RunId(new_id()), RecordingDesk()
    outcome = await begin("echo no ink >&2; exit 3", run_id, desk)
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "exited with code 3: no ink")
    await remove(run_id)


async def test_nothing_is_left_of_a_cancelled_pod_within_seconds() -> None:
    run_id, desk = RunId(new_id()), RecordingDesk()
    attempt = begin("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done", run_id, desk)
    await until(lambda: "up" in desk.text, "the pod is up", TO_START)
    before = time.monotonic()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert await left(run_id) == []
    assert time.monotonic() - before < 20, "Kubernetes kills what did not end by itself after 30 seconds"


async def test_a_pod_is_adopted_and_its_token_is_rewritten() -> None:
    run_id, first, second = RunId(new_id()), RecordingDesk(), RecordingDesk()
    script = 'echo up; until grep -q second "$ROTA_TOKEN_FILE"; do sleep 0.2; done; echo token renewed'  # kubelets take a minute
    lost = begin(script, run_id, first, environment={"ROTA_TOKEN": "first"})
    await until(lambda: "up" in first.text, "the pod is up", TO_START)
    attempt = begin(script, run_id, second, attempt=2, environment={"ROTA_TOKEN": "second"})
    await until(lambda: second.events, "it is adopted")
    before = time.monotonic()
    assert await attempt == Succeeded()
    print(f"the token was renewed after {time.monotonic() - before:.1f} s")
    assert "token renewed" in second.text
    await asyncio.wait({lost}, timeout=30)
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    await remove(run_id)


async def test_an_image_that_does_not_exist_is_told_in_words() -> None:
    run_id, desk = RunId(new_id()), RecordingDesk()
    given = assignment({"image": f"{IMAGE.partition(':')[0]}:no-such-tag-of-it"}, Path("/unused"), run_id=run_id)
    outcome = await KubernetesExecutor(**WHERE, patience=timedelta(seconds=5)).execute(given, desk)
    assert isinstance(outcome, Failed)
    assert "cannot be pulled" in outcome.detail
    assert await left(run_id) == []


async def test_a_pod_that_cannot_be_created_is_told_in_words() -> None:
    run_id, desk = RunId(new_id()), RecordingDesk()
    given = assignment({"image": IMAGE, "service_account": "no-such-account"}, Path("/unused"), run_id=run_id)
    outcome = await KubernetesExecutor(**WHERE, patience=timedelta(seconds=5)).execute(given, desk)
    assert isinstance(outcome, Failed)
    assert "no-such-account" in outcome.detail
    assert not outcome.retryable
    assert await left(run_id) == []
