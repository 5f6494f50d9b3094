"""`rota backup`: everything that a server keeps in one file, while it runs."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rota.backup.archive import Manifest
from rota.backup.making import back_up
from rota.cli import options, showing
from rota.cli.operating import as_progress, refused_by_database, stoppable
from rota.daemon import server
from rota.db.embedded import has_data
from rota.db.pool import check
from rota.errors import CannotStart
from rota.settings import Settings


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@options.home
@click.option("--with-keys", is_flag=True, help="With the vault's keys, so that the file can reveal credentials")
@click.option("--json", "as_json", is_flag=True, help="A JSON object")
def command(file: Path, home: Path | None, with_keys: bool, as_json: bool) -> None:
    """Write the database and the artifacts to FILE, which must not exist yet, while Rota runs.

    The directories of sessions are not in it. Without --with-keys, neither are the vault's keys: keep vault.keys (or
    ROTA_VAULT_KEYS) elsewhere, because without them nobody can read the credentials in the backup.
    """
    settings = options.settings_with(home=home)
    with stoppable(), refused_by_database("nothing was written"):
        manifest = asyncio.run(_back_up(settings, file, with_keys=with_keys))
    _warn(manifest)
    size = file.stat().st_size
    if as_json:
        click.echo(showing.as_json({"file": str(file), "bytes": size, **summary(manifest)}, indent=None))
    else:
        click.echo(f"{file}: {size:,} bytes, {told(manifest)}.")


async def _back_up(settings: Settings, file: Path, *, with_keys: bool) -> Manifest:
    if not settings.database_url and not has_data(settings.home):
        raise CannotStart(
            f"There is no database in {settings.home}. Name the home of your Rota with --home, or its database with "
            "ROTA_DATABASE_URL.",
            code="no_database",
            field="home",
        )
    async with server(settings) as (used, owner_url):
        await check(owner_url)
        return await back_up(used, owner_url, file, with_keys=with_keys, progress=as_progress)


def summary(manifest: Manifest) -> dict[str, Any]:
    """What `--json` says of a backup."""
    kept = ("rota", "made_at", "artifacts", "artifact_bytes")
    facts = {name: value for name, value in asdict(manifest).items() if name in kept}
    return {
        **facts, "schema": manifest.schema[-1][0], "rows": manifest.rows, "keys": manifest.keys is not None,
        "missing": manifest.missing,
    }  # fmt: skip


def told(manifest: Manifest) -> str:
    keys = "with" if manifest.keys else "without"
    return f"{manifest.rows:,} rows, {manifest.artifacts:,} artifacts, {keys} the vault's keys"


def _warn(manifest: Manifest) -> None:
    if manifest.missing:
        _say(f"{len(manifest.missing)} artifacts are not in the backup: their contents are missing or damaged.")
    if manifest.keys:
        _say("The file contains the vault's keys: whoever reads it can read every credential. Keep it secret.")
    else:
        _say("The vault's keys are not in the file: without them nobody can read its credentials. Keep them elsewhere.")


def _say(text: str) -> None:
    click.secho(f"rota: {text}", fg="yellow", err=True)
