"""The kind `kubernetes`: an agent is a Job of a cluster, named after its run."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from rota.errors import Invalid
from rota.executors.ending import misconfigured
from rota.model import agent_config
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.kubernetes_config import read_kubernetes
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
        self._where = {"kubeconfig": kubeconfig, "context": context, "namespace": namespace}
        self._url, self._grace, self._patience = url, grace, patience

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return agent_config.check(self.kind, config)

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        clusters, attempts = await asyncio.to_thread(_library)
        try:
            config = read_kubernetes(assignment.config)
            async with clusters.Cluster.reached(clusters.Where(**self._where)) as cluster:
                attempt = attempts.Attempt(
                    cluster, assignment, config, desk, grace=self._grace, patience=self._patience, url=self._url
                )
                outcome: Outcome = await attempt.carry_out()
        except Invalid as mistake:
            return misconfigured(mistake)
        except clusters.Unreachable as failure:
            return Failed(ErrorClass.EXECUTOR_ERROR, f"the cluster cannot be reached: {failure}")
        except clusters.Refused as refusal:
            return Failed(ErrorClass.EXECUTOR_ERROR, f"the cluster refused: {refusal}", refusal.passing)
        return outcome

    async def abandon(self, lost: LostAttempt) -> None:
        """While the run goes on, its next attempt adopts what is there; afterwards nobody does."""
        if not lost.ended:
            return
        clusters, attempts = await asyncio.to_thread(_library)
        async with clusters.Cluster.reached(clusters.Where(**self._where)) as cluster:
            await attempts.remove(cluster, lost.run_id, lost.attempt)


def _library() -> tuple[Any, Any]:
    """What needs the client's library, which takes a second to import: when an agent runs, and not on the loop."""
    names = ("rota.executors.kubernetes.cluster", "rota.executors.kubernetes.attempt")
    return import_module(names[0]), import_module(names[1])
