"""Agents as Jobs of a cluster: what the pod is given, who adopts it, how its troubles are told, and that nothing is left."""

import asyncio
import base64
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

    async def told_late(self: ClusterClient, kind: str, version: str, **query: str) -> AsyncIterator[Any]:
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

    async def watched(self: ClusterClient, kind: str, version: str, **query: str) -> AsyncIterator[Any]:
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


async def test_what_rota_may_not_do_is_told_and_not_tried_again(cluster: Cluster, run: Run) -> None:
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
    cluster: Cluster, run: Run, run_id: RunId, behave: Any, desk: RecordingDesk
) -> None:
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
    assert outcome.detail.startswith("ROTA_KUBERNETES_CONFIG: no way to a cluster was found")
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
