"""The bell on pages: its count, plain links, plain forms, and nobody else's news."""

import asyncio
import html
from typing import Any, ClassVar

import pytest
from httpx import AsyncClient

from rota.http.context import Web
from rota.http.ui import live
from rota.http.ui.live import View
from rota.model.ids import AutomationId, new_id
from rota.notify import telling

ROOT = "/w/default"
NASTY = "<script>alert('!')</script>"


class Asked:
    """A request of a browser, as far as a stream looks at it."""

    cookies: ClassVar[dict[str, str]] = {}
    query_params = type("", (), {"multi_items": lambda _: []})()
    url = type("", (), {"path": f"{ROOT}/approvals"})


@pytest.fixture
async def failed(house: Any) -> dict[str, Any]:
    """A run that failed, of an automation with a nasty name."""
    run: dict[str, Any] = await house.ended_run(await house.automation(name=f"Errand {NASTY}"), "failed")
    await tell(house, run)
    return run


async def tell(house: Any, run: dict[str, Any]) -> None:
    where = house.caller.workspace_id, run["id"], AutomationId(run["automation_id"]), run["session_id"]
    async with house.db.transaction() as conn:
        await telling.of_failed(conn, [telling.Failure(*where, "agent_error")])


async def test_the_path_that_the_api_tells_is_a_page(admin: AsyncClient, failed: dict[str, Any]) -> None:
    [told] = (await admin.get("/api/v1/workspaces/default/notifications")).json()["items"]
    page = await admin.get(told["path"])
    assert (page.status_code, str(failed["session_id"]) in page.text) == (200, True)


async def test_every_page_has_the_bell_with_its_count(admin: AsyncClient, house: Any, failed: dict[str, Any]) -> None:
    for path in (
        "/automations",
        "/runs",
        f"/sessions/{failed['session_id']}",
        "/fleet",
        "/approvals",
        "/notifications",
    ):
        page = (await admin.get(ROOT + path)).text
        assert f'href="{ROOT}/notifications"' in page
        assert '<span class="count">1<' in page, path
    assert "Mark all as read" in page
    await admin.post(f"{ROOT}/notifications/read")
    assert "Mark all as read" not in (await admin.get(f"{ROOT}/notifications")).text
    assert '<span class="count">' not in (await admin.get(f"{ROOT}/automations")).text


async def test_a_notification_is_a_plain_link_to_the_session_and_a_plain_form(
    admin: AsyncClient, house: Any, failed: dict[str, Any]
) -> None:
    page = (await admin.get(f"{ROOT}/notifications")).text
    assert f'<a href="{ROOT}/sessions/{failed["session_id"]}"' in page
    assert NASTY not in page
    assert "Errand &lt;script&gt;" in page
    told_id = await house.value("SELECT id FROM notifications")
    answer = await admin.post(f"{ROOT}/notifications/{told_id}/read", data={"next": f"{ROOT}/notifications"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{ROOT}/notifications")
    assert "Nothing is unread." in (await admin.get(f"{ROOT}/notifications?unread=true")).text
    assert (await admin.post(f"{ROOT}/notifications/{new_id()}/read")).status_code == 404
    assert (await admin.post(f"{ROOT}/notifications/odd/read")).status_code == 404


async def test_a_failure_is_told_with_its_reason_on_the_page_and_without_it_outside(
    admin: AsyncClient, house: Any
) -> None:
    run = await house.ended_run(await house.automation(), "failed", error_detail=f"No water\nin the {NASTY}")
    await tell(house, run)
    page = html.unescape((await admin.get(f"{ROOT}/notifications")).text)
    assert f">The agent failed: No water\nin the {NASTY}<" in page
    assert NASTY not in (await admin.get(f"{ROOT}/notifications")).text
    assert await house.value("SELECT detail FROM notifications") == "The agent failed"


async def test_what_one_hears_of_is_chosen_by_a_plain_form(admin: AsyncClient, house: Any) -> None:
    page = (await admin.get(f"{ROOT}/notifications/choices")).text
    assert page.count("checked") == 10
    answer = await admin.post(f"{ROOT}/notifications/choices", data={"bell": ["paused"], "outward": []})
    assert answer.status_code == 303
    assert (await admin.get(f"{ROOT}/notifications/choices")).text.count(" checked") == 1
    await tell(house, await house.ended_run(await house.automation(), "failed"))
    assert await house.value("SELECT count(*) FROM notifications") == 0
    assert (await admin.post(f"{ROOT}/notifications/choices", data={"bell": ["odd"]})).status_code == 422
    for name in ("  ", "two\nlines"):
        target = {"name": name, "url": "json://example.org/"}
        refused = await admin.post(f"{ROOT}/notifications/targets", data=target)
        assert refused.status_code == 422
        assert 'id="name-new-error"' in refused.text
        assert "json://" not in refused.text  # an address is not written back


async def test_a_target_that_is_refused_keeps_its_name_in_the_form(admin: AsyncClient) -> None:
    target = {"name": f"My {NASTY}", "url": "no address at all"}
    refused = await admin.post(f"{ROOT}/notifications/targets", data=target)
    assert refused.status_code == 422
    assert f'name="name" value="{html.escape(target["name"]).replace("&#x27;", "&#39;")}"' in refused.text
    assert 'id="url-new-error"' in refused.text
    assert target["url"] not in refused.text
    told = await admin.post(f"{ROOT}/notifications/targets", data=target, headers={"HX-Request": "true"})
    assert (told.status_code, told.headers["HX-Retarget"]) == (422, "#notice")
    assert "must be an Apprise URL" in told.text


async def test_the_stream_of_a_page_sends_the_bell_when_it_rings(web: Web, house: Any) -> None:
    """The page itself has not changed: only the bell has."""

    async def look(*_: Any) -> dict[str, Any]:
        return {"seen": "same", "lives": True, "approvals": [], "chosen": "pending", "first": True, "older": None}

    view = View("approvals/list.html", "approvals/_results.html", "approvals/_list.html", look)
    stream = live.parts(Asked(), web, house.caller, view, "same-0-0")  # type: ignore[arg-type]
    run = await house.ended_run(await house.automation(), "failed")
    await tell(house, run)
    message = (await anext(stream)).decode()
    assert message.startswith("id: same-1-0\n")
    assert 'hx-target="#bell"' in message
    assert '<span class="count">1<' in message
    await stream.aclose()


async def test_what_was_read_is_told_at_once_to_its_reader_wherever_they_look(
    admin: AsyncClient, web: Web, house: Any, failed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 3600.0)
    heard: list[str] = []
    web.listener.on("rota_bell", heard.append)
    stream = live.parts(Asked(), web, house.caller, live.TOP, "")  # type: ignore[arg-type]
    assert b'<span class="count">1<' in await anext(stream)
    told = asyncio.ensure_future(anext(stream))
    await admin.post(f"{ROOT}/notifications/read")
    assert str(house.caller.user_id) in heard
    assert b'<span class="count">' not in await told
    await stream.aclose()
