"""What is damaged, foreign or hostile is refused before anything is kept, and what was begun is taken back."""

import json
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from rota.backup.archive import Reader
from rota.backup.restoring import restore
from rota.errors import CannotStart, Conflict, Invalid, Refused, RotaError
from rota.settings import Settings
from support.rota_process import ROTA, clean_environment
from support.waiting import until

from .conftest import Place, contents_of, owned, silent, tables_in

pytestmark = pytest.mark.asyncio(loop_scope="module")
Members = dict[str, bytes]
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def file(lived_in: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A backup that is as it should be, with one artifact."""
    file = tmp_path_factory.mktemp("file") / "good"
    with psycopg.connect(lived_in.url) as conn:
        found = conn.execute(
            "SELECT DISTINCT workspace_id, encode(sha256, 'hex') FROM artifacts WHERE sha256 IS NOT NULL"
        )
        [(workspace_id, _)] = found.fetchall()
        conn.execute(
            "INSERT INTO contents (workspace_id, sha256, size) VALUES (%s, sha256('report'), 6)", [workspace_id]
        )
        conn.execute("UPDATE artifacts SET sha256 = sha256('report'), size = 6 WHERE sha256 IS NOT NULL")
        [(name,)] = conn.execute("SELECT encode(sha256('report'), 'hex')").fetchall()
    content = lived_in.home / "artifacts" / str(workspace_id) / name[:2] / name
    content.parent.mkdir(parents=True)
    content.write_bytes(b"report")
    await lived_in.back_up(file)
    yield file


def changed(file: Path, to: Path, change: Callable[[Members, dict[str, Any]], object]) -> Path:
    """A copy whose members and manifest were changed."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(members, manifest)
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("manifest.json", json.dumps(manifest))
    return to


def artifact(members: Members) -> str:
    return next(name for name in members if name.startswith("artifacts/"))


def add_row(members: Members, manifest: dict[str, Any]) -> None:
    """As somebody would who knows the size, but not that the rows are counted."""
    members["tables/throttles"] = b""
    manifest["tables"]["throttles"].update(
        bytes=0, sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


def rename_artifact(name: str) -> Callable[[Members, dict[str, Any]], None]:
    def rename(members: Members, _: dict[str, Any]) -> None:
        members[name] = members.pop(artifact(members))

    return rename


def drop_artifact(members: Members, manifest: dict[str, Any]) -> None:
    del members[artifact(members)]
    manifest.update(artifacts=0, artifact_bytes=0)


CHANGES: dict[str, Callable[[Members, dict[str, Any]], object]] = {
    "a member outside": lambda m, _: m.update({"../../escaped": b"x"}),
    "an absolute member": lambda m, _: m.update({"/tmp/escaped": b"x"}),
    "an artifact outside": rename_artifact("artifacts/../../../../escaped"),
    "an artifact of no workspace": rename_artifact("artifacts/" + "-" * 36 + "/aa/aa" + "0" * 62),
    "an artifact with another hash": rename_artifact("artifacts/" + "0" * 8 + "-0000-0000-0000-" + "0" * 12 + "/aa/aa" + "0" * 62),
    "an artifact that nothing names": lambda m, f: (
        m.update({artifact(m).replace("/artifacts", "")[:46] + "2d/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881": b"x"}),
        f.update(artifacts=2, artifact_bytes=7),
    ),
    "an artifact left out": drop_artifact,
    "another table": lambda m, _: m.update({"tables/pg_authid": b""}),
    "a table left out": lambda m, _: m.pop("tables/runs"),
    "a table of the system": lambda m, f: (m.update({"tables/pg_authid": b""}), f["tables"].update(pg_authid={"columns": ["a"], "rows": 0, "bytes": 0, "sha256": ""})),
    "a derived table": lambda m, f: (m.update({"tables/live_runs": b""}), f["tables"].update(live_runs={"columns": ["id"], "rows": 0, "bytes": 0, "sha256": ""})),
    "a column too many": lambda _, f: f["tables"]["runs"]["columns"].append("secret"),
    "a column twice": lambda _, f: f["tables"]["runs"]["columns"].append("id"),
    "a column that is SQL": lambda _, f: f["tables"]["runs"]["columns"].append('id") FROM PROGRAM \'true\' --'),
    "columns in another order": lambda _, f: f["tables"]["runs"]["columns"].reverse(),
    "a changed row": lambda m, _: m.update({"tables/users": m["tables/users"].replace(b"Ann", b"Eve")}),
    "fewer rows": add_row,
    "another size": lambda _, f: f["tables"]["runs"].update(bytes=5),
    "no table": lambda _, f: f.update(tables=[]),
    "no columns": lambda _, f: f["tables"]["runs"].pop("columns"),
    "a manifest of other types": lambda _, f: f.update(schema=7, missing={"a": 1}),
    "no schema": lambda _, f: f.update(schema=[]),
    "another schema": lambda _, f: f.update(schema=[[1, "create_another"]]),
    "another format": lambda _, f: f.update(format="one"),
    "keys that are missing": lambda _, f: f.update(keys="00"),
}  # fmt: skip


def contents(file: Path) -> bytes:
    return file.read_bytes()


def files_in(directory: Path) -> list[Path]:
    return [each for each in directory.rglob("*") if each.is_file()]


async def refused(place: Place, file: Path, code: str = "damaged_backup") -> None:
    with pytest.raises(RotaError) as refused:
        await place.restore(file)
    assert refused.value.code == code, refused.value
    assert refused.value.message
    assert tables_in(place.url) == 0
    assert files_in(place.home) == []


@pytest.fixture(scope="module")
def place(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where nothing is ever restored, so that all refusals can share it."""
    with owned(server_url, "CREATEROLE") as url:
        yield Place(url, tmp_path_factory.mktemp("refused") / "home")


@pytest.mark.parametrize("what", CHANGES)
async def test_a_changed_file_is_refused(what: str, file: Path, place: Place, tmp_path: Path) -> None:
    await refused(place, changed(file, tmp_path / "changed", CHANGES[what]))
    assert [
        each for each in (*files_in(tmp_path), Path("/tmp/escaped")) if each.name == "escaped" and each.exists()
    ] == []


async def test_a_file_of_a_newer_rota_says_so(file: Path, place: Place, tmp_path: Path) -> None:
    await refused(place, changed(file, tmp_path / "a", lambda _, f: f.update(format=2)), "backup_newer")
    newer = changed(file, tmp_path / "b", lambda _, f: f["schema"].append([9999, "of_tomorrow"]))
    await refused(place, newer, "backup_newer")


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
async def test_a_truncated_file_is_refused(kept: float, file: Path, place: Place, tmp_path: Path) -> None:
    whole = contents(file)
    (tmp_path / "cut").write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    await refused(place, tmp_path / "cut")


def read(file: Path) -> list[tuple[object, bytes]]:
    """Everything that a restore reads."""
    with Reader.of(file) as reader:
        tables: list[tuple[object, bytes]] = [(name, b"".join(reader.lines(name))) for name in reader.manifest.tables]
        return tables + [(sha256, b"".join(pieces)) for _, sha256, pieces in reader.contents()]


async def test_no_flipped_byte_goes_unnoticed(file: Path, tmp_path: Path) -> None:
    """Except where it changes nothing that is read, such as the time of a member."""
    whole, good = contents(file), read(file)
    noticed = 0
    for at in range(0, len(whole), len(whole) // 200):
        (tmp_path / "flipped").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            assert read(tmp_path / "flipped") == good
        except Invalid as refused:
            assert refused.code in {"damaged_backup", "backup_newer"}  # noqa: PT017 — either is right
            noticed += 1
    assert noticed > 100


async def test_what_is_no_backup_is_refused(place: Place, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "foreign", "w") as archive:
        archive.writestr("readme", "x")
    (tmp_path / "text").write_text("PGDMP")
    for name in ("foreign", "text"):
        await refused(place, tmp_path / name)
    for absent in (tmp_path / "absent", tmp_path):
        await refused(place, absent, "no_backup")


async def test_a_member_that_stands_there_twice_is_refused(file: Path, place: Place, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path / "twice")
    with zipfile.ZipFile(tmp_path / "twice", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("tables/users", "")
    await refused(place, tmp_path / "twice")


async def test_what_unpacks_to_more_than_there_is_room_for_is_refused_unread(
    file: Path, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(CannotStart) as told:
        await place.restore(file)
    assert told.value.code == "no_room"
    assert files_in(place.home) == []


async def test_rows_that_the_database_refuses_leave_nothing(file: Path, place: Place, tmp_path: Path) -> None:
    def leave_out_users(members: Members, manifest: dict[str, Any]) -> None:
        add_row(members, manifest)
        empty = dict(manifest["tables"]["throttles"], rows=0)
        members["tables/users"] = b""
        manifest["tables"]["users"].update({name: empty[name] for name in ("rows", "bytes", "sha256")})
        manifest["tables"]["throttles"].update(rows=0)

    await refused(place, changed(file, tmp_path / "changed", leave_out_users))


async def test_content_that_was_there_before_a_failed_restore_stays(
    file: Path, place: Place, tmp_path: Path, lived_in: Place
) -> None:
    """A restored Rota may be given the store of the one that was backed up."""
    store = tmp_path / "store"
    shutil.copytree(lived_in.home / "artifacts", store)
    before = files_in(store)
    with Reader.of(changed(file, tmp_path / "changed", add_row)) as reader, pytest.raises(Invalid) as told:
        await restore(Settings(home=place.home, database_url=place.url, artifacts_url=f"file://{store}"),
                      place.url, reader, None, progress=silent)  # fmt: skip
    assert told.value.code == "damaged_backup"
    assert files_in(store) == before
    assert len(before) == 1


async def test_a_database_that_is_not_empty_is_left_as_it_is(lived_in: Place, file: Path, tmp_path: Path) -> None:
    before = contents_of(lived_in.url)
    with pytest.raises(Conflict) as told:
        await Place(lived_in.url, tmp_path / "home").restore(file)
    assert (told.value.code, isinstance(told.value, Refused)) == ("not_empty", True)
    assert contents_of(lived_in.url) == before
    assert "home" not in os.listdir(tmp_path)


def rota(place: Place, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    settings = clean_environment(ROTA_DATABASE_URL=place.url, ROTA_HOME=str(place.home), **environment)
    pipe = subprocess.PIPE
    return subprocess.Popen([str(ROTA), *arguments], env=settings, stdout=pipe, stderr=pipe, text=True)


async def test_a_killed_restore_leaves_the_database_empty_and_can_be_repeated(
    file: Path, empty: Place, lived_in: Place
) -> None:
    killed = rota(empty, "restore", str(file), ROTA_TEST_FAILPOINT="restore.before_commit")
    _, said = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, said
    assert tables_in(empty.url) == 0
    again = rota(empty, "restore", str(file), "--json")
    answer, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert json.loads(answer)["missing_keys"] == ["k1"]
    assert "vault.keys" in said
    assert contents_of(empty.url) == contents_of(lived_in.url)


async def test_a_backup_that_is_stopped_leaves_no_file(lived_in: Place, tmp_path: Path) -> None:
    with psycopg.connect(lived_in.url) as conn:
        conn.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        stopped = rota(lived_in, "backup", str(tmp_path / "file"))
        with psycopg.connect(lived_in.url, autocommit=True) as look:

            async def waits() -> bool:
                return look.execute(WAITING).fetchone() == (1,)

            await until(waits)
        assert len(os.listdir(tmp_path)) == 1
        stopped.send_signal(signal.SIGTERM)
        _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, said
    assert "Traceback" not in said
    assert os.listdir(tmp_path) == []
