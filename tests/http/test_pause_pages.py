"""Pausing all automations in the pages: the form for admins, and the bar on every page for everybody."""

from typing import Any

import pytest
from httpx import AsyncClient

from .test_pages import NASTY, Page, live, submit

ROOT = "/w/default"
FORM = f"{ROOT}/pause"
PAGES = (
    "automations", "agents", "runs", "sessions", "approvals", "fleet", "notifications", "settings/me", "settings/audit",
    "automations/new", "no-such-page",
)  # fmt: skip


async def pauses(house: Any) -> int:
    return await house.value("SELECT count(*) FROM pauses WHERE resumed_at IS NULL")  # type: ignore[no-any-return]


async def test_an_admin_pauses_and_resumes_everything(admin: AsyncClient, house: Any) -> None:
    assert f'href="{FORM}"' in (await admin.get(f"{ROOT}/automations")).text
    assert "All automations are paused" not in (await admin.get(f"{ROOT}/automations")).text
    sent = await submit(admin, FORM, reason=NASTY, lasts="2h", until="")
    assert (sent.status_code, sent.headers["Location"]) == (303, f"{ROOT}/automations")
    for path in PAGES:
        answer = await admin.get(f"{ROOT}/{path}")
        page = Page(answer)
        assert "All automations are paused" in page.text, path
        assert NASTY in page.text, path
        assert NASTY not in answer.text, path
        assert f"{ROOT}/resume" in [each.get("action") for each in page.all("form")], path
    sent = await submit(admin, f"{ROOT}/resume", next=f"{ROOT}/runs")
    assert (sent.status_code, sent.headers["Location"]) == (303, f"{ROOT}/runs")
    assert await pauses(house) == 0
    assert "All automations are paused" not in (await admin.get(f"{ROOT}/runs")).text


@pytest.mark.parametrize("level", ["member", "viewer"])
async def test_everybody_sees_the_bar_and_only_admins_its_buttons(admin: AsyncClient, house: Any, level: str) -> None:
    await submit(admin, FORM, reason="Moving house")
    await house.execute("UPDATE members SET level = %s", level)
    page = Page(await admin.get(f"{ROOT}/automations"))
    assert "Moving house" in page.text
    assert FORM not in [each.get("href") for each in page.all("a")]
    assert f"{ROOT}/resume" not in [each.get("action") for each in page.all("form")]
    assert (await admin.get(FORM)).status_code == 403
    assert (await submit(admin, FORM, reason="Mine")).status_code == 403
    assert (await submit(admin, f"{ROOT}/resume")).status_code == 403
    assert await house.value("SELECT reason FROM pauses WHERE resumed_at IS NULL") == "Moving house"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 501}, "reason"),
        ({"reason": "Moving", "until": "2020-01-01T09:00"}, "until"),
        ({"reason": "Moving", "until": "soon"}, "until"),
        ({"reason": "Moving", "lasts": "soon"}, "lasts"),
        ({"reason": "Moving", "lasts": "2h", "until": "2099-01-01T09:00"}, "lasts"),
    ],
)
async def test_a_bad_form_is_shown_again_with_what_is_wrong(
    admin: AsyncClient, house: Any, typed: dict[str, str], field: str
) -> None:
    answer = await submit(admin, FORM, **typed)
    assert answer.status_code == 422
    page = Page(answer)
    [wrong] = [each for each in [*page.all("input"), *page.all("select")] if each.get("aria-invalid")]
    assert wrong["name"] == field
    assert typed["reason"] in [each.get("value") for each in page.all("input")]
    assert await pauses(house) == 0


async def test_an_end_is_read_on_the_readers_clock_and_shown_on_it(admin: AsyncClient, house: Any) -> None:
    admin.cookies.set("rota_zone", "Europe/Berlin")
    await submit(admin, FORM, reason="Moving", until="2098-07-01T09:00")
    until = "SELECT to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') FROM pauses"
    assert await house.value(until) == "2098-07-01 07:00"
    shown = [each.get("value") for each in Page(await admin.get(FORM)).all("input") if each.get("name") == "until"]
    assert shown == ["2098-07-01T09:00"]


async def test_the_list_promises_no_next_run_while_everything_is_paused(admin: AsyncClient, house: Any) -> None:
    await house.automation({"cron": "0 * * * *", "timezone": "UTC"})
    listed = f"{ROOT}/automations"
    assert "All are paused" not in Page(await admin.get(listed)).text
    await submit(admin, FORM, reason="Moving")
    assert "All are paused" in Page(await admin.get(listed)).text
    assert "All are paused" in (await admin.get(listed, headers=live())).text


async def test_htmx_is_led_on_after_a_pause_and_told_of_a_refusal_in_place(admin: AsyncClient) -> None:
    headers = {"Origin": "http://rota.test", "Sec-Fetch-Site": "same-origin"}
    refused = await admin.post(FORM, data={"reason": ""}, headers=live(**headers))
    assert (refused.status_code, refused.headers["HX-Retarget"]) == (422, "#results")
    paused = await admin.post(FORM, data={"reason": "Moving"}, headers=live(**headers))
    assert (paused.status_code, paused.headers["HX-Redirect"]) == (204, f"{ROOT}/automations")


async def test_the_bar_costs_no_statement_of_its_own(admin: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await submit(admin, FORM, reason="Moving")
    monkeypatch.setattr("rota.db.pauses.find", None)
    assert "Moving" in Page(await admin.get(f"{ROOT}/runs")).text
