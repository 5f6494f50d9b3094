"""Agents as Jobs of a cluster: what the pod is given, who adopts it, how its troubles are told, and that nothing is left."""

import asyncio
import base64
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from rota.errors import Lost
from rota.executors.kubernetes import KubernetesExecutor, gateway, manifest, words
from rota.executors.kubernetes import attempt as attempt_of_a_job
from rota.executors.kubernetes import cluster as client_of_clusters
from rota.executors.kubernetes import node as node_of_a_pod
from rota.executors.kubernetes import starting as start_of_a_job
from rota.executors.kubernetes.attempt import Attempt
from rota.executors.kubernetes.cluster import JOBS, PODS
from rota.executors.kubernetes.cluster import Cluster as ClusterClient
from rota.executors.kubernetes.log import Stamped, Told, read_told
from rota.model.agent_config import read_kubernetes
from rota.model.executor import LostAttempt, Turn
from rota.model.ids import RunId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded, TimedOut
from support import clusters
from support.clusters import Cluster
from support.executor_kinds import Kubernetes
from support.stand_ins import RecordingDesk, assignment, is_alive, read_pids, until

PATIENCE = timedelta(seconds=0.05)
IMAGE = "agents/python:3"
# Says a word, waits until it may go on, and says another: as a line each, which is how a log is told.
TWO_WORDS = """
        open("pids.new", "w").write(str(os.getpid()))
        os.rename("pids.new", "pids")
        print("one", flush=True)
        open("go").read()
        print("two", flush=True)
"""

Run = Callable[..., "asyncio.Task[Outcome]"]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return clusters.shared()


@pytest.fixture
def executor(cluster: Cluster, grace: timedelta) -> KubernetesExecutor:
    return KubernetesExecutor(kubeconfig=cluster.kubeconfig, grace=grace, patience=PATIENCE)


@pytest.fixture
def run_id() -> RunId:
    return RunId(new_id())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "session"
    place.mkdir()
    os.mkfifo(place / "go")
    return place


@pytest.fixture
def behave(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    return lambda how, **config: dict(Kubernetes().behave(how, tmp_path / "code", **config))


@pytest.fixture
def run(executor: KubernetesExecutor, directory: Path, run_id: RunId, desk: RecordingDesk) -> Run:
    def started(config: Mapping[str, Any], **changes: Any) -> asyncio.Task[Outcome]:
        given = assignment(config, directory, **{"run_id": run_id, **changes})
        return asyncio.create_task(executor.execute(given, desk))

    return started


def open_gate(directory: Path) -> bool:
    """Let an agent go on that waits at the pipe, if it is there."""
    try:
        os.close(os.open(directory / "go", os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


async def let_go(directory: Path) -> None:
    await until(lambda: open_gate(directory), "the agent waits at the pipe")


def own_config(cluster: Cluster, directory: Path, **changes: str) -> Path:
    """The cluster's kubeconfig with other words in it."""
    text = Path(cluster.kubeconfig).read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (directory / "new").write_text(text)
    return (directory / "new").rename(directory / "config")


def kinds(cluster: Cluster, run_id: RunId) -> list[str]:
    return sorted(each["kind"] for each in cluster.objects(run_id))


def job(cluster: Cluster, run_id: RunId) -> dict[str, Any]:
    [found] = cluster.objects(run_id, "Job")
    return found


# ── What the cluster is asked for ────────────────────────────────────────────────────────────────────────────────────


async def test_a_pod_is_as_safe_as_it_can_be_unless_told_otherwise(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any
) -> None:
    attempt = run(behave(TWO_WORDS), timeout=timedelta(minutes=30), attempt=3)
    await until(lambda: read_pids(directory), "the agent works")
    found = job(cluster, run_id)
    assert found["spec"]["ttlSecondsAfterFinished"] == 3600  # a worker that comes late still hears how it ended
    await let_go(directory)
    await attempt
    assert job(cluster, run_id)["spec"]["ttlSecondsAfterFinished"] == 600
    assert found["metadata"]["name"] == f"rota-{run_id}"
    assert found["metadata"]["labels"]["rota/attempt"] == "3"
    assert found["spec"]["backoffLimit"] == 0
    assert found["spec"]["activeDeadlineSeconds"] == 30 * 60 + 120
    pod = found["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "privileged": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"}
    assert all("value" not in each for each in container["env"])  # each stands in the Secret


async def test_what_the_configuration_wishes_reaches_the_pod(run_id: RunId, tmp_path: Path) -> None:
    wishes = {
        "image": "r.example/a@sha256:" + "0" * 64,
        "image_pull_policy": "Always",
        "image_pull_secrets": ["registry"],
        "args": ["--fast"],
        "resources": {"requests": {"memory": "2Gi"}, "limits": {"nvidia.com/gpu": 1, "cpu": "100m"}},
        "run_as_user": 1000,
        "read_only_root": False,
        "service_account": "reporter",
        "service_account_token": True,
        "node_selector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "seconds": 30}],
        "priority_class": "low",
        "runtime_class": "gvisor",
        "labels": {"team": "a"},
        "annotations": {"example.com/note": "a b"},
    }
    given = assignment(wishes, tmp_path, run_id=run_id)
    made = manifest.job(given, read_kubernetes(wishes), grace=timedelta(seconds=2.5))
    from support.cluster_double import check

    check(made)
    assert made["metadata"]["labels"]["team"] == "a"
    pod = made["spec"]["template"]["spec"]
    assert made["spec"]["template"]["metadata"]["annotations"]["example.com/note"] == "a b"
    assert pod["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
    ]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("reporter", True)
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"disk": "ssd"}, [{"name": "registry"}])
    assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("low", "gvisor")
    assert pod["terminationGracePeriodSeconds"] == 3
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000
    [container] = pod["containers"]
    assert (container["args"], container["imagePullPolicy"]) == (["--fast"], "Always")
    assert "command" not in container
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    # A default neither exceeds a limit that was given nor falls short of a request.
    assert container["resources"]["requests"]["cpu"] == container["resources"]["limits"]["cpu"] == "100m"
    assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"] == "2Gi"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


SHOWS = """
    print(json.dumps({"env": dict(os.environ), **{
        name: open(os.environ[f"ROTA_{name.upper()}_FILE"]).read() for name in ("token", "prompt", "assignment")
    }}))
"""


async def test_a_pod_is_told_everything_in_files_and_variables_and_nothing_of_the_worker(
    cluster: Cluster, run: Run, run_id: RunId, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "sings")
    environment = {"API_KEY": "s3cret", "ROTA_TOKEN": "t0ken", "ROTA_URL": "http://rota.example", "TRACEPARENT": "00-1"}
    config = behave(SHOWS.strip(), env={"COLOUR": "blue"})
    assert await run(config, environment=environment, prompt="Zwölf Reime", input={"n": 12}) == Succeeded()
    seen = json.loads(desk.text)
    assert (seen["token"], seen["prompt"]) == ("t0ken", "Zwölf Reime")
    told = json.loads(seen["assignment"])
    assert (told["run_id"], told["input"], told["directory"]) == (str(run_id), {"n": 12}, "/rota/home")
    env = seen["env"]
    assert {env["COLOUR"], env["API_KEY"], env["ROTA_URL"], env["TRACEPARENT"]} == {
        *("blue", "s3cret", "http://rota.example", "00-1")
    }
    assert (env["ROTA_IDEMPOTENCY_KEY"], env["ROTA_ATTEMPT"]) == ("key-1", "1")
    assert {"CANARY", "ROTA_TOKEN"} & set(env) == set()
    assert env["HOME"] != os.environ["HOME"]


async def test_pods_may_reach_the_api_at_an_address_of_their_own(tmp_path: Path) -> None:
    given = assignment({"image": "a/b:1"}, tmp_path, environment={"ROTA_URL": "http://127.0.0.1:7682"})
    made = manifest.secret(given, read_kubernetes(given.config), url="http://rota.example")
    assert base64.b64decode(made["data"]["env.ROTA_URL"]) == b"http://rota.example"


async def test_the_secret_belongs_to_the_job_and_goes_when_the_run_ends(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any
) -> None:
    attempt = run(behave(TWO_WORDS), environment={"API_KEY": "s3cret"})
    owned = await until(
        lambda: [
            owner["uid"]
            for secret in cluster.objects(run_id, "Secret")
            for owner in secret["metadata"].get("ownerReferences", [])
        ],
        "the Secret has an owner",
    )
    assert owned == [job(cluster, run_id)["metadata"]["uid"]]
    assert "s3cret" not in json.dumps(cluster.objects(run_id, "Job") + cluster.objects(run_id, "Pod"))
    await let_go(directory)
    assert await attempt == Succeeded()
    assert kinds(cluster, run_id) == ["Job", "Pod"]


async def test_a_job_that_has_ended_is_kept_as_long_as_it_says(
    cluster: Cluster, run: Run, run_id: RunId, behave: Any
) -> None:
    assert await run(behave("completes", keep_finished=0)) == Succeeded()
    await until(lambda: kinds(cluster, run_id) == [], "the cluster has deleted the Job")


def test_a_transcript_that_does_not_fit_is_cut_at_its_beginning(tmp_path: Path) -> None:
    turns = [Turn("user", f"{number} " + "x" * 100_000) for number in range(20)]
    given = assignment({"image": "a/b:1"}, tmp_path, transcript=turns)
    made = manifest.secret(given, read_kubernetes(given.config))
    data = [base64.b64decode(value) for value in made["data"].values()]
    assert 900_000 < sum(map(len, data)) <= manifest.LARGEST_SECRET
    kept = json.loads(base64.b64decode(made["data"]["assignment.json"]))["transcript"]
    assert [each["text"].split()[0] for each in kept] == [str(number) for number in range(10, 20)]


async def test_what_no_secret_can_hold_is_refused_with_its_size(cluster: Cluster, run: Run, run_id: RunId) -> None:
    outcome = await run({"image": IMAGE}, prompt="x" * 600_000)
    assert isinstance(outcome, Failed)
    assert "1,048,576" in outcome.detail
    assert not outcome.retryable
    assert kinds(cluster, run_id) == []


# ── Adopting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


WORKER = """
import asyncio, json, sys
from datetime import timedelta
from pathlib import Path
from support.stand_ins import RecordingDesk, assignment
from rota.executors.kubernetes import KubernetesExecutor

config, directory, kubeconfig, changes = map(json.loads, sys.argv[1:])
executor = KubernetesExecutor(kubeconfig=kubeconfig, grace=timedelta(seconds=0.3))
asyncio.run(executor.execute(assignment(config, Path(directory), **changes), RecordingDesk()))
"""


def worker(cluster: Cluster, config: Mapping[str, Any], directory: Path, **changes: Any) -> "subprocess.Popen[bytes]":
    """A process that executes an attempt, and can be killed."""
    given = [json.dumps(each) for each in (config, str(directory), cluster.kubeconfig, changes)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen([sys.executable, "-c", WORKER, *given], env={**os.environ, "PYTHONPATH": path})


def told(cluster: Cluster, run_id: RunId) -> Told:
    secrets = cluster.objects(run_id, "Secret")
    return read_told(manifest.annotation(secrets[0], manifest.TOLD)) if secrets else Told()


async def test_the_next_attempt_adopts_the_job_of_a_worker_that_was_killed(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    body = TWO_WORDS + '        print(open(os.environ["ROTA_TOKEN_FILE"]).read(), flush=True)\n'
    config = behave(body)
    killed = worker(cluster, config, directory, run_id=str(run_id), environment={"ROTA_TOKEN": "first"})
    try:
        await until(lambda: told(cluster, run_id).lines, "it is noted that the first word was told")
        [client] = clients(psutil.Process(killed.pid))
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    await until(lambda: not client.is_running(), "nothing of the worker is left")
    before, [pid] = job(cluster, run_id), read_pids(directory) or [0]
    assert is_alive(pid)

    attempt = run(config, attempt=2, environment={"ROTA_TOKEN": "second"}, timeout=timedelta(hours=2))
    await until(lambda: desk.events, "the Job is adopted")
    assert desk.events == [
        ("tool", "resume", {"job": f"rota-{run_id}", "resumed": True, "why": "adopted from attempt 1"})
    ]
    await let_go(directory)
    assert await attempt == Succeeded()
    assert desk.text == "two\nsecond\n"  # not the first word again, and with the new token
    after = job(cluster, run_id)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"]["rota/attempt"] == "2"
    assert after["spec"]["activeDeadlineSeconds"] >= 2 * 3600 + 120
    assert read_pids(directory) == [pid]
    assert cluster.objects(run_id, "Secret") == []


async def test_a_worker_that_hands_a_run_back_leaves_its_job_to_the_next_attempt(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    config = behave(TWO_WORDS)
    first = run(config)
    await until(lambda: desk.text == "one\n", "the agent works")
    desk.handed_on = True
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert kinds(cluster, run_id) == ["Job", "Pod", "Secret"]
    second = run(config, attempt=2)
    await until(lambda: desk.events, "the Job is adopted")
    await let_go(directory)
    assert await second == Succeeded()
    assert desk.text == "one\ntwo\n"
    assert [each[2]["why"] for each in desk.events] == ["adopted from attempt 1"]
    assert cluster.objects(run_id, "Secret") == []


async def test_a_log_is_not_noted_as_told_before_it_is_stored(
    cluster: Cluster, executor: KubernetesExecutor, run_id: RunId, directory: Path, behave: Any
) -> None:
    class Unstored(RecordingDesk):
        async def stored(self) -> None:
            raise Lost("the attempt belongs to somebody else")

    desk, config = Unstored(), behave(TWO_WORDS)
    first = asyncio.create_task(executor.execute(assignment(config, directory, run_id=run_id), desk))
    await until(lambda: desk.text == "one\n", "the agent works")
    await let_go(directory)
    with pytest.raises(Lost):
        await first
    assert told(cluster, run_id) == Told()
    next_desk = RecordingDesk()
    second = executor.execute(assignment(config, directory, run_id=run_id, attempt=2), next_desk)
    assert await second == Succeeded()
    assert next_desk.text == "one\ntwo\n"


async def test_a_run_goes_on_when_the_process_that_talks_to_the_cluster_is_killed(
    run: Run, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    [client] = clients(psutil.Process())
    client.kill()
    await let_go(directory)
    assert await attempt == Succeeded()
    assert desk.text == "one\ntwo\n"
    assert client not in clients(psutil.Process())


async def test_a_process_that_does_not_answer_any_more_is_replaced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = gateway.Session({"kubeconfig": cluster.kubeconfig, "context": "", "namespace": ""})
    try:
        async with session.ask() as answer:
            assert answer.status == 200
        [client] = clients(psutil.Process())
        client.suspend()
        with monkeypatch.context() as patched:
            patched.setattr(gateway, "CALL_SECONDS", 0.05)
            with pytest.raises(gateway.Unreachable):
                await session.ask().__aenter__()
        assert not client.is_running()
        async with session.ask() as answer:
            assert answer.status == 200
    finally:
        session.close()


def clients(worker: psutil.Process) -> list[psutil.Process]:
    return [each for each in worker.children() if _is_client(each)]


def _is_client(process: psutil.Process) -> bool:
    try:
        return gateway.CLIENT in process.cmdline()
    except psutil.Error:  # gone, or dead and not yet buried: somebody else's
        return False


async def test_an_attempt_whose_job_was_adopted_leaves_it_alone(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    config = behave(TWO_WORDS)
    first = run(config)
    await until(lambda: desk.text == "one\n", "the agent works")
    second = run(config, attempt=2)
    await until(lambda: desk.events, "the Job is adopted")
    await until(lambda: job(cluster, run_id)["metadata"]["labels"]["rota/attempt"] == "2", "it is the second's")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert kinds(cluster, run_id) == ["Job", "Pod", "Secret"]
    with pytest.raises(Lost):
        await run(config)  # nor does a worker take it back that was asleep
    await let_go(directory)
    assert await second == Succeeded()


async def test_an_attempt_after_a_failure_begins_anew(
    cluster: Cluster, run: Run, run_id: RunId, behave: Any, desk: RecordingDesk
) -> None:
    config = behave('sys.exit(0 if attempt == "2" else 3)')
    assert await run(config) == Failed(ErrorClass.AGENT_ERROR, "exited with code 3")
    before = job(cluster, run_id)
    assert await run(config, attempt=2) == Succeeded()
    assert job(cluster, run_id)["metadata"]["uid"] != before["metadata"]["uid"]
    assert desk.events == []


async def test_an_outcome_that_was_not_written_is_found_again_without_a_second_run(
    cluster: Cluster, run: Run, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    config = behave('open("times", "a").write("once "); print("done")')
    assert await run(config) == Succeeded()
    assert await run(config, attempt=2) == Succeeded()
    assert (directory / "times").read_text() == "once "
    assert desk.text == "done\n"


async def test_an_attempt_that_finds_a_job_going_away_waits_and_begins_anew(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    config = behave(TWO_WORDS)
    first = run(behave("ignores TERM"))
    await until(lambda: read_pids(directory), "the agent ignores TERM")
    before = job(cluster, run_id)
    first.cancel()
    await until(lambda: "deletionTimestamp" in str(cluster.objects(run_id, "Job")), "the Job is going away")
    second = run(config, attempt=2)
    await asyncio.wait({first})
    await let_go(directory)
    assert await second == Succeeded()
    assert job(cluster, run_id)["metadata"]["uid"] != before["metadata"]["uid"]


async def test_an_attempt_that_finds_a_job_on_a_lost_node_does_not_wait_for_it_for_ever(
    cluster: Cluster,
    executor: KubernetesExecutor,
    run: Run,
    run_id: RunId,
    directory: Path,
    behave: Any,
    desk: RecordingDesk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "LINGER", timedelta(seconds=0.1))
    config = behave(TWO_WORDS)
    first = run(config)
    [pid] = await until(lambda: read_pids(directory), "the agent works")
    desk.handed_on = True
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    cluster.act("lose", run=str(run_id))
    await executor.abandon(lost(run_id, ended=True))
    second = run(config, attempt=2)
    await until(lambda: read_pids(directory) not in (None, [pid]), "another agent works")
    await let_go(directory)
    async with asyncio.timeout(30):
        assert await second == Succeeded()


# ── Cancelling, and cleaning up ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["hangs", "ignores TERM"])
async def test_nothing_is_left_of_a_cancelled_run(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, how: str
) -> None:
    attempt = run(behave(how))
    [pid] = await until(lambda: read_pids(directory), "the agent hangs")
    before = time.monotonic()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert time.monotonic() - before < 5
    assert kinds(cluster, run_id) == []
    assert not is_alive(pid)


async def test_nothing_is_left_of_a_run_that_is_cancelled_while_it_begins(
    cluster: Cluster, executor: KubernetesExecutor, run_id: RunId, tmp_path: Path, desk: RecordingDesk, behave: Any
) -> None:
    """At every step: whatever was made by then goes."""
    for steps in range(0, 60, 12):
        given = assignment(behave("hangs"), tmp_path / "session", run_id=run_id)
        attempt = asyncio.create_task(executor.execute(given, desk))
        for _ in range(steps):
            await asyncio.sleep(0.002)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert kinds(cluster, run_id) == []


def lost(run_id: RunId, *, ended: bool, attempt: int = 1) -> LostAttempt:
    given = assignment({}, Path("/nowhere"))
    return LostAttempt("kubernetes", given.workspace_id, run_id, given.session_id, attempt, {}, ended)


async def test_what_a_lost_attempt_left_stays_for_the_next_and_goes_with_the_run(
    cluster: Cluster, executor: KubernetesExecutor, run_id: RunId, directory: Path, behave: Any
) -> None:
    killed = worker(cluster, behave("hangs"), directory, run_id=str(run_id))
    try:
        [pid] = await until(lambda: read_pids(directory), "the agent hangs")
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    await executor.abandon(lost(run_id, ended=False))
    assert kinds(cluster, run_id) == ["Job", "Pod", "Secret"]
    for _ in range(2):  # at least once
        await executor.abandon(lost(run_id, ended=True))
    await until(lambda: kinds(cluster, run_id) == [], "nothing is left")
    assert not is_alive(pid)


async def test_abandoning_says_so_when_the_cluster_does_not_answer(
    cluster: Cluster, tmp_path: Path, run_id: RunId
) -> None:
    nowhere = own_config(cluster, tmp_path, **{cluster.url: "http://127.0.0.1:9"})
    with pytest.raises(Exception, match="Cannot connect"):
        await KubernetesExecutor(kubeconfig=str(nowhere)).abandon(lost(run_id, ended=True))


# ── Troubles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "words", "retryable"),
    [
        ({"image": "missing/agent:1"}, "'missing/agent:1' cannot be pulled (ImagePullBackOff): Back-off", False),
        ({"image": "unreachable/agent:1"}, "'unreachable/agent:1' cannot be pulled (ImagePullBackOff): Back-off", True),
        (
            {"image": "missing-old/agent:1"},
            "'missing-old/agent:1' cannot be pulled (ImagePullBackOff): failed to",
            False,
        ),
        ({"image": "Agents/agent:1"}, "'Agents/agent:1' is not the name of an image", False),
        ({"image": "rootful/agent:1"}, "(CreateContainerConfigError): container has runAsNonRoot", False),
        (
            {"image": IMAGE, "node_selector": {"no": "where"}, "start_timeout": "0.1s"},
            "the agent did not begin within 0.1s: no node takes the pod (Unschedulable): 0/3 nodes are available",
            True,
        ),
    ],
)
async def test_an_agent_that_does_not_begin_says_why_and_leaves_nothing(
    cluster: Cluster, run: Run, run_id: RunId, desk: RecordingDesk, config: Any, words: str, retryable: bool
) -> None:
    outcome = await run(config)
    assert isinstance(outcome, Failed)
    assert words in outcome.detail
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, retryable)
    [*_, (_, name, waiting)] = desk.events
    assert (name, waiting["job"]) == ("kubernetes", f"rota-{run_id}")
    assert waiting["waiting"] in outcome.detail  # it was in the trace while it lasted
    assert kinds(cluster, run_id) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"service_account": "nobody"}, 'serviceaccount "nobody" not found'),
        ({"priority_class": "none"}, "no PriorityClass with name none was found"),
        ({"runtime_class": "none"}, 'RuntimeClass "none" not found'),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
async def test_a_pod_that_cannot_be_created_says_why(
    cluster: Cluster,
    run: Run,
    run_id: RunId,
    desk: RecordingDesk,
    monkeypatch: pytest.MonkeyPatch,
    config: Any,
    words: str,
) -> None:
    monkeypatch.setattr(start_of_a_job, "EVENT_SECONDS", 0.05)
    outcome = await run({"image": IMAGE, "start_timeout": "20s", **config})
    assert isinstance(outcome, Failed)
    assert words in outcome.detail
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
    assert desk.events == [("tool", "kubernetes", {"job": f"rota-{run_id}", "waiting": outcome.detail})]
    assert kinds(cluster, run_id) == []


async def test_a_pod_waits_for_room_in_a_quota_and_says_so(
    cluster: Cluster, run: Run, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_of_a_job, "EVENT_SECONDS", 0.05)
    cluster.act("full", kind="pods")
    try:
        attempt = run(behave("completes"))
        await until(lambda: desk.events, "the trace says why there is no pod")
        [(_, _, told)] = desk.events
        assert "exceeded quota: small" in told["waiting"]
    finally:
        cluster.act("room")
    assert isinstance(await attempt, Succeeded)


@pytest.mark.parametrize("kind", ["secrets", "jobs"])
async def test_what_a_full_quota_refuses_is_tried_until_there_is_room(
    cluster: Cluster, run: Run, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "QUOTA_SECONDS", 0.05)
    cluster.act("full", kind=kind)
    try:
        attempt = run(behave("completes"))
        await until(lambda: desk.events or attempt.done(), "the trace says why it does not begin")
    finally:
        cluster.act("room")
    assert isinstance(await attempt, Succeeded)
    [(_, _, told)] = desk.events
    assert "exceeded quota: small" in told["waiting"]


async def test_a_quota_that_stays_full_ends_the_wait_and_may_be_tried_again(
    cluster: Cluster, run: Run, run_id: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "QUOTA_SECONDS", 0.05)
    cluster.act("full", kind="secrets")
    try:
        outcome = await run({"image": IMAGE, "start_timeout": "0.2s"})
    finally:
        cluster.act("room")
    assert isinstance(outcome, Failed)
    assert "exceeded quota: small" in outcome.detail
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, True)
    assert kinds(cluster, run_id) == []


async def test_warnings_about_a_pod_are_told_while_it_does_not_begin(
    cluster: Cluster, run: Run, run_id: RunId, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_of_a_job, "EVENT_SECONDS", 0.05)
    attempt = run({"image": "stuck/agent:1", "start_timeout": "1s"})
    await until(lambda: cluster.objects(run_id, "Pod"), "there is a pod")
    cluster.act("warn", run=str(run_id), reason="FailedCreatePodSandBox", message="no runtime for gvisor: 1")
    await until(lambda: desk.events, "the trace says so")
    cluster.act("warn", run=str(run_id), reason="FailedCreatePodSandBox", message="no runtime for gvisor: 2")
    outcome = await attempt
    assert isinstance(outcome, Failed)
    assert "within 1s: the pod does not begin (FailedCreatePodSandBox): no runtime for gvisor" in outcome.detail
    assert len(desk.events) == 1  # the same warning comes again and again, with other words


async def test_a_role_without_events_is_named_where_they_would_say_more(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_of_a_job, "EVENT_SECONDS", 0.05)
    old = [rule for rule in clusters.rules() if "events" not in rule["resources"]]
    cluster.act("rules", rules=json.dumps(old))
    cluster.act("full", kind="pods")
    try:
        outcome = await run({"image": IMAGE, "start_timeout": "0.5s"})
    finally:
        cluster.act("room")
        cluster.act("rules", rules=json.dumps(clusters.rules()))
    assert isinstance(outcome, Failed)
    assert outcome.detail.endswith(
        "the cluster has made no pod; Rota may not read the events of the namespace, which would say why"
    )


async def test_a_program_that_the_image_lacks_is_named(run: Run) -> None:
    outcome = await run({"image": IMAGE, "command": ["no-such-program"]})
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith("cannot start 'no-such-program': ")
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)


@pytest.mark.parametrize(
    ("befalls", "words"),
    [
        ("OOMKilled", "killed: it used more memory than resources.limits.memory, 1Gi"),
        ("Evicted", "the pod was ended by the cluster (Evicted): The node was low on resource: memory."),
    ],
)
async def test_what_a_cluster_does_to_a_pod_is_told_in_words(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, befalls: str, words: str
) -> None:
    attempt = run(behave("hangs"))
    await until(lambda: read_pids(directory), "the agent hangs")
    cluster.act("end", run=str(run_id), reason=befalls)
    outcome = await attempt
    assert isinstance(outcome, Failed)
    assert (outcome.detail, outcome.retryable) == (words, True)


async def test_a_deadline_that_passed_unattended_is_a_timeout(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any
) -> None:
    attempt = run(behave("hangs"))
    await until(lambda: read_pids(directory), "the agent hangs")
    cluster.act("deadline", run=str(run_id))
    assert isinstance(await attempt, TimedOut)


@pytest.mark.parametrize(
    ("kind", "words"), [("jobs", "somebody deleted the Job"), ("pods", "somebody deleted the pod")]
)
async def test_what_somebody_else_deleted_is_missed(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, kind: str, words: str
) -> None:
    attempt = run(behave("hangs"))
    await until(lambda: read_pids(directory), "the agent hangs")
    [found] = cluster.objects(run_id, kind.capitalize()[:-1])
    cluster.delete(kind, found["metadata"]["name"])
    outcome = await attempt
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith(words)
    assert outcome.retryable


async def test_a_run_whose_node_is_lost_ends_and_leaves_nothing(
    cluster: Cluster,
    run: Run,
    run_id: RunId,
    directory: Path,
    behave: Any,
    desk: RecordingDesk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Node object stays, so that the cluster never ends the pod; a retry finds the name free."""
    monkeypatch.setattr(attempt_of_a_job, "LAST_WORDS_SECONDS", 0.1)
    monkeypatch.setattr(node_of_a_pod, "DELETED_SECONDS", 0.1)
    attempt = run(behave("hangs"))
    await until(lambda: read_pids(directory), "the agent hangs")
    cluster.act("lose", run=str(run_id))
    await until(lambda: desk.events, "the trace says that the node is silent")
    assert "does not answer" in desk.events[0][2]["waiting"]
    cluster.act("give_up", run=str(run_id))
    async with asyncio.timeout(30):
        outcome = await attempt
    assert outcome == Failed(ErrorClass.EXECUTOR_ERROR, "the node of the pod does not answer any more (node-1)")
    assert kinds(cluster, run_id) == []


async def test_a_silent_node_is_lost_after_a_while_also_if_the_cluster_waits_for_ever(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "LAST_WORDS_SECONDS", 0.1)
    monkeypatch.setattr(node_of_a_pod, "SILENT_SECONDS", 0.1)
    attempt = run(behave("hangs"))
    await until(lambda: read_pids(directory), "the agent hangs")
    cluster.act("lose", run=str(run_id))
    async with asyncio.timeout(30):
        outcome = await attempt
    assert isinstance(outcome, Failed)
    assert "does not answer any more" in outcome.detail
    assert outcome.retryable
    assert kinds(cluster, run_id) == []


@pytest.mark.parametrize(
    ("condition", "silent"),
    [
        ({"status": "Unknown"}, True),
        ({"status": "False"}, True),
        ({"status": "False", "reason": "ContainersNotReady"}, False),
        ({"status": "False", "reason": "ReadinessGatesNotReady"}, False),
        ({"status": "True"}, False),
    ],
)
def test_a_node_is_silent_if_its_pod_is_unready_and_the_kubelet_gave_no_reason(condition: Any, silent: bool) -> None:
    states = [{"name": "agent", "state": {"running": {}}}]
    pod = {"status": {"conditions": [{"type": "Ready", **condition}], "containerStatuses": states}}
    assert words.node_is_silent(pod) is silent


def test_a_node_that_answers_again_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    monkeypatch.setattr(node_of_a_pod, "time", SimpleNamespace(monotonic=lambda: 1.0 + passed[0]))
    silent = {
        "metadata": {},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "agent", "state": {"running": {}}}],
        },
    }
    answers = {**silent, "status": {**silent["status"], "conditions": [{"type": "Ready", "status": "True"}]}}
    watch = node_of_a_pod.NodeWatch()
    for pod, lost in [(silent, False), (answers, False), (silent, False), (silent, True)]:
        assert watch.is_lost(pod) is lost
        passed[0] += 340.0


def test_a_pod_may_tolerate_a_silent_node_for_longer() -> None:
    tolerations = [{"key": "node.kubernetes.io/unreachable", "tolerationSeconds": 900}, {"operator": "Exists"}]
    assert words.tolerated_silence({"spec": {"tolerations": tolerations}}) == 900
    assert words.tolerated_silence({"spec": {}}) == 0


async def test_a_suspended_job_is_deleted_with_the_end_of_its_attempt(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspended, it would never end, nor be deleted by the cluster."""
    monkeypatch.setattr(attempt_of_a_job, "VERDICT_SECONDS", 0.2)
    attempt = run(behave("hangs"))
    await until(lambda: read_pids(directory), "the agent hangs")
    cluster.act("suspend", run=str(run_id))
    assert await attempt == Failed(ErrorClass.EXECUTOR_ERROR, "somebody suspended the Job")
    assert kinds(cluster, run_id) == []


@pytest.mark.parametrize("code", [0, 3])
async def test_a_container_that_something_has_added_ends_with_the_agent(
    cluster: Cluster, run: Run, run_id: RunId, behave: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "LAST_WORDS_SECONDS", 0.2)
    config = behave(f"sys.exit({code})", annotations={"example.com/inject": "proxy"})
    outcome = await run(config)
    if code:
        assert outcome == Failed(ErrorClass.AGENT_ERROR, f"exited with code {code}")
        assert kinds(cluster, run_id) == []
        return
    assert outcome == Succeeded()
    await until(lambda: cluster.objects(run_id, "Pod") == [], "the pod has ended")
    assert kinds(cluster, run_id) == ["Job"]  # for an attempt that finds no outcome stored
    assert await run(config, attempt=2) == Succeeded()


async def test_a_second_pod_of_a_job_is_not_a_second_try_of_the_agent(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    """Controllers before 1.25 make another pod in place of one that was deleted."""
    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    cluster.act("repeat_pods", on="true")
    try:
        [found] = cluster.objects(run_id, "Pod")
        cluster.delete("pods", found["metadata"]["name"])
        outcome = await attempt
    finally:
        cluster.act("repeat_pods", on="false")
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith("somebody deleted the pod")
    assert desk.text == "one\n"
    assert kinds(cluster, run_id) == []


async def test_the_deadline_moves_on_while_a_worker_attends(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any
) -> None:
    attempt = run(behave(TWO_WORDS), timeout=timedelta(seconds=-60))
    await until(lambda: cluster.objects(run_id, "Job"), "the Job is there")
    await until(lambda: job(cluster, run_id)["spec"]["activeDeadlineSeconds"] >= 600, "its deadline has moved")
    await let_go(directory)
    assert await attempt == Succeeded()


# ── A cluster that does not always answer ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("troubles", [["finish"], ["compact", "finish"], ["expire"], ["cut"], ["babble"]], ids="-".join)
async def test_a_run_survives_what_happens_to_watches_and_logs(
    cluster: Cluster, run: Run, directory: Path, behave: Any, desk: RecordingDesk, troubles: list[str]
) -> None:
    """Versions that are too old, and connections that break off: the log goes on where it was."""
    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    for trouble in troubles:
        cluster.act(trouble)
    await let_go(directory)
    assert await attempt == Succeeded()
    assert desk.text == "one\ntwo\n"


async def test_a_job_that_is_over_before_its_pod_is_heard_to_be_is_judged_by_the_pod(
    run: Run, directory: Path, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, told_in_time = asyncio.Event(), ClusterClient.watch

    async def told_late(self: ClusterClient, kind: str, version: str, **query: Any) -> AsyncIterator[Any]:
        async with aclosing(told_in_time(self, kind, version, **query)) as events:
            async for event in events:
                if kind == PODS and words.ended(event["object"]):
                    await over.wait()
                    await asyncio.sleep(0.1)  # long enough for who would judge without it
                yield event
                if kind == JOBS and words.is_over(event["object"]):
                    over.set()

    monkeypatch.setattr(ClusterClient, "watch", told_late)
    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    await let_go(directory)
    assert await attempt == Succeeded()
    assert over.is_set()


@pytest.mark.parametrize("slow", ["the line", "the desk"])
async def test_a_log_is_heard_to_its_end_however_long_that_takes(
    run: Run, directory: Path, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """Only silence says that a line has died; what an agent used is at the end of what it said."""
    begun, over, passed = asyncio.Event(), asyncio.Event(), [0.0]
    watch, hear, say = ClusterClient.watch, ClusterClient.log, desk.say

    async def watched(self: ClusterClient, kind: str, version: str, **query: Any) -> AsyncIterator[Any]:
        async with aclosing(watch(self, kind, version, **query)) as events:
            async for event in events:
                yield event
                if kind == PODS and words.ended(event["object"]):
                    over.set()

    async def after_the_end(seconds: float) -> None:
        begun.set()
        await over.wait()
        await asyncio.sleep(0.05)  # whoever counts from the agent's end has seen it by now,
        passed[0] += seconds
        await asyncio.sleep(0.05)  # and now how much later it is

    async def heard_slowly(self: ClusterClient, *where: str, **query: Any) -> AsyncIterator[bytes]:
        async with aclosing(hear(self, *where, **query)) as pieces:
            async for piece in pieces:
                for line in piece.splitlines(keepends=True):
                    await after_the_end(0.5 * attempt_of_a_job.LAST_WORDS_SECONDS)
                    yield line

    async def written_slowly(text: str, *, voice: str = "") -> None:
        await after_the_end(2 * attempt_of_a_job.LAST_WORDS_SECONDS)
        await say(text, voice=voice)

    monkeypatch.setattr(attempt_of_a_job, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    monkeypatch.setattr(attempt_of_a_job, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(ClusterClient, "watch", watched)
    if slow == "the line":
        monkeypatch.setattr(ClusterClient, "log", heard_slowly)
    else:
        monkeypatch.setattr(desk, "say", written_slowly)
    attempt = run(behave(TWO_WORDS + '        usage("tokens", 7)\n'))
    await begun.wait()
    await let_go(directory)
    assert await attempt == Succeeded()
    assert (desk.text, desk.events) == ("one\ntwo\n", [("usage", "tokens", 7)])


async def test_a_run_survives_an_api_server_that_is_away_for_a_while(
    cluster: Cluster, run: Run, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        cluster.act("down", down="true")
        cluster.act("cut")
        asked = len(cluster.requests())
        try:
            yield
            await until(lambda: cluster.refused() > 0 and len(cluster.requests()) == asked, "somebody was refused")
        finally:
            cluster.act("down", down="false")

    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    async with away():
        await let_go(directory)
    assert await attempt == Succeeded()
    assert desk.text == "one\ntwo\n"


async def test_a_token_that_ran_out_is_read_anew(
    cluster: Cluster, tmp_path: Path, directory: Path, behave: Any, desk: RecordingDesk, grace: timedelta
) -> None:
    own = own_config(cluster, tmp_path)
    executor = KubernetesExecutor(kubeconfig=str(own), grace=grace)
    attempt = asyncio.create_task(executor.execute(assignment(behave(TWO_WORDS), directory), desk))
    try:
        await until(lambda: desk.text == "one\n", "the agent works")
        own_config(cluster, tmp_path, **{"token: first": "token: renewed"})
        cluster.act("token", token="renewed")
        cluster.act("cut")
        await let_go(directory)
        assert await attempt == Succeeded()
    finally:
        cluster.act("token", token="first")
    assert desk.text == "one\ntwo\n"


@pytest.mark.parametrize("code", [401, 403, 429])
async def test_runs_survive_what_a_server_that_has_just_started_refuses(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, desk: RecordingDesk, code: int
) -> None:
    """One that works already, and one that begins."""
    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    before, created = cluster.refused(), cluster.requests().count("create secrets")
    cluster.act("refuse", code=str(code), count="-1")
    try:
        cluster.act("cut")
        other = run(behave("completes"), run_id=RunId(new_id()))
        await until(lambda: cluster.requests().count("create secrets") > created, "the one that begins was refused")
        await until(lambda: cluster.refused() >= before + 6, "both were refused again and again")
    finally:
        cluster.act("refuse", code=str(code), count="0")
    await let_go(directory)
    assert await attempt == Succeeded()
    assert isinstance(await other, Succeeded)
    assert {"one\n", "two\n"} <= {each[1] for each in desk.calls if each[0] == "say"}
    assert "Secret" not in kinds(cluster, run_id)


async def test_refusals_that_were_followed_by_an_answer_do_not_add_up(
    cluster: Cluster, run: Run, directory: Path, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    monkeypatch.setattr(client_of_clusters, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    for _ in range(2):
        refused = cluster.refused()
        cluster.act("refuse", code="403", count="4", only="watch")
        cluster.act("finish")
        await until(functools.partial(has_refused, cluster, refused + 4), "watches were refused")
        watched = watches(cluster)
        cluster.act("finish")  # both watches begin once more, and are accepted
        await until(functools.partial(is_watched_again, cluster, watched), "both are watched again")
        passed[0] += 100.0
    await let_go(directory)
    assert await attempt == Succeeded()


def has_refused(cluster: Cluster, count: int) -> bool:
    return cluster.refused() >= count


def watches(cluster: Cluster) -> list[int]:
    return [cluster.requests().count(each) for each in ("watch jobs", "watch pods")]


def is_watched_again(cluster: Cluster, before: list[int]) -> bool:
    return all(now > then for now, then in zip(watches(cluster), before, strict=True))


async def test_a_run_that_fails_for_a_refusal_deletes_its_job_and_its_secret(
    cluster: Cluster,
    run: Run,
    run_id: RunId,
    directory: Path,
    behave: Any,
    desk: RecordingDesk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the first deletion is refused as well."""
    monkeypatch.setattr(attempt_of_a_job, "PAUSE_SECONDS", 0.05)
    attempt = run(behave("hangs"))
    [pid] = await until(lambda: read_pids(directory), "the agent hangs")
    stop = Attempt._stop

    async def stop_while_refused(self: Attempt) -> None:
        monkeypatch.setattr(client_of_clusters, "DOUBT_SECONDS", 30.0)
        cluster.act("refuse", code="403", count="3")
        await stop(self)

    monkeypatch.setattr(Attempt, "_stop", stop_while_refused)
    monkeypatch.setattr(client_of_clusters, "DOUBT_SECONDS", 0.0)
    cluster.act("refuse", code="403", count="-1", only="watch")
    try:
        cluster.act("finish")
        outcome = await attempt
    finally:
        cluster.act("refuse", code="403", count="0")
    assert isinstance(outcome, Failed)
    assert "403" in outcome.detail
    assert kinds(cluster, run_id) == []
    assert not is_alive(pid)


async def test_a_full_quota_that_changes_meanwhile_is_asked_again(cluster: Cluster, run: Run, behave: Any) -> None:
    """A quota is counted with a version, which two creations at once dispute."""
    cluster.act("refuse", code="409", count="2", only="create")
    assert isinstance(await run(behave("completes")), Succeeded)


REPORTS_ERROR = """
        open("pids.new", "w").write(str(os.getpid()))
        os.rename("pids.new", "pids")
        print("one", flush=True)
        open("go").read()
        event(type="error", detail="no ink", retryable=False)
"""


@pytest.mark.parametrize("trouble", ["403", "500", "a node that has lost the log"])
async def test_an_error_that_was_reported_is_found_when_the_log_can_be_read_again(
    cluster: Cluster,
    run: Run,
    run_id: RunId,
    directory: Path,
    behave: Any,
    desk: RecordingDesk,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "PAUSE_SECONDS", 0.05)
    attempt = run(behave(REPORTS_ERROR))
    await until(lambda: desk.text == "one\n", "the agent works")
    before = cluster.requests().count("get pods/log")
    cannot_be_read(cluster, trouble)
    try:
        cluster.act("cut")
        await let_go(directory)
        await until(lambda: words.is_over(job(cluster, run_id)), "the Job has ended")
        await until(lambda: cluster.requests().count("get pods/log") >= before + 4, "it was tried again and again")
    finally:
        can_be_read(cluster)
    assert await attempt == Failed(ErrorClass.AGENT_ERROR, "no ink", retryable=False)


@pytest.mark.parametrize("trouble", ["403", "500", "a node that has lost the log"])
async def test_without_its_log_no_agent_has_succeeded(
    cluster: Cluster,
    run: Run,
    directory: Path,
    behave: Any,
    desk: RecordingDesk,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(attempt_of_a_job, "LOG_SECONDS", 0.1)
    attempt = run(behave(REPORTS_ERROR))
    await until(lambda: desk.text == "one\n", "the agent works")
    cannot_be_read(cluster, trouble)
    try:
        cluster.act("cut")
        await let_go(directory)
        outcome = await attempt
    finally:
        can_be_read(cluster)
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, True)
    assert "the end of its log could not be read" in outcome.detail
    assert "could not be read" in desk.events[-1][2]["unread"]
    assert desk.text == "one\n"  # what the node says is not the agent's word


async def test_an_agent_that_said_that_it_is_done_has_succeeded_without_the_rest_of_its_log(
    cluster: Cluster, run: Run, directory: Path, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_of_a_job, "LOG_SECONDS", 0.1)
    body = TWO_WORDS.replace('print("one", flush=True)', 'event(type="done", summary="Ink"); print("one", flush=True)')
    attempt = run(behave(body))
    await until(lambda: desk.text == "one\n", "the agent is done, and works on")
    cannot_be_read(cluster, "500")
    try:
        cluster.act("cut")
        await let_go(directory)
        assert await attempt == Succeeded("Ink")
    finally:
        can_be_read(cluster)
    assert "could not be read" in desk.events[-1][2]["unread"]


def cannot_be_read(cluster: Cluster, trouble: str) -> None:
    if trouble.isdecimal():
        cluster.act("refuse", code=trouble, count="-1", only="get pods/log")
    else:
        cluster.act("complain", words="unable to retrieve container logs for containerd://0f3a")


def can_be_read(cluster: Cluster) -> None:
    cluster.act("refuse", code="500", count="0")
    cluster.act("complain", words="")


async def test_an_error_that_a_lost_attempt_was_told_is_not_forgotten(
    cluster: Cluster, run: Run, run_id: RunId, directory: Path, behave: Any, desk: RecordingDesk
) -> None:
    """The adopting attempt does not hear the line again."""
    reports = REPORTS_ERROR.replace('        open("go").read()\n', "") + '        open("go").read()\n'
    first = run(behave(reports))
    await until(lambda: desk.text == "one\n", "the agent works")
    verdict = '"detail": "no ink"'
    await until(lambda: verdict in str(cluster.objects(run_id, "Secret")), "the error is noted")
    desk.handed_on = True
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = run(behave(reports), attempt=2)
    await until(lambda: desk.events, "the Job is adopted")
    await let_go(directory)
    assert await second == Failed(ErrorClass.AGENT_ERROR, "no ink", retryable=False)


async def test_what_rota_may_not_do_is_told_and_not_tried_again(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_of_clusters, "DOUBT_SECONDS", 0.1)
    allowed = [rule for rule in clusters.rules() if "jobs" not in rule["resources"]]
    cluster.act("rules", rules=json.dumps(allowed))
    try:
        outcome = await run({"image": IMAGE})
    finally:
        cluster.act("rules", rules=json.dumps(clusters.rules()))
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith("the cluster refused: 403 jobs is forbidden: ")
    assert not outcome.retryable


async def test_a_right_that_is_taken_away_while_an_agent_works_ends_its_attempt(
    cluster: Cluster, run: Run, run_id: RunId, behave: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_of_clusters, "DOUBT_SECONDS", 0.1)
    blind = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "watch"]} for rule in clusters.rules()]
    attempt = run(behave(TWO_WORDS))
    await until(lambda: desk.text == "one\n", "the agent works")
    cluster.act("rules", rules=json.dumps(blind))
    try:
        cluster.act("finish")
        async with asyncio.timeout(30):
            outcome = await attempt
    finally:
        cluster.act("rules", rules=json.dumps(clusters.rules()))
    assert isinstance(outcome, Failed)
    assert "cannot watch" in outcome.detail
    assert cluster.objects(run_id) == []


async def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path, desk: RecordingDesk) -> None:
    executor = KubernetesExecutor(kubeconfig=str(tmp_path / "nowhere"))
    outcome = await executor.execute(assignment({"image": IMAGE}, tmp_path), desk)
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith("ROTA_KUBERNETES_CONFIG: no cluster is configured: there is no kubeconfig")
    assert not outcome.retryable


# ── The log ──────────────────────────────────────────────────────────────────────────────────────────────────────────

LOG = (
    b"2026-11-16T02:00:00.5Z one\n2026-11-16T02:00:00.51Z two words\n2026-11-16T02:00:00.51Z \n"
    b"2026-11-16T02:00:00.51Z three\n2026-11-16T02:00:01Z last"
)


@pytest.mark.parametrize("size", [1, 2, 7, 24, 25, 26, 1000])
def test_the_lines_of_a_log_are_whole_whatever_the_pieces(size: int) -> None:
    lines = Stamped(Told())
    text = b"".join(lines.feed(LOG[at : at + size]) for at in range(0, len(LOG), size)) + lines.rest()
    assert text == b"one\ntwo words\n\nthree\nlast"
    assert str(lines.told) == "2026-11-16T02:00:01Z 1"


@pytest.mark.parametrize("count", range(5))
def test_a_log_goes_on_behind_the_line_that_was_told_also_among_equal_times(count: int) -> None:
    parts = LOG.splitlines(keepends=True)
    before = Stamped(Told())
    first = before.feed(b"".join(parts[:count]))
    told = read_told(str(before.told))
    assert told == before.told
    after = Stamped(told)
    assert first + after.feed(LOG + b"\n") == b"one\ntwo words\n\nthree\nlast\n"


def test_a_line_without_end_does_not_fill_the_worker() -> None:
    lines = Stamped(Told())
    assert lines.feed(b"2026-11-16T02:00:00Z " + b"x" * 2_000_000) == b"x" * 2_000_000
    assert lines.feed(b"y\n2026-11-16T02:00:01Z next\n") == b"y\nnext\n"


def test_a_long_line_goes_on_behind_the_part_that_was_told() -> None:
    begin, end = b"2026-11-16T02:00:00Z " + b"x" * 1_500_000, b"yyy\n2026-11-16T02:00:00Z next\n"
    first = Stamped(Told(b"2026-11-16T02:00:00Z", 0))
    assert first.feed(begin) == b"x" * 1_500_000
    broken = read_told(str(first.told))
    assert broken == first.told
    for size in (1_000_001, 1_500_001, 5_000_000):
        again = Stamped(broken)
        whole = begin + end
        text = b"".join(again.feed(whole[at : at + size]) for at in range(0, len(whole), size))
        assert text == b"yyy\nnext\n"
        assert again.told == Told(b"2026-11-16T02:00:00Z", 2)


def test_a_long_line_that_was_told_is_not_told_again_in_part() -> None:
    line = b"2026-11-16T02:00:00Z " + b"x" * 1_500_000 + b"yyy\n"
    first = Stamped(Told())
    first.feed(line)
    again = Stamped(first.told)
    assert again.feed(line[:1_400_000]) + again.feed(line[1_400_000:]) == b""
    assert again.feed(b"2026-11-16T02:00:01Z next\n") == b"next\n"


@pytest.mark.parametrize("told", [Told(), Told(b"2026-11-16T02:00:00Z", 1)])
def test_a_line_without_a_time_is_the_complaint_of_a_node(told: Told) -> None:
    lines = Stamped(told)
    lines.feed(b"2026-11-16T02:00:00Z one\nfailed to open the log: no such file")
    assert (lines.rest(), lines.complaint) == (b"", "failed to open the log: no such file")


def test_the_time_since_which_a_log_is_asked_for_is_in_whole_seconds() -> None:
    assert Told(b"2026-11-16T02:00:00.123456789Z", 1).since == "2026-11-16T02:00:00Z"
    assert Told().since is None


def test_a_log_goes_on_also_when_the_clock_of_the_node_is_put_back() -> None:
    """Its times are of its zone, where an hour comes twice a year."""
    summer, winter = b"2026-10-25T02:59:59.9+02:00 summer\n", b"2026-10-25T02:00:00.1+01:00 winter\n"
    lines = Stamped(Told())
    assert lines.feed(summer) == b"summer\n"
    assert lines.told.since == "2026-10-25T00:59:59Z"
    assert Stamped(lines.told).feed(summer + winter) == b"winter\n"
