"""Artifacts: in and out in pieces, kept by hash, never mistaken for a page, cleared away when nobody needs them."""

import asyncio
import errno
import hashlib
import os
import resource
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from rota.db import artifacts as rows
from rota.errors import CannotStart, Lost
from rota.model.artifact import named
from rota.model.ids import SessionId
from rota.sessions import artifacts
from rota.sessions.artifacts import Author, Depot
from rota.sessions.shelves import FileShelf, ObjectShelf, Shelf, open_shelf
from rota.watch.prune import PruneArtifacts
from support import api_client
from support.api_client import HOUR, UNKNOWN, Api, Office, Site, assert_ok, assert_refused

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api, address = api_client.site, api_client.office, api_client.api, api_client.address


@pytest_asyncio.fixture(loop_scope="module")
async def path(api: Api) -> str:
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Write."}))
    return f"/sessions/{run['session_id']}/artifacts"


async def upload(api: Api, path: str, name: str, content: bytes, kind: str = "", **params: Any) -> dict[str, Any]:
    headers = {"Content-Type": kind} if kind else {}
    return assert_ok(await api.send("POST", path, params={"name": name, **params}, content=content, headers=headers))


def files(office: Office) -> list[Path]:
    root = office.site.web.settings.home / "artifacts" / str(office.caller.workspace_id)
    return sorted(each for each in root.rglob("*") if each.is_file())


async def test_nothing_is_added_to_a_session_that_can_only_be_read(office: Office, api: Api, path: str) -> None:
    session_id = path.split("/")[2]
    await office.execute("UPDATE sessions SET status = 'archived' WHERE id = %s", session_id)
    answer = await api.send("POST", path, params={"name": "late.md"}, content=b"late")
    assert_refused(answer, 409, "session_archived")
    assert_refused(await api.post(path, {"uri": "https://example.org/pull/7"}), 409, "session_archived")
    assert assert_ok(await api.get(path), 200)["items"] == []


async def test_who_uploads_is_told_where_the_disk_takes_no_more(office: Office, api: Api, path: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        answer = await api.send("POST", path, params={"name": "large.bin"}, content=b"x" * 1_000_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_refused(answer, 500, "content_unkept")
    assert os.strerror(errno.EFBIG) in answer.json()["detail"]
    assert files(office) == []
    assert assert_ok(await api.get(path), 200)["items"] == []


async def test_an_upload_that_breaks_off_is_no_failure_of_ours(
    office: Office, api: Api, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sent it is gone, so nobody is answered; nothing is kept, and the log has no error to look into."""
    messages = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(_: Any) -> None: ...

    scope = {
        "type": "http", "method": "POST", "path": api.url(path), "query_string": b"name=half.bin", "http_version": "1.1",
        "headers": [(b"host", b"rota.test"), (b"authorization", f"Bearer {api.token}".encode())],
        "client": ("127.0.0.1", 1), "scheme": "http",
        "server": ("rota.test", 80), "root_path": "",
    }  # fmt: skip
    await office.site.app(scope, receive, send)
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    assert assert_ok(await api.get(path), 200)["items"] == []


# In and out --------------------------------------------------------------------------------------------------------


async def test_what_is_kept_comes_back_as_an_attachment(office: Office, api: Api, path: str) -> None:
    content = b"# Report\n\nAll is well \xe2\x80\x93 really.\n"
    kept = await upload(api, path, "Bericht für März.md", content, "text/markdown; charset=utf-8")
    assert (kept["name"], kept["media_type"], kept["size"]) == ("Bericht für März.md", "text/markdown", len(content))
    assert kept["sha256"] == hashlib.sha256(content).hexdigest()
    answer = await api.get(f"{path}/{kept['id']}/content")
    assert answer.content == content
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''Bericht%20f%C3%BCr%20M%C3%A4rz.md"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert (await api.get(path)).json()["items"] == [kept]
    [told] = [
        each["data"]
        for each in (await api.get(path.replace("artifacts", "events"))).json()["items"]
        if each["kind"] == "artifact"
    ]
    assert (told["artifact_id"], told["name"], told["sha256"]) == (kept["id"], kept["name"], kept["sha256"])


async def test_json_and_nothing_are_contents_like_any_other(api: Api, path: str) -> None:
    for content in (b'{"not": "a request"', b"", b"\0" * 10):
        kept = await upload(api, path, "data.json", content, "application/json")
        assert (await api.get(f"{path}/{kept['id']}/content")).content == content


async def test_a_large_one_passes_in_pieces(office: Office, api: Api, path: str, address: str) -> None:
    """Through a real server, several times as large as a request may be."""
    piece, count = os.urandom(1_000_000), 5

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    headers = {"Authorization": f"Bearer {api.token}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        kept = assert_ok(await client.post(api.url(path), params={"name": "large.bin"}, content=pieces()))
        async with client.stream("GET", api.url(f"{path}/{kept['id']}/content")) as answer:
            got = b"".join([each async for each in answer.aiter_bytes()])
    assert got == piece * count


async def test_the_same_content_is_kept_once_for_each_workspace(
    office: Office, api: Api, path: str, site: Site
) -> None:
    one, two = [await upload(api, path, f"{n}.txt", b"the same") for n in range(2)]
    assert (one["sha256"], one["id"] != two["id"]) == (two["sha256"], True)
    [kept] = files(office)
    assert kept.name == one["sha256"]
    theirs = await api_client.furnish(site)
    their_api = await theirs.api()
    run = assert_ok(await their_api.post("/agents/worker-bee/runs", {"prompt": "Write."}))
    await upload(their_api, f"/sessions/{run['session_id']}/artifacts", "x.txt", b"the same")
    assert len(files(theirs)) == 1
    assert files(theirs) != files(office)


async def test_who_gives_nothing_to_keep_or_no_hash_is_told_what_would_be_right(api: Api, path: str) -> None:
    told = assert_refused(await api.send("POST", path), 422, "invalid", "name")
    assert "`uri`" in told["detail"]
    told = assert_refused(await api.send("POST", path, params={"name": "a", "sha256": "00"}), 422, "invalid", "sha256")
    assert "64" in told["detail"]


async def test_content_that_was_damaged_on_its_way_is_refused(office: Office, api: Api, path: str) -> None:
    right = hashlib.sha256(b"right").hexdigest()
    await upload(api, path, "a", b"right", sha256=right.upper())
    answer = await api.send("POST", path, params={"name": "a", "sha256": right}, content=b"wrong")
    assert_refused(answer, 422, "wrong_hash", "sha256")
    assert len(files(office)) == 1
    assert not list((office.site.web.settings.home / "artifacts" / "incoming").iterdir())


async def test_content_that_was_damaged_where_it_is_kept_is_not_served_to_its_end(
    office: Office, api: Api, path: str, address: str
) -> None:
    kept = await upload(api, path, "a", b"x" * 300_000)
    [file] = files(office)
    file.write_bytes(b"x" * 299_999 + b"y")
    headers = {"Authorization": f"Bearer {api.token}"}
    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(api.url(f"{path}/{kept['id']}/content"))
    await upload(api, path, "again", b"x" * 300_000)  # mends it
    assert (await api.get(f"{path}/{kept['id']}/content")).content == b"x" * 300_000
    file.unlink()
    assert_refused(await api.get(f"{path}/{kept['id']}/content"), 404, "content_missing")


async def test_what_is_too_large_is_refused_and_leaves_nothing(office: Office, api: Api, path: str) -> None:
    depot = Depot(office.db, office.site.web.settings.home, "", largest=10)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"12345"

    with pytest.raises(Exception, match="at most 10 bytes") as told:
        async with depot.receive(pieces()):
            pytest.fail("it was taken")
    assert told.value.code == "artifact_too_large"  # type: ignore[attr-defined]
    assert not list((office.site.web.settings.home / "artifacts" / "incoming").iterdir())


async def test_something_outside_is_kept_by_its_uri(api: Api, path: str) -> None:
    kept = assert_ok(await api.post(path, {"uri": "https://example.org/pull/7", "name": "The pull request"}))
    assert (kept["uri"], kept["sha256"], kept["size"]) == ("https://example.org/pull/7", None, None)
    told = assert_refused(await api.get(f"{path}/{kept['id']}/content"), 404, "not_kept_here")
    assert told["uri"] == "https://example.org/pull/7"


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({}, "uri", "invalid"),
        ({"uri": "javascript:alert(1)"}, "uri", "invalid_uri"),
        ({"uri": "https://example.org", "size": 1}, "size", "invalid"),
        ({"uri": "https://example.org", "name": "../x"}, "name", "invalid_artifact_name"),
        ({"uri": "https://example.org", "media_type": "text"}, "media_type", "invalid_media_type"),
    ],
)
async def test_a_link_that_is_none_is_refused(api: Api, path: str, body: Any, field: str, code: str) -> None:
    assert_refused(await api.post(path, body), 422, code, field)
    assert (await api.get(path)).json()["items"] == []


async def test_what_is_not_there_is_not_found(api: Api, path: str) -> None:
    assert_refused(await api.get(f"{path}/{UNKNOWN}/content"), 404, "not_found")
    assert_refused(await api.get(f"/sessions/{UNKNOWN}/artifacts"), 404, "not_found")
    assert_refused(await api.send("POST", f"/sessions/{UNKNOWN}/artifacts?name=x", content=b"x"), 404, "not_found")


# Names and pages ---------------------------------------------------------------------------------------------------


ELSEWHERE = [
    "..", ".", "../../etc/passwd", "/etc/passwd", "a/../b", "a\nb", "a\r\nX-Evil: 1", "\x1b[31m", "..\\..\\x",
    "C:\\x", "\\\\host\\share", "c:x", "\u202egpj.exe", " ", "x" * 201, "x" * 30_000,
]  # fmt: skip


async def test_a_name_that_could_lead_elsewhere_is_refused_and_nothing_is_kept(
    office: Office, api: Api, path: str
) -> None:
    assert_refused(await api.send("POST", path, params={"name": "a\0.md"}, content=b"x"), 400, "nul_character")
    assert_refused(await api.post(path, {"uri": "https://example.org", "name": "a\0.md"}), 400, "nul_character")
    for name in ELSEWHERE:
        assert_refused(
            await api.send("POST", path, params={"name": name}, content=b"x"), 422, "invalid_artifact_name", "name"
        )
        answer = await api.post(path, {"uri": "https://example.org", "name": name})
        assert_refused(answer, 422, "invalid_artifact_name", "name")
    assert (await api.get(path)).json()["items"] == []
    assert files(office) == []


async def test_what_is_kept_lies_under_its_hash_whatever_it_is_called(office: Office, api: Api, path: str) -> None:
    names = ["..hidden", "passwd", "a'b\"c;d", "%2e%2e%2f", "CON", "~root", "$(reboot)", "日本語.txt", "-rf"]
    kept = [await upload(api, path, name, b"the same") for name in names]
    [file] = files(office)
    assert file.name == hashlib.sha256(b"the same").hexdigest()
    for name, each in zip(names, kept, strict=True):
        answer = await api.get(f"{path}/{each['id']}/content")
        told = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
        assert (each["name"], answer.headers["content-disposition"]) == (name, told)


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("page.html", "text/html", b"<script>alert(document.cookie)</script>"),
        ("drawing.svg", "image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'),
        ("page.xhtml", "application/xhtml+xml", b"<html/>"),
        ("sheet.xml", "text/xml", b'<?xml-stylesheet href="x.xsl"?><x/>'),
        ("code.js", "text/javascript", b"alert(1)"),
        ("guessed.html", "", b"<script>alert(1)</script>"),
        ("disguised.txt", "text/html", b"<script>alert(1)</script>"),
        ("disguised.png", "image/png", b"<script>alert(1)</script>"),
    ],
)
async def test_no_page_and_no_program_is_served_as_one(
    office: Office, api: Api, path: str, name: str, kind: str, content: bytes
) -> None:
    """By the API to who knows the address, and by a page of ours: saved to a file, never run."""
    kept = await upload(api, path, name, content, kind)
    answer = await api.get(f"{path}/{kept['id']}/content")
    assert answer.content == content
    assert answer.headers["content-type"] == ("image/png" if kind == "image/png" else "application/octet-stream")
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"


# Agents ------------------------------------------------------------------------------------------------------------


async def test_an_agent_that_lost_its_lease_leaves_nothing(office: Office, api: Api, path: str) -> None:
    at_work = await office.claim()
    author = Author(office.caller.workspace_id, at_work.assignment.session_id, at_work.id, at_work.assignment.attempt)
    async with office.db.transaction() as conn:
        kept = await artifacts.link(conn, author, named("x"), "https://example.org/")
    assert (kept["run_id"], kept["attempt"]) == (at_work.id, 1)
    await office.take_away("lease", at_work)
    with pytest.raises(Lost):
        async with office.db.transaction() as conn:
            await artifacts.link(conn, author, named("y"), "https://example.org/")
    assert [each["name"] for each in (await api.get(path)).json()["items"]] == ["x"]


# Clearing away -----------------------------------------------------------------------------------------------------


def depot_of(office: Office) -> Depot:
    return Depot(office.db, office.site.web.settings.home, "", largest=1_000_000)


async def _old(office: Office) -> None:
    await office.execute("UPDATE contents SET touched_at = now() - interval '2 days'")
    await office.execute("UPDATE artifacts SET created_at = now() - interval '2 days'")


async def test_content_that_nobody_refers_to_is_cleared_away_and_what_is_needed_stays(
    office: Office, api: Api, path: str
) -> None:
    kept = await upload(api, path, "needed", b"needed")
    gone = await upload(api, path, "gone", b"gone")
    await office.execute("DELETE FROM artifacts WHERE id = %s", gone["id"])
    assert await depot_of(office).clear() == 0  # touched too lately: somebody may be about to refer to it
    await _old(office)
    assert await depot_of(office).clear() == 1
    assert [each.name for each in files(office)] == [kept["sha256"]]
    again = await upload(api, path, "gone", b"gone")
    assert (await api.get(f"{path}/{again['id']}/content")).content == b"gone"


async def test_content_that_is_about_to_go_is_not_referred_to(office: Office, api: Api, path: str) -> None:
    gone = await upload(api, path, "gone", b"doomed")
    await office.execute("DELETE FROM artifacts WHERE id = %s", gone["id"])
    await _old(office)
    async with office.db.transaction() as conn:
        doomed = await rows.doom(conn, untouched=timedelta(days=1), limit=10)
    assert [sha256.hex() for _, sha256 in doomed] == [gone["sha256"]]
    assert_refused(await api.send("POST", path, params={"name": "x"}, content=b"doomed"), 503, "busy")
    assert await depot_of(office).clear() == 1  # also what a pass that was killed left doomed
    again = await upload(api, path, "x", b"doomed")
    assert (await api.get(f"{path}/{again['id']}/content")).content == b"doomed"


async def test_old_artifacts_go_and_what_broken_uploads_left(office: Office, api: Api, path: str) -> None:
    await upload(api, path, "old", b"old")
    await _old(office)
    left = office.site.web.settings.home / "artifacts" / "incoming" / "left"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert await PruneArtifacts(office.db, depot_of(office), keep=HOUR).once() > 0
    assert (await api.get(path)).json()["items"] == []
    assert (files(office), left.exists()) == ([], False)


# Shelves -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["files", "fsspec"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    return open_shelf(tmp_path, "" if request.param == "files" else f"file://{tmp_path}/store")


async def test_a_shelf_keeps_gives_and_deletes(shelf: Shelf, tmp_path: Path) -> None:
    assert isinstance(shelf, FileShelf | ObjectShelf)
    content = os.urandom(600_000)
    for _ in range(2):
        (tmp_path / "draft").write_bytes(content)
        await shelf.put("w/ab/abc", tmp_path / "draft")
        assert b"".join([piece async for piece in shelf.read("w/ab/abc")]) == content
    for _ in range(2):
        await shelf.delete("w/ab/abc")
    with pytest.raises(FileNotFoundError):
        await anext(aiter(shelf.read("w/ab/abc")))


async def test_a_store_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="ROTA_ARTIFACTS_URL"):
        open_shelf(tmp_path, "nonsense://bucket")


async def test_two_uploads_of_one_content_at_once_are_both_kept(office: Office, api: Api, path: str) -> None:
    kept = await asyncio.gather(*(upload(api, path, f"{n}", b"at once") for n in range(8)))
    assert len({each["id"] for each in kept}) == 8
    assert len(files(office)) == 1
    session_id = SessionId(UUID(path.split("/")[2]))
    async with office.db.connection() as conn:
        assert len(await rows.page(conn, office.caller.workspace_id, session_id, before=None, limit=50)) == 8
