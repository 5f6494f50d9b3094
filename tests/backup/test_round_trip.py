"""What was backed up is there again after a restore: every row, every artifact, and nothing of what came later."""

import hashlib
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rota import __version__
from rota.access import key_ring
from rota.backup.archive import KEYS
from rota.db import dump
from rota.db.isolation import UNPROTECTED
from rota.db.migrate import migrate, migrations
from rota.errors import Broken, CannotStart, Conflict, Invalid
from rota.sessions.shelves import key_of
from support.lived_in import live_in

from .conftest import Place, contents_of, owned, tables_in

OLDER = 30  # migrations: before the narrow tables of live runs had their present columns
CONTENT = "SELECT workspace_id, sha256 FROM artifacts WHERE sha256 IS NOT NULL"


def keep_content(place: Place, content: bytes) -> tuple[UUID, bytes]:
    """Have the artifact of the lived-in database refer to content that is there."""
    sha256 = hashlib.sha256(content).digest()
    with psycopg.connect(place.url) as conn:
        [(workspace_id,)] = conn.execute(
            "SELECT DISTINCT workspace_id FROM artifacts WHERE sha256 IS NOT NULL"
        ).fetchall()
        conn.execute("INSERT INTO contents (workspace_id, sha256, size) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                     [workspace_id, sha256, len(content)])  # fmt: skip
        conn.execute("UPDATE artifacts SET sha256 = %s, size = %s WHERE sha256 IS NOT NULL", [sha256, len(content)])
    file = place.home / "artifacts" / key_of(workspace_id, sha256)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return workspace_id, sha256


async def test_every_row_of_every_table_comes_back(lived_in: Place, empty: Place, tmp_path: Path) -> None:
    """The owners are different and no superusers, so row-level security holds for both."""
    keep_content(lived_in, b"The report.")
    before = contents_of(lived_in.url)
    assert all(before.values()), "every table has rows"
    manifest = await lived_in.back_up(tmp_path / "file")
    assert manifest.rota == __version__
    assert manifest.schema == [(each.number, each.name) for each in migrations()]
    assert manifest.rows == sum(len(rows) for table, rows in before.items() if table not in dump.DERIVED)
    assert (manifest.missing, manifest.artifacts, manifest.artifact_bytes) == ([], 1, 11)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    await empty.restore(tmp_path / "file")
    assert contents_of(empty.url) == before
    with psycopg.connect(empty.url) as conn:
        assert conn.execute(UNPROTECTED.encode()).fetchall() == []
        assert conn.execute("SELECT number, name FROM migrations ORDER BY 1").fetchall() == manifest.schema
    assert await migrate(empty.url) == []


async def test_the_content_of_an_artifact_comes_back(lived_in: Place, empty: Place, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    kept = keep_content(lived_in, content)
    await lived_in.back_up(tmp_path / "file")
    await empty.restore(tmp_path / "file")
    assert (empty.home / "artifacts" / key_of(*kept)).read_bytes() == content
    assert stat.S_IMODE((empty.home / "artifacts").stat().st_mode) == 0o700
    assert os.listdir(empty.home / "artifacts" / "incoming") == []


@pytest.mark.parametrize("damage", ["gone", "other", "longer"])
async def test_content_that_is_lost_does_not_stop_a_backup_and_is_named(
    damage: str, lived_in: Place, empty: Place, tmp_path: Path
) -> None:
    kept = keep_content(lived_in, b"The report.")
    file = lived_in.home / "artifacts" / key_of(*kept)
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"Xhe report." if damage == "other" else b"The report. And more.")
    manifest = await lived_in.back_up(tmp_path / "file")
    assert manifest.missing == [f"artifacts/{key_of(*kept)}"]
    await empty.restore(tmp_path / "file")
    assert contents_of(empty.url) == contents_of(lived_in.url)
    assert not (empty.home / "artifacts" / key_of(*kept)).exists()


async def test_a_store_that_cannot_be_read_makes_no_backup(lived_in: Place, tmp_path: Path) -> None:
    """It may be readable in a moment, so its contents are not taken for missing."""
    file = lived_in.home / "artifacts" / key_of(*keep_content(lived_in, b"Another report."))
    file.unlink()
    file.mkdir()
    with pytest.raises(Broken) as refused:
        await lived_in.back_up(tmp_path / "file")
    file.rmdir()
    assert refused.value.code == "content_unreadable"
    assert os.listdir(tmp_path) == []


async def test_what_is_written_meanwhile_is_not_in_the_backup(lived_in: Place, empty: Place, tmp_path: Path) -> None:
    """Runs come and end while tables are copied: the backup shows the instant at which it began."""
    keep_content(lived_in, b"The report.")
    before = contents_of(lived_in.url)
    written = []

    def write() -> None:
        now = datetime.now(UTC)
        with psycopg.connect(lived_in.url) as conn:
            conn.execute("UPDATE workspaces SET name = %s", [f"Changed at {now}"])
            conn.execute("INSERT INTO events (workspace_id, session_id, seq, kind, data) "
                         "SELECT workspace_id, id, last_seq + 1, 'output', '{}' FROM sessions")  # fmt: skip
            conn.execute("UPDATE sessions SET last_seq = last_seq + 1")
            conn.execute("DELETE FROM deliveries")
        written.append(now)

    @contextmanager
    def progress(label: str, _: int) -> Iterator[Callable[[int], None]]:
        yield lambda rows: write() if rows and label == "Tables" and not written else None

    await lived_in.back_up(tmp_path / "file", progress=progress)
    assert written
    await empty.restore(tmp_path / "file")
    assert contents_of(empty.url) == before
    with psycopg.connect(lived_in.url) as conn, psycopg.connect(empty.url) as original:
        rows = original.execute("SELECT workspace_id, session_id, seq, role, acked_at FROM deliveries").fetchall()
        conn.cursor().executemany("INSERT INTO deliveries VALUES (%s, %s, %s, %s, %s)", rows)


async def test_a_backup_of_an_older_schema_is_brought_up_to_date(server_url: str, empty: Place, tmp_path: Path) -> None:
    with owned(server_url, "CREATEROLE") as url:
        old = Place(url, tmp_path / "old")
        live_in(url, migrations()[:OLDER])
        manifest = await old.back_up(tmp_path / "file")
        assert manifest.schema[-1][0] == OLDER
        await empty.restore(tmp_path / "file")
        await migrate(url)
        after, expected = contents_of(empty.url), contents_of(url)
    # Columns whose migration fills them at random or with the present time.
    for side in (after, expected):
        for row in [*side["logins"], *side["former_credentials"]]:
            row["id"] = None
    assert {table: len(rows) for table, rows in after.items()} == {t: len(rows) for t, rows in expected.items()}
    assert {t: sorted(rows, key=repr) for t, rows in after.items()} == {
        t: sorted(rows, key=repr) for t, rows in expected.items()
    }


async def test_keys_are_in_the_file_only_if_they_are_asked_for(lived_in: Place, empty: Place, tmp_path: Path) -> None:
    lived_in.home.mkdir(parents=True, exist_ok=True)
    used = {"k1": b"1" * 32, "k2": b"2" * 32}
    (lived_in.home / key_ring.FILE).write_text(key_ring.as_text(used))
    try:
        await lived_in.back_up(tmp_path / "without")
        await lived_in.back_up(tmp_path / "with", with_keys=True)
    finally:
        (lived_in.home / key_ring.FILE).unlink()
    assert await empty.restore(tmp_path / "with") == {"k1"}
    assert dict(key_ring.open_ring(empty.home, may_make=False).keys) == used
    assert stat.S_IMODE((empty.home / key_ring.FILE).stat().st_mode) == 0o600
    with pytest.raises(Conflict) as refused:
        await empty.restore(tmp_path / "without")
    assert refused.value.code == "not_empty"
    assert KEYS not in zipfile.ZipFile(tmp_path / "without").namelist()


async def test_keys_that_do_not_open_everything_are_no_backup_with_keys(lived_in: Place, tmp_path: Path) -> None:
    for text in (None, key_ring.as_text({"k9": b"9" * 32})):
        if text:
            lived_in.home.mkdir(parents=True, exist_ok=True)
            (lived_in.home / key_ring.FILE).write_text(text)
        with pytest.raises(CannotStart) as refused:
            await lived_in.back_up(tmp_path / "file", with_keys=True)
        assert refused.value.code == "vault_key_missing"
        assert os.listdir(tmp_path) == []
    (lived_in.home / key_ring.FILE).unlink()


async def test_a_home_with_other_keys_is_left_as_it_is(lived_in: Place, empty: Place, tmp_path: Path) -> None:
    lived_in.home.mkdir(parents=True, exist_ok=True)
    (lived_in.home / key_ring.FILE).write_text(key_ring.as_text({"k1": b"1" * 32}))
    await lived_in.back_up(tmp_path / "file", with_keys=True)
    (lived_in.home / key_ring.FILE).unlink()
    empty.home.mkdir()
    other = key_ring.as_text({"k1": b"2" * 32})
    (empty.home / key_ring.FILE).write_text(other)
    with pytest.raises(Conflict) as refused:
        await empty.restore(tmp_path / "file")
    assert refused.value.code == "not_empty"
    assert (empty.home / key_ring.FILE).read_text() == other
    assert tables_in(empty.url) == 0


async def test_nothing_is_written_over(lived_in: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Invalid) as refused:
        await lived_in.back_up(tmp_path / "file")
    assert refused.value.field == "FILE"
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


async def test_a_place_that_cannot_be_written_is_refused(lived_in: Place, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        await lived_in.back_up(tmp_path / "nowhere" / "file")
    assert refused.value.field == "FILE"


async def test_rows_that_the_user_cannot_see_are_not_left_out_silently(
    lived_in: Place, server_url: str, tmp_path: Path
) -> None:
    with owned(server_url, "CREATEROLE") as other, psycopg.connect(lived_in.url, autocommit=True) as conn:
        user = conninfo_to_dict(other)["user"]
        conn.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}".encode())
        url = make_conninfo(lived_in.url, user=str(user), password=str(user))
        with pytest.raises(CannotStart) as refused:
            await Place(url, tmp_path / "home").back_up(tmp_path / "file")
        assert refused.value.code == "rows_hidden"
        assert not (tmp_path / "file").exists()
        conn.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {user}".encode())


async def test_a_schema_that_changes_meanwhile_makes_no_backup(lived_in: Place, tmp_path: Path) -> None:
    @contextmanager
    def progress(*_: object) -> Iterator[Callable[[int], None]]:
        with psycopg.connect(lived_in.url) as conn:
            conn.execute(
                "INSERT INTO migrations (number, name) VALUES (9999, 'of_a_newer_rota') ON CONFLICT DO NOTHING"
            )
        yield lambda _: None

    try:
        with pytest.raises(Conflict) as refused:
            await lived_in.back_up(tmp_path / "file", progress=progress)
        assert refused.value.code == "schema_changed"
        with pytest.raises(CannotStart) as newer:
            await lived_in.back_up(tmp_path / "file")
        assert newer.value.code == "schema_newer"
    finally:
        with psycopg.connect(lived_in.url) as conn:
            conn.execute("DELETE FROM migrations WHERE number = 9999")
    assert os.listdir(tmp_path) == []


async def test_a_database_without_rota_is_not_backed_up(empty: Place, tmp_path: Path) -> None:
    with pytest.raises(CannotStart) as refused:
        await empty.back_up(tmp_path / "file")
    assert refused.value.code == "no_database"


async def test_everything_in_the_schema_is_copied(lived_in: Place) -> None:
    """A sequence, a view or a partition would need code of its own."""
    with psycopg.connect(lived_in.url) as conn:
        kinds = conn.execute("SELECT array_agg(DISTINCT relkind::text) FROM pg_class "
                             "WHERE relnamespace = 'public'::regnamespace").fetchall()  # fmt: skip
        assert set(kinds[0][0]) == {"r", "i"}
