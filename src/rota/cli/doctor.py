"""`rota doctor`: is everything as it should be, and if not, what to do."""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import psycopg

from rota.access import key_ring, sealing
from rota.cli import options
from rota.cli.operating import reason
from rota.daemon import database
from rota.db import health, isolation, sealed, triggers
from rota.db.embedded import has_data
from rota.db.migrate import missing, refuse_newer
from rota.db.pool import Connection, check
from rota.errors import CannotStart, RotaError
from rota.home import describe_exposure
from rota.settings import Settings
from rota.worker import choose_sandbox

LARGEST_SKEW = 5.0
MOST_NAMED = 3


class Finding(NamedTuple):
    good: bool
    about: str
    told: str


@click.command("doctor")
@options.home
def command(home: Path | None) -> None:
    """Check the settings, the database and the fleet; changes nothing. Ends with 1 if something is wrong."""
    findings = asyncio.run(examine(home))
    for finding in findings:
        mark = click.style("ok  ", fg="green") if finding.good else click.style("look", fg="yellow")
        click.echo(f"{mark}  {finding.about}: {finding.told}")
    sys.exit(0 if all(finding.good for finding in findings) else 1)


async def examine(home: Path | None) -> list[Finding]:
    """What was found, up to where it could not go on."""
    found: list[Finding] = []
    try:
        settings = options.settings_with(home=home)
        found.append(Finding(True, "settings", f"home {settings.home}"))
        found.append(await _sandbox(settings))
        async for each in _database(settings):
            found.append(each)  # noqa: PERF401 — each as it comes, so that what was found before a failure is told too
    except RotaError as refused:
        found.append(Finding(False, refused.field or "start", refused.message))
    except psycopg.Error as failure:
        found.append(Finding(False, "database", reason(failure)))
    return found


async def _database(settings: Settings) -> AsyncIterator[Finding]:
    """Looked at as it is: who asks has perhaps not decided to update."""
    if not settings.database_url and not has_data(settings.home):
        yield Finding(False, "database", "there is none yet; the first start makes one in the home")
        return
    async with database(settings, as_it_is=True) as (db, used), db.connection() as conn:
        version = conn.info.server_version
        where = "ROTA_DATABASE_URL" if settings.database_url else "embedded"
        yield Finding(True, "database", f"PostgreSQL {version // 10000}.{version % 10000}, {where}")
        if pending := await missing(conn):
            yield Finding(False, "schema", _pending(pending))
            return  # the rest is about tables that are not there, or are others
        await refuse_newer(conn)
        role = await isolation.role_of(db, conn)
        told = (
            f"on, as {role}"
            if role
            else f"off. Let an administrator of the database run: {await isolation.advice(conn)}"
        )
        yield Finding(bool(role), "row-level security", told)
        yield await _notifications(conn, used)
        yield await _vault(conn, used)
        yield _home(used.home)
        seen = await health.examine(conn, now=time.time(), dead_after=used.timeouts.dead)
        yield Finding(seen.skew < LARGEST_SKEW, "clock", f"{seen.skew:.1f} s from the database's")
        yield Finding(seen.parked == 0, "triggers", f"{seen.parked} parked because they cannot be evaluated")
        overdue = await triggers.count_overdue(conn)
        yield Finding(overdue == 0, "schedule", _overdue(overdue))
        yield Finding(seen.workers > 0, "workers", f"{seen.workers} alive")


async def _sandbox(settings: Settings) -> Finding:
    """Tried out on this machine, where workers of these settings would run."""
    if not settings.local_agents:
        return Finding(True, "sandbox", "not needed: ROTA_LOCAL_AGENTS is off")
    with ExitStack() as stack:
        if not (settings.home / "sessions").is_dir():  # nothing is made in a home by looking at it
            elsewhere = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rota-doctor-")))
            settings = replace(settings, home=elsewhere)
        sandbox = await asyncio.to_thread(choose_sandbox, settings)
    return Finding(sandbox.name == "guard", "sandbox", sandbox.describe())


def _overdue(count: int) -> str:
    if not count:
        return "no trigger is overdue"
    what = "trigger is" if count == 1 else "triggers are"
    return (
        f"{count} {what} due for more than a minute and did not fire. Check that a process with the part scheduler "
        "runs, its log for service.failed, and pg_stat_activity for a transaction that locks triggers or automations."
    )


def _pending(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    what = "migration" if len(names) == 1 else "migrations"
    return f"{len(names)} {what} pending ({shown}): the next start of Rota applies them, so take a backup first"


async def _notifications(conn: Connection, settings: Settings) -> Finding:
    """Without them everything still happens, by polling; who looks why it is slow finds it here."""
    try:
        if settings.listen_url:
            await check(settings.listen_url, field="ROTA_LISTEN_URL")
        if await health.hears(conn, settings.listen_url or settings.database_url):
            return Finding(True, "notifications", "they arrive")
        told = (
            "they do not arrive, so Rota only polls. ROTA_LISTEN_URL must lead to this database, and not by PgBouncer."
        )
    except CannotStart as refused:
        told = f"Rota only polls. {refused.message}"
    return Finding(False, "notifications", told)


def _home(home: Path) -> Finding:
    exposure = describe_exposure(home)
    return Finding(exposure is None, "home", exposure or "closed to other users")


async def _vault(conn: Connection, settings: Settings) -> Finding:
    """Looked at, not made: who asks may be another user than who runs Rota."""
    file = settings.home / key_ring.FILE
    if not settings.vault_keys and not file.exists() and not await sealed.counts(conn):
        return Finding(True, "vault", "nothing is sealed yet; the first start makes a key")
    try:
        vault = await sealing.open_for(conn, settings.home, settings.vault_keys)
    except CannotStart as refused:
        return Finding(False, "vault", refused.message)
    return Finding(True, "vault", f"opens what is sealed, keys {', '.join(vault.key_ids)}")
