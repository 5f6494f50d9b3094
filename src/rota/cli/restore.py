"""`rota restore`: a backup into an empty home or database."""

import asyncio
from pathlib import Path

import click

from rota.access import key_ring
from rota.backup.archive import Manifest, Reader
from rota.backup.restoring import examine, restore
from rota.cli import options, showing
from rota.cli.backup import summary, told
from rota.cli.operating import as_progress, refused_by_database, stoppable
from rota.daemon import server
from rota.db.pool import check
from rota.settings import Settings


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@options.home
@click.option("--json", "as_json", is_flag=True, help="A JSON object")
def command(file: Path, home: Path | None, as_json: bool) -> None:
    """Fill a new home, or an empty database, from FILE, which `rota backup` wrote.

    A backup of an older Rota is brought up to date. If it fails, the database is left empty. Do not start the
    restored Rota while the one that was backed up still runs: both would fire the same schedules.
    """
    settings = options.settings_with(home=home)
    with stoppable(), refused_by_database("nothing was restored"):
        manifest, absent = asyncio.run(_restore(settings, file))
    if absent:
        click.secho(
            f"rota: The vault's keys {', '.join(sorted(absent))} are missing. Before you start Rota, copy the "
            f"vault.keys of the old home to {settings.home / key_ring.FILE}, or set ROTA_VAULT_KEYS.",
            fg="yellow",
            err=True,
        )
    if as_json:
        answer = {"file": str(file), **summary(manifest), "missing_keys": sorted(absent)}
        click.echo(showing.as_json(answer, indent=None))
    else:
        click.echo(f"Restored into {settings.home}: {told(manifest)}.")


async def _restore(settings: Settings, file: Path) -> tuple[Manifest, set[str]]:
    """The manifest, and ids of the vault's keys that are still missing."""
    with Reader.of(file) as reader:
        keys = examine(settings, reader)
        async with server(settings) as (used, owner_url):
            await check(owner_url)
            needed = await restore(used, owner_url, reader, keys, progress=as_progress)
        return reader.manifest, needed - _ring(settings)


def _ring(settings: Settings) -> set[str]:
    if not settings.vault_keys and not (settings.home / key_ring.FILE).exists():
        return set()
    return set(key_ring.open_ring(settings.home, settings.vault_keys, may_make=False).keys)
