"""The keys of the vault and what is sealed with them: checked at the start, turned while Rota runs."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from uuid import UUID

from rota.access import key_ring
from rota.access.vault import Vault, open_vault
from rota.db import sealed
from rota.db.pool import Connection, Database
from rota.db.sealed import Sealed
from rota.errors import Broken, CannotStart, Conflict

BATCH = 100
SAMPLES = 5


async def open_for(conn: Connection, home: Path, keys: str = "") -> Vault:
    """The vault, sure to open what is stored. Without its keys nothing starts: a new ring would only hide the loss. A
    row that somebody changed keeps nobody from starting while others show that the key is right."""
    samples = await sealed.samples(conn, SAMPLES)
    if samples and not keys and not (home / key_ring.FILE).exists():
        raise CannotStart(
            f"The database holds sealed secrets, but the vault's keys are not in {home / key_ring.FILE}."
            " Put that file back from the backup, or give the keys by ROTA_VAULT_KEYS.",
            code="vault_key_missing",
            field="ROTA_VAULT_KEYS",
        )
    vault = open_vault(home, keys)
    for _, of_key in groupby(samples, lambda each: each.key_id):
        _must_open_some(vault, list(of_key))
    return vault


def _must_open_some(vault: Vault, samples: Sequence[Sealed]) -> None:
    for each in samples:
        try:
            vault.unseal(each.sealed, each.place)
            return
        except Broken as broken:
            failure = broken
    raise CannotStart(_why(failure, samples[0]), code=failure.code, field="ROTA_VAULT_KEYS")


def _why(failure: Broken, sample: Sealed) -> str:
    if failure.code == "vault_key_missing":
        return (
            f"The database holds secrets sealed with the key {sample.key_id!r}, which is not in the vault's ring."
            " Put it back from the backup; keys may go once `rota keys list` shows nothing sealed with them."
        )
    return (
        f"The vault's key {sample.key_id!r} does not open what was sealed with it ({sample.place}):"
        " it is another key of the same name, or that row was changed."
    )


async def reseal(db: Database, vault: Vault, *, told: Callable[[int], None] = lambda _: None) -> int:
    """Seal everything with the newest key, in batches, beside those who work. How much it was.

    What does not open is passed over, and named at the end.
    """
    done, broken = 0, dict[UUID, str]()
    while True:
        async with db.transaction() as conn:
            batch = await sealed.stale(conn, vault.newest, limit=BATCH, passed_over=broken)
            failed = await _reseal(conn, vault, batch)
        if not batch:
            break
        broken |= failed
        done += len(batch) - len(failed)
        told(len(batch))
    if broken:
        names = "".join(f"\n  {each}" for each in broken.values())
        raise Broken(f"{done} secret(s) were sealed anew. Save these anew yourself:{names}", code="vault_tampered")
    return done


async def _reseal(conn: Connection, vault: Vault, batch: Sequence[Sealed]) -> dict[UUID, str]:
    """Seal a batch anew; what does not open, by its id."""
    broken = {}
    for each in batch:
        try:
            opened = vault.unseal(each.sealed, each.place)
        except Broken as failure:
            broken[each.id] = f"{each.place}: {failure.message}"
        else:
            await sealed.reseal(conn, each, vault.seal(opened, each.place))
    return broken


async def forget(conn: Connection, home: Path, key_id: str) -> None:
    """Take a key from the ring that nothing is sealed with. Who is just sealing something is waited for."""
    await sealed.wait_for_writers(conn)
    used = (await sealed.counts(conn)).get(key_id, 0)
    if used:
        raise Conflict(
            f"{used} secret(s) are sealed with the key {key_id!r}; `rota keys reseal` seals them with the newest.",
            code="key_in_use",
        )
    key_ring.forget(home, key_id)
