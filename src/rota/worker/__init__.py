"""Run → executor → outcome."""

from pathlib import Path

from rota import executors
from rota.access.vault import Vault
from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.executors.sandbox import UNCONFINED, Sandbox, choose
from rota.model.agent_config import LOCAL_KINDS
from rota.sessions.artifacts import Depot
from rota.settings import Settings
from rota.trace.record import Recorder
from rota.worker.lease import Lease
from rota.worker.worker import Worker


def choose_sandbox(settings: Settings) -> Sandbox:
    """Find out which sandbox works on this machine. Takes a tenth of a second: it is tried out."""
    files = [settings.kubernetes_config, settings.log_file, _local_path(settings.artifacts_url)]
    hidden = [Path(each).expanduser() for each in files if each]
    return choose(settings.sandbox, required=settings.sandbox_required, home=settings.home, also_hide=hidden)


def _local_path(url: str) -> str:
    """The directory of an artifact store on this machine; nothing for any other."""
    scheme, found, path = url.rpartition("://")
    return path if not found or scheme in ("file", "local") else ""


def hire(
    settings: Settings, db: Database, wakes: Wakes, vault: Vault, *, url: str, sandbox: Sandbox = UNCONFINED
) -> tuple[Worker, Lease, Recorder]:
    """A worker of this process with the executors it has, the keeper of its leases, and the writer of its words."""
    timeouts = settings.timeouts
    local = {"grace": timeouts.kill, "sandbox": sandbox}
    recorder = Recorder(db, wakes)
    worker = Worker(
        db,
        wakes,
        recorder,
        executors.load(
            barred=() if settings.local_agents else LOCAL_KINDS,
            command=local,
            python=local,
            acp=local,
            llm=local,
            langgraph=local,
            http={"grace": timeouts.kill, "allow": settings.http_allow},
            kubernetes={
                "grace": timeouts.kill,
                "kubeconfig": settings.kubernetes_config,
                "context": settings.kubernetes_context,
                "namespace": settings.kubernetes_namespace,
                "url": settings.kubernetes_url,
            },
        ),
        url=url,
        home=settings.home,
        places=settings.max_concurrent,
        pools=settings.pools,
        lease=settings.lease_seconds,
        poll=settings.poll_seconds,
        depot=Depot(db, settings.home, settings.artifacts_url, largest=settings.max_artifact_bytes),
        vault=vault,
        sandbox=sandbox.name,
    )
    return (
        worker,
        Lease(db, worker, lease=timeouts.lease, heartbeat=timeouts.heartbeat),
        recorder,
    )
