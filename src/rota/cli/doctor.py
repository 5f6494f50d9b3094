"""`rota doctor`: is everything as it should be, and if not, what to do."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import click

from rota.cli import options
from rota.daemon import database
from rota.db import health, isolation
from rota.errors import RotaError
from rota.settings import Settings

LARGEST_SKEW = 5.0


class Finding(NamedTuple):
    good: bool
    about: str
    told: str


@click.command("doctor")
@options.home
def command(home: Path | None) -> None:
    """Check the settings, the database and the fleet. Ends with 1 if something is wrong."""
    findings = asyncio.run(_examine(home))
    for finding in findings:
        mark = click.style("ok  ", fg="green") if finding.good else click.style("look", fg="yellow")
        click.echo(f"{mark}  {finding.about}: {finding.told}")
    sys.exit(0 if all(finding.good for finding in findings) else 1)


async def _examine(home: Path | None) -> list[Finding]:
    try:
        settings = options.settings_with(home=home)
        return [Finding(True, "settings", f"home {settings.home}"), *[each async for each in _database(settings)]]
    except RotaError as refused:
        return [Finding(False, refused.field or "start", refused.message)]


async def _database(settings: Settings) -> AsyncIterator[Finding]:
    async with database(settings) as (db, used), db.connection() as conn:
        version = conn.info.server_version
        where = "ROTA_DATABASE_URL" if settings.database_url else "embedded"
        yield Finding(True, "database", f"PostgreSQL {version // 10000}.{version % 10000}, {where}")
        role = await isolation.role_of(db, conn)
        told = (
            f"on, as {role}"
            if role
            else f"off. Let an administrator of the database run: {await isolation.advice(conn)}"
        )
        yield Finding(bool(role), "row-level security", told)
        seen = await health.examine(conn, now=time.time(), dead_after=used.timeouts.dead)
        yield Finding(seen.skew < LARGEST_SKEW, "clock", f"{seen.skew:.1f} s from the database's")
        yield Finding(seen.parked == 0, "triggers", f"{seen.parked} parked because they cannot be evaluated")
        yield Finding(seen.workers > 0, "workers", f"{seen.workers} alive")
