"""Run → executor → outcome."""

from rota import executors
from rota.access.vault import Vault
from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.model.agent_config import LOCAL_KINDS
from rota.sessions.artifacts import Depot
from rota.settings import Settings
from rota.trace.record import Recorder
from rota.worker.lease import Lease
from rota.worker.worker import Worker


def hire(settings: Settings, db: Database, wakes: Wakes, vault: Vault, *, url: str) -> tuple[Worker, Lease, Recorder]:
    """A worker of this process with the executors it has, the keeper of its leases, and the writer of its words."""
    timeouts = settings.timeouts
    recorder = Recorder(db, wakes)
    worker = Worker(
        db,
        wakes,
        recorder,
        executors.load(
            barred=() if settings.local_agents else LOCAL_KINDS,
            command={"grace": timeouts.kill},
            python={"grace": timeouts.kill},
            acp={"grace": timeouts.kill},
            llm={"grace": timeouts.kill},
            langgraph={"grace": timeouts.kill},
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
    )
    return (
        worker,
        Lease(db, worker, lease=timeouts.lease, heartbeat=timeouts.heartbeat),
        recorder,
    )
