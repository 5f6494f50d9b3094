"""Deleting what the attempts of a run have made in a cluster."""

from rota.executors.kubernetes.cluster import JOBS, SECRETS, Cluster, Refused
from rota.executors.kubernetes.manifest import attempt_of, name_of
from rota.model.ids import RunId


async def remove(cluster: Cluster, run_id: RunId, attempt: int) -> bool:
    """Delete what the attempts of a run up to this one have made, the Job in the foreground: it goes after its pod.
    What a later attempt has adopted stays."""
    if not await delete_secret(cluster, run_id, attempt):
        return False
    while (job := await cluster.find(JOBS, name_of(run_id))) is not None:
        if attempt_of(job) > attempt:
            return False
        about = job["metadata"]
        try:
            just_this = {"uid": about["uid"], "resourceVersion": about["resourceVersion"]}
            await cluster.delete(JOBS, about["name"], propagationPolicy="Foreground", preconditions=just_this)
            return True
        except Refused as refusal:
            if refusal.status != 409:
                raise
    return True


async def delete_secret(cluster: Cluster, run_id: RunId, attempt: int) -> bool:
    """False if it belongs to a later attempt."""
    while (secret := await cluster.find(SECRETS, name_of(run_id))) is not None:
        if attempt_of(secret) > attempt:
            return False
        about = secret["metadata"]
        try:
            just_this = {"uid": about["uid"], "resourceVersion": about["resourceVersion"]}
            await cluster.delete(SECRETS, about["name"], preconditions=just_this)
            return True
        except Refused as refusal:
            if refusal.status != 409:
                raise
    return True
