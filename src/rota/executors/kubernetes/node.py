"""Whether the node of a pod is lost: its machine is gone, and its Node object is not."""

import time

from rota.executors.kubernetes import words
from rota.executors.kubernetes.manifest import Object

SILENT_SECONDS = 330.0  # a cluster gives a silent node up after 300
DELETED_SECONDS = 30.0


class NodeWatch:
    """Judges by the pod alone, which needs no right to read nodes or leases.

    A silent node may come back, so it is lost only after the time that the cluster itself waits, or when the cluster
    has deleted the pod and nobody confirms its end.
    """

    def __init__(self) -> None:
        self.silent_since: float | None = None
        self._deleted_since: float | None = None

    @property
    def is_in_doubt(self) -> bool:
        return self.silent_since is not None or self._deleted_since is not None

    def is_lost(self, pod: Object | None) -> bool:
        if pod is None or words.ended(pod) or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            self.silent_since = self._deleted_since = None
            return False
        now = time.monotonic()
        self.silent_since = (self.silent_since or now) if words.node_is_silent(pod) else None
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted_since = self._deleted_since or now
        return self._is_silent_too_long(pod, now) or self._is_deleted_too_long(pod, now)

    def _is_silent_too_long(self, pod: Object, now: float) -> bool:
        longest = max(SILENT_SECONDS, words.tolerated_silence(pod))
        return self.silent_since is not None and now - self.silent_since >= longest

    def _is_deleted_too_long(self, pod: Object, now: float) -> bool:
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
        return self._deleted_since is not None and now - self._deleted_since >= grace + DELETED_SECONDS
