"""The kind `kubernetes`: an agent is a Job of a cluster, named after its run."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rota.errors import Invalid
from rota.executors.ending import misconfigured
from rota.executors.kubernetes.attempt import Attempt
from rota.executors.kubernetes.cluster import Cluster, Refused, Where
from rota.executors.kubernetes.gateway import Unreachable
from rota.executors.kubernetes.removing import remove
from rota.model import agent_config
from rota.model.agent_config import read_kubernetes
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import ErrorClass, Failed, Outcome

GRACE = timedelta(seconds=5)
PATIENCE = timedelta(seconds=60)


class KubernetesExecutor:
    """The exit code of the container is the explicit completion, as that of a program."""

    kind = "kubernetes"
    resumes = False

    def __init__(
        self,
        *,
        kubeconfig: str = "",
        context: str = "",
        namespace: str = "",
        url: str = "",
        grace: timedelta = GRACE,
        patience: timedelta = PATIENCE,
    ) -> None:
        """`url` is how pods reach the API, if not as others do; `patience` is for images that cannot be pulled."""
        self._where = Where(kubeconfig, context, namespace)
        self._url, self._grace, self._patience = url, grace, patience

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return agent_config.check(self.kind, config)

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        try:
            config = read_kubernetes(assignment.config)
            async with Cluster.reached(self._where) as cluster:
                attempt = Attempt(
                    cluster, assignment, config, desk, grace=self._grace, patience=self._patience, url=self._url
                )
                return await attempt.carry_out()
        except Invalid as mistake:
            return misconfigured(mistake)
        except Unreachable as failure:
            return Failed(ErrorClass.EXECUTOR_ERROR, f"the cluster cannot be reached: {failure}")
        except Refused as refusal:
            return Failed(ErrorClass.EXECUTOR_ERROR, f"the cluster refused: {refusal}", refusal.retryable)

    async def abandon(self, lost: LostAttempt) -> None:
        """While the run goes on, its next attempt adopts what is there; afterwards nobody does."""
        if not lost.ended:
            return
        async with Cluster.reached(self._where) as cluster:
            await remove(cluster, lost.run_id, lost.attempt)
