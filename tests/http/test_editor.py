"""The editor as a plain form: what it saves, what it refuses beside which field, and that nothing typed is lost."""

import html
import re
from datetime import UTC, datetime
from typing import Any

from httpx import AsyncClient, Response

from rota.db import triggers as trigger_rows
from rota.http.shapes.automations import AutomationPatch
from rota.http.ui import drafts
from rota.model.agent_guide import GUIDES
from rota.model.cron import load_zone
from rota.roster import running

from .test_pages import LIST, NASTY, Page, submit

NEW = f"{LIST}/new"
BASE = {"name": "Errand", "agent": "worker-bee", "prompt": "Do it.", "do": "save"}


def trigger(place: int = 0, **fields: Any) -> dict[str, Any]:
    given = {"kind": "advanced", "timezone": "Europe/Berlin", "enabled": "on", "cron": "0 9 * * *", **fields}
    return {f"triggers.{place}.{name}": value for name, value in given.items()}


def form(*triggers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    together = {name: value for each in triggers for name, value in each.items()}
    return {**BASE, "triggers": str(len(triggers)), **together, **fields}


def errors(answer: Response) -> list[str]:
    page = Page(answer)
    return [
        str(each["id"]).removesuffix("-error")
        for each in page.all("p")
        if each.get("class") == "error" and each.get("id")
    ]


async def stored(house: Any) -> list[Any]:
    query = "SELECT json_agg(t ORDER BY id) FROM (SELECT id, kind, cron, every::text, timezone, editor_mode, enabled FROM triggers) t"
    return await house.value(query) or []


MODES: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "interval", "every": "15", "unit": "minutes"}, "*/15 * * * *", "interval"),
    ({"kind": "interval", "every": "1", "unit": "days", "time": "07:30"}, "30 7 * * *", "interval"),
    ({"kind": "weekly", "weekdays": ["mon", "fri"], "time": "09:00"}, "0 9 * * 1,5", "weekly"),
    ({"kind": "advanced", "cron": "0 9 * * 1-5"}, "0 9 * * 1-5", "advanced"),
]


async def test_each_mode_saves_what_it_says(admin: AsyncClient, house: Any) -> None:
    for fields, cron, mode in MODES:
        answer = await submit(admin, NEW, **form(trigger(**fields)))
        assert answer.status_code == 303
        assert answer.headers["Location"].startswith(f"{LIST}/errand")
        saved = (await stored(house))[-1]
        assert (saved["cron"], saved["timezone"], saved["editor_mode"]) == (cron, "Europe/Berlin", mode)


async def test_who_looks_for_another_agent_is_shown_one_of_each_kind_and_what_it_needs(admin: AsyncClient) -> None:
    text = html.unescape((await admin.get(NEW)).text)
    for each in GUIDES:
        assert f"<code>{each.kind}</code>" in text
        assert each.needs in text
        assert f'"executor": "{each.kind}"' in text


async def test_every_other_kind_can_be_a_trigger_beside_them(admin: AsyncClient, house: Any) -> None:
    await house.automation(name="Before")
    kinds = [
        trigger(0, kind="at", at="2031-05-01T09:00"),
        trigger(1, kind="event", event="invoice.paid"),
        trigger(2, kind="after", after="before", on=["failed"]),
        trigger(3, kind="webhook", enabled=""),
    ]
    answer = await submit(admin, NEW, **form(*kinds))
    page = Page(answer)
    assert answer.status_code == 200  # the secret is shown, this once
    assert "whsec_" in page.text
    assert "/hooks/" in page.text
    assert [each["kind"] for each in await stored(house)] == ["at", "event", "after", "webhook"]
    moment = await house.value("SELECT at FROM triggers WHERE kind = 'at'")
    assert moment.astimezone(load_zone("Europe/Berlin")).hour == 9
    detail = Page(await admin.get(f"{LIST}/errand"))
    assert "whsec_" not in detail.text
    renew = next(each["action"] for each in detail.all("form") if (each.get("action") or "").endswith("/secret"))
    assert "whsec_" in (await submit(admin, str(renew))).text


TYPED = {"text", "number", "time", "datetime-local"}
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"name": "  "}, {}, "name"),
    ({"agent": ""}, {}, "agent"),
    ({"agent": "nobody"}, {}, "agent"),
    ({"prompt": " "}, {}, "prompt"),
    ({"input": "{nope"}, {}, "input"),
    ({"timeout": "long"}, {}, "timeout"),
    ({"max_attempts": "many"}, {}, "max_attempts"),
    ({"max_tasks": "many"}, {}, "max_tasks"),
    ({"max_task_depth": "0"}, {}, "max_task_depth"),
    ({"catch_up": "all"}, {}, "catch_up_limit"),
    ({"overlap": "maybe"}, {}, "overlap"),
    ({}, {"cron": "61 * * * *"}, "triggers.0.cron"),
    ({}, {"timezone": "Mars/Base"}, "triggers.0.timezone"),
    ({}, {"kind": "interval", "every": "x", "unit": "hours"}, "triggers.0.every"),
    ({}, {"kind": "interval", "every": "1", "unit": "weeks"}, "triggers.0.unit"),
    ({}, {"kind": "weekly", "weekdays": [], "time": "09:00"}, "triggers.0.weekdays"),
    ({}, {"kind": "weekly", "weekdays": ["mon"], "time": "25:00"}, "triggers.0.time"),
    ({}, {"kind": "at", "at": "2001-01-01T09:00"}, "triggers.0.at"),
    ({}, {"kind": "event", "event": "no spaces"}, "triggers.0.event"),
    ({}, {"kind": "after", "after": "nobody", "on": ["failed"]}, "triggers.0.after"),
    ({}, {"ends_at": "2001-01-01T00:00"}, "triggers.0.ends_at"),
    ({}, {"max_fires": "0"}, "triggers.0.max_fires"),
    ({}, {"jitter": "some"}, "triggers.0.jitter"),
]


async def test_what_is_wrong_is_told_beside_its_field_and_nothing_is_lost(admin: AsyncClient, house: Any) -> None:
    for fields, own, wrong in WRONG:
        sent = form(trigger(**own), **{"name": f"N {NASTY}", "prompt": f"P {NASTY}", **fields})
        answer = await submit(admin, NEW, **sent)
        page = Page(answer)
        assert (answer.status_code, errors(answer)) == (422, [wrong]), (fields, own)
        shown = {str(each.get("name")): each.get("value") for each in page.all("input") if each.get("type") in TYPED}
        for name, value in sent.items():
            if isinstance(value, str) and name in shown:
                assert shown[name] == value
        assert fields.get("prompt", "P <script>") in page.text
        assert not page.all("img")
    assert await house.value("SELECT count(*) FROM automations") == 0


EMPTY: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "weekly", "weekdays": [], "time": "09:00"}, "weekdays", "Choose at least one day."),
    ({"kind": "weekly", "weekdays": ["mon"], "time": ""}, "time", "Give a time of day."),
    ({"kind": "interval", "every": "2", "unit": "days", "time": " "}, "time", "Give a time of day."),
    ({"kind": "at", "at": ""}, "at", "Give a date and a time."),
    ({"kind": "event", "event": " "}, "event", "Give the name of the event, such as invoice.paid."),
    ({"kind": "after", "after": "", "on": ["failed"]}, "after", "Choose an automation."),
    ({"kind": "after", "after": "errand", "on": []}, "on", "Choose at least one."),
]


async def test_what_was_left_empty_is_told_in_the_words_of_the_form(admin: AsyncClient, house: Any) -> None:
    await house.automation(name="Errand")
    for fields, name, told in EMPTY:
        given = form(trigger(**fields))
        answer = await submit(admin, NEW, **given)
        assert f'id="triggers.0.{name}-error">{told}</p>' in answer.text
        assert f'class="error">{told}</p>' in (await submit(admin, f"{LIST}/preview", **given)).text
    answer = await submit(admin, NEW, **form(trigger(), catch_up="all"))
    assert 'id="catch_up_limit-error">Say how many missed slots may run.</p>' in answer.text


async def test_a_refusal_is_never_without_words(admin: AsyncClient, house: Any) -> None:
    answer = await submit(admin, NEW, **form(trigger(), pre_approvals="deploy\n" + "x" * 400))
    assert 'id="pre_approvals-error">Line 2: Give at most' in answer.text
    await house.execute("UPDATE workspaces SET max_schedules = 1")
    assert (await submit(admin, NEW, **form(trigger()))).status_code == 303
    answer = await submit(admin, NEW, **form(trigger()))
    assert re.search('role="alert"[^>]*>Nothing was saved yet. This workspace may have 1 schedules', answer.text)


async def test_the_limits_of_what_goes_by_no_clock_are_those_of_the_workspace(admin: AsyncClient, house: Any) -> None:
    """The zone of whoever writes is not shown with it, nor kept."""
    given = form(trigger(kind="event", event="invoice.paid", timezone="Europe/Berlin", starts_at="2031-01-01T00:00"))
    assert "from 1 January 2031" in (await submit(admin, f"{LIST}/preview", **given)).text
    assert (await submit(admin, NEW, **given)).status_code == 303
    page = await admin.get(f"{LIST}/errand/edit")
    assert 'value="2031-01-01T00:00"' in page.text
    assert "the clock of the workspace, UTC" in page.text


async def test_all_that_is_wrong_is_told_at_once(admin: AsyncClient, house: Any) -> None:
    answer = await submit(admin, NEW, **form(trigger(cron="x"), trigger(1, timezone="x"), name="", timeout="?"))
    assert set(errors(answer)) == {"name", "timeout", "triggers.0.cron", "triggers.1.timezone"}


async def test_triggers_are_added_and_removed_without_a_script(admin: AsyncClient, house: Any) -> None:
    more = Page(await submit(admin, NEW, **form(trigger(cron="1 1 * * *"), do="add")))
    assert [each["value"] for each in more.all("input") if each.get("name") == "triggers"] == ["2"]
    fewer = Page(await submit(admin, NEW, **form(trigger(), trigger(1, cron="2 2 * * *"), do="remove-0")))
    crons = [each["value"] for each in fewer.all("input") if str(each.get("name")).endswith(".cron")]
    assert crons == ["2 2 * * *"]
    assert await house.value("SELECT count(*) FROM automations") == 0


async def test_an_edit_that_leaves_a_trigger_alone_keeps_it(admin: AsyncClient, house: Any) -> None:
    schedules = [
        {"cron": "0 9 * * *"},
        {"every": "7h"},
        {"mode": "interval", "every": 2, "unit": "days", "time": "09:00"},
    ]
    await house.automation(triggers=schedules)
    before = await stored(house)
    sent = filled(Page(await admin.get(f"{LIST}/errand/edit")))
    answer = await submit(admin, f"{LIST}/errand/edit", **{**sent, "prompt": "Do it well.", "do": "save"})
    assert answer.status_code == 303, errors(answer)
    assert await stored(house) == before
    assert await house.value("SELECT prompt FROM automations") == "Do it well."
    changed = {**sent, "triggers.0.cron": "5 9 * * *", "do": "save", "revision": "2"}
    assert (await submit(admin, f"{LIST}/errand/edit", **changed)).status_code == 303
    after = await stored(house)
    assert sorted(each["cron"] or "" for each in after) == ["", "", "5 9 * * *"]
    assert {each["id"] for each in after} & {each["id"] for each in before} == {each["id"] for each in before[1:]}


async def test_an_automation_whose_instant_has_passed_is_edited_like_any_other(admin: AsyncClient, house: Any) -> None:
    await house.automation({"at": "2090-01-01T09:00:00Z", "timezone": "UTC"})
    await house.execute("UPDATE triggers SET at = '2020-01-01 09:00:00Z', next_fire_at = NULL")
    [before] = await stored(house)
    page = Page(await admin.get(f"{LIST}/errand/edit"))
    answer = await submit(admin, f"{LIST}/errand/edit", **filled(page) | {"prompt": "Do it again.", "do": "save"})
    assert (answer.status_code, errors(answer)) == (303, [])
    assert await stored(house) == [before]
    assert await house.value("SELECT prompt FROM automations") == "Do it again."


async def test_one_whose_zone_is_no_more_is_shown_and_edited(admin: AsyncClient, house: Any) -> None:
    """As it is parked then: what is wrong with it can be seen and mended."""
    limited = {"every": "2d", "time": "09:00", "ends_at": datetime(2090, 1, 1, tzinfo=UTC)}
    await house.automation(triggers=[limited, {"at": "2090-01-01T09:00:00Z"}])
    await house.execute("UPDATE triggers SET timezone = 'Mars/Base', parked_error = 'no such zone'")
    for view in ("", "?view=calendar", "?at=2026-06-01T09:00"):
        assert "no such zone" in Page(await admin.get(f"{LIST}/errand{view}")).text
    sent = filled(Page(await admin.get(f"{LIST}/errand/edit")))
    assert sent["triggers.0.every"] == "2"
    mended = {**sent, "triggers.0.timezone": "UTC", "triggers.1.timezone": "UTC", "do": "save"}
    answer = await submit(admin, f"{LIST}/errand/edit", **mended)
    assert (answer.status_code, errors(answer)) == (303, [])
    told = Page(await admin.get(f"{LIST}/errand")).text
    assert "Every 2 days at 09:00, UTC, until 1 January 2090; once, on 1 January 2090 at 09:00, UTC" in told


async def test_an_edit_keeps_every_policy_that_it_does_not_change(admin: AsyncClient, house: Any) -> None:
    given = {
        "pre_approvals": ["read_*", "list_files"],
        "max_attempts": 3,
        "max_tasks": 7,
        "max_task_depth": 2,
        "catch_up": "all",
        "catch_up_limit": 4,
    }
    given["budget"] = {"per_run": {"money": "0.50", "seconds": 60}, "per_month": {"money": "10"}}
    await house.automation({"cron": "0 9 * * *"}, **given, session="same", overlap="queue_one", pause_after_failures=5)
    policies = "SELECT to_jsonb(a) - 'updated_at' - 'revision' - 'name' FROM automations a"
    before = await house.value(policies)
    sent = filled(Page(await admin.get(f"{LIST}/errand/edit"))) | {"pre_approvals": "read_*\nlist_files"}
    assert (await submit(admin, f"{LIST}/errand/edit", **{**sent, "name": "Other"})).status_code == 303
    assert await house.value(policies) == before
    shown = {*drafts.POLICIES, "budget", "name", "agent", "prompt", "input", "run_immediately"}
    elsewhere = {"slug", "schedule", "triggers", "credentials", "accept_grant", "status", "enabled"}
    untouched = set(AutomationPatch.model_fields) - shown - elsewhere
    assert untouched == set()  # a policy that is new here needs a field in the form


async def test_a_budget_is_typed_in_and_what_is_wrong_with_it_stands_beside_its_field(
    admin: AsyncClient, house: Any
) -> None:
    sent = form(trigger(), **{"budget.per_run.tokens": "many", "budget.per_month.money": "-1"})
    assert {"budget.per_run.tokens", "budget.per_month.money"} <= set(errors(await submit(admin, NEW, **sent)))
    alone = form(trigger(), **{"budget.per_month.money": "10"})
    assert set(errors(await submit(admin, NEW, **alone))) == {"budget.per_run.money"}
    right = form(trigger(), **{"budget.per_month.money": "10", "budget.per_run.money": "0.50"})
    assert (await submit(admin, NEW, **right)).status_code == 303
    saved = {"per_run": {"money": "0.50"}, "per_month": {"money": "10"}}
    assert await house.value("SELECT budget FROM automations") == saved


async def test_what_is_made_up_for_after_an_outage_is_told_only_of_what_goes_by_the_clock(
    admin: AsyncClient, house: Any
) -> None:
    for triggers, told in (
        ([trigger(kind="webhook")], False),
        ([], False),
        ([trigger(kind="webhook"), trigger(1)], True),
    ):
        preview = await submit(admin, f"{LIST}/preview", **form(*triggers))
        assert ("After an outage" in preview.text) == told
        assert "A run may take 1h" in preview.text
    await house.automation({"event": "go"})
    assert "After an outage" not in (await admin.get(f"{LIST}/errand")).text


async def test_the_preview_says_what_the_page_will_say_of_triggers_without_a_clock(
    admin: AsyncClient, house: Any
) -> None:
    await house.automation(name="Endpoint check")
    for fields, told in (
        ({"kind": "after", "after": "endpoint-check", "on": ["failed"]}, "After “Endpoint check” failed"),
        ({"kind": "after", "after": "endpoint-check", "on": ["skipped", "failed"]}, "After “Endpoint check” failed or was skipped"),
        ({"kind": "event", "event": "invoice.paid"}, "On the event “invoice.paid”"),
        ({"kind": "webhook"}, "When its webhook is called"),
    ):  # fmt: skip
        sent = form(trigger(**fields))
        assert f'<p class="told">{told}</p>' in (await submit(admin, f"{LIST}/preview", **sent)).text
        await submit(admin, NEW, **sent)
        assert told in (await admin.get(f"{LIST}?q=Errand")).text
    await house.execute("UPDATE automations SET deleted_at = now() WHERE slug = 'endpoint-check'")
    kept = await admin.get(f"{LIST}/errand/edit")  # what is saved already may stay
    assert '<p class="told">After “Endpoint check” failed</p>' in kept.text
    for fields, wrong in (
        ({"kind": "after", "after": "nobody", "on": ["failed"]}, "There is no automation &#39;nobody&#39;."),
        ({"kind": "after", "after": "", "on": ["failed"]}, "Choose an automation."),
        ({"kind": "event", "event": "no spaces"}, "An event&#39;s name has"),
        ({"kind": "webhook", "ends_at": "2001-01-01T00:00"}, "It would never fire within its limits."),
    ):
        refused = (await submit(admin, f"{LIST}/preview", **form(trigger(**fields)))).text
        assert f'<p class="error">{wrong}' in refused
        assert 'class="told"' not in refused


def filled(page: Page) -> dict[str, Any]:
    """What a browser would send of the form as it stands; the text of a textarea is left to the test."""
    sent: dict[str, Any] = {"prompt": "Do it."}
    select = ""
    for tag, each in page.tags:
        name, value = str(each.get("name")), each.get("value") or ""
        if tag == "select":
            select = name
        elif tag == "option" and ("selected" in each or select not in sent):
            sent[select] = value
        elif tag == "input" and name != "None" and (each.get("type") not in {"checkbox", "radio"} or "checked" in each):
            sent[name] = [*sent.get(name, []), value] if name.endswith(("weekdays", ".on")) else value
    return sent


async def test_the_preview_is_what_saving_would_give(admin: AsyncClient, house: Any) -> None:
    sent = form(
        trigger(kind="weekly", weekdays=["sun"], time="02:30"), trigger(1, kind="interval", every="90", unit="minutes")
    )
    told = (await submit(admin, f"{LIST}/preview", **sent)).text
    assert "Every Sunday at 02:30, Berlin" in told
    assert "Every 90 minutes" in told
    assert told.count("<li>") == 5
    assert "+01:00" in told or "+02:00" in told
    assert "the clock in Berlin skips" in told  # a warning
    assert "is skipped, and the history says so" in told
    wrong = (await submit(admin, f"{LIST}/preview", **form(trigger(cron="61 * * * *")))).text
    assert 'class="error"' in wrong
    await house.automation(triggers=[{"every": "1h", "max_fires": 3}])
    await house.execute("UPDATE triggers SET fires = 2")
    left = (await admin.get(f"{LIST}/errand/edit")).text
    assert left.count("<li>") == 1  # it goes on counting from where it is
    bounded = (await submit(admin, f"{LIST}/preview", **form(trigger(max_fires="2")))).text
    assert bounded.count("<li>") == 2


async def test_the_first_trigger_goes_by_the_clock_of_the_workspace(admin: AsyncClient, house: Any) -> None:
    await house.execute("UPDATE workspaces SET timezone = 'Asia/Tokyo'")
    added = Page(await submit(admin, NEW, **form(do="add")))
    assert [each["value"] for each in added.all("input") if each.get("name") == "triggers.0.timezone"] == ["Asia/Tokyo"]


async def test_the_preview_tells_what_keeps_a_trigger_from_firing(admin: AsyncClient, house: Any) -> None:
    own: dict[str, Any] = {"kind": "interval", "every": "1", "unit": "minutes", "timezone": "UTC"}
    for limits, told in (
        ({"max_fires": "3"}, "Every minute, 3 times"),
        ({"ends_at": "2100-01-01T00:00"}, "Every minute, until 1 January 2100"),
        ({"enabled": ""}, "Every minute (switched off)"),
        ({"kind": "webhook", "enabled": ""}, "When its webhook is called (switched off)"),
    ):
        sent = form(trigger(**own | limits))
        assert f'<p class="told">{told}' in (await submit(admin, f"{LIST}/preview", **sent)).text
        await submit(admin, NEW, **sent)
        assert told in (await admin.get(f"{LIST}?q=Errand")).text
        await house.execute("UPDATE automations SET deleted_at = now()")
    sunday = {"mode": "weekly", "weekdays": ["sun"], "time": "02:30", "timezone": "Europe/Berlin", "max_fires": 3}
    await house.automation(triggers=[sunday])
    assert "the clock in Berlin skips" in (await admin.get(f"{LIST}/errand/edit")).text
    await house.execute("UPDATE triggers SET fires = max_fires WHERE max_fires IS NOT NULL")
    spent = (await admin.get(f"{LIST}/errand/edit")).text
    assert '<p class="told">Every Sunday at 02:30, Berlin, 3 times (done)</p>' in spent
    assert "the clock in Berlin skips" not in spent


async def test_a_trigger_whose_limits_change_is_foreseen_and_saved_from_where_it_is(
    admin: AsyncClient, house: Any
) -> None:
    await house.automation(triggers=[{"mode": "interval", "every": 90, "unit": "minutes", "max_fires": 3}])
    await house.execute("UPDATE triggers SET fires = 2, anchor_at = anchor_at - interval '80 minutes'")
    [kept] = await stored(house)
    own = trigger(kind="interval", every="90", unit="minutes", timezone="UTC", max_fires="4", id=kept["id"])
    automation = await house.value("SELECT id FROM automations")
    told = (await submit(admin, f"{LIST}/preview?of={automation}", **form(own))).text
    assert told.count("<li>") == 2, "it has fired twice"
    assert (await submit(admin, f"{LIST}/errand/edit", **form(own))).status_code == 303
    assert [each["id"] for each in await stored(house)] == [kept["id"]]
    due = (
        "SELECT to_char(next_fire_at AT TIME ZONE 'UTC', 'HH24:MI') FROM triggers WHERE next_fire_at < now() + '10 min'"
    )
    assert await house.value(due) in told


async def test_an_interval_of_one_day_is_shown_and_saved_with_its_time_of_day(admin: AsyncClient, house: Any) -> None:
    await house.automation({"every": "1d", "time": "09:00", "timezone": "Europe/Berlin"})
    page = await admin.get(f"{LIST}/errand/edit")
    assert "Every day at 09:00, Berlin" in page.text
    [kept] = await stored(house)
    [shown] = [drafts.trigger_of(each) for each in await _rows(house)]
    own = {f"triggers.0.{name}": value for name, value in {**shown, "overlap": "allow"}.items()}
    assert (await submit(admin, f"{LIST}/errand/edit", **form(own))).status_code == 303
    [saved] = await stored(house)
    assert (saved["cron"], saved["timezone"]) == ("0 9 * * *", kept["timezone"])


async def _rows(house: Any) -> list[dict[str, Any]]:
    async with house.db.connection() as conn:
        automation_id = await house.value("SELECT id FROM automations")
        return await trigger_rows.of_automations(conn, house.caller.workspace_id, [automation_id])


async def test_on_whose_behalf_it_runs_is_said_before_it_changes(admin: AsyncClient, house: Any) -> None:
    await house.automation()
    assert "on your behalf" in (await admin.get(f"{LIST}/errand/edit")).text
    await house.execute(
        "WITH u AS (INSERT INTO users (id, name) VALUES (gen_random_uuid(), 'Somebody else') RETURNING id), "
        "m AS (INSERT INTO members (workspace_id, user_id, level) SELECT %s, id, 'member' FROM u RETURNING user_id) "
        "UPDATE grants SET user_id = m.user_id FROM m", house.caller.workspace_id,
    )  # fmt: skip
    told = (await admin.get(f"{LIST}/errand/edit")).text
    assert "on behalf of <strong>Somebody else</strong>" in told
    assert "it will run on yours" in told


async def test_a_viewer_is_shown_no_way_to_change_anything(admin: AsyncClient, house: Any) -> None:
    await house.automation({"cron": "0 9 * * *"})
    await house.execute("UPDATE members SET level = 'viewer'")
    for path in (LIST, f"{LIST}/errand"):
        page = Page(await admin.get(path))
        assert not [
            each
            for each in page.all("form")
            if str(each.get("action")).startswith(LIST) and each.get("method") == "post"
        ]
    assert (await admin.get(NEW)).status_code == 403
    assert (await submit(admin, NEW, **form())).status_code == 403
    assert (await admin.get(f"{LIST}/errand/edit")).status_code == 403
    assert (await submit(admin, f"{LIST}/errand/delete")).status_code == 403


async def test_odd_forms_are_refused_not_broken(admin: AsyncClient, house: Any) -> None:
    for sent in (
        {},
        {"triggers": "-1"},
        {"triggers": "9" * 30},
        {"triggers": "60", **BASE},
        {**BASE, "name": "a\x00b"},
    ):
        answer = await submit(admin, NEW, **sent)
        assert answer.status_code in {303, 422}, sent
    assert (await submit(admin, f"{LIST}/preview")).status_code == 200
    assert errors(await submit(admin, NEW, **{**BASE, "name": "a\x00b"})) == ["name"]


def test_a_draft_of_every_default_is_the_defaults() -> None:
    given = drafts.blank("UTC", "bee", name="x", prompt="y").values()
    assert (
        given["timeout"].total_seconds() == 3600 if not isinstance(given["timeout"], str) else given["timeout"] == "1h"
    )
    assert given["catch_up"] == "one"
    assert given["overlap"] is None


async def test_the_audit_log_tells_what_was_saved_or_refused_and_not_what_was_tried_out(
    admin: AsyncClient, house: Any
) -> None:
    rows = "SELECT array_agg(status ORDER BY id) FROM audit WHERE action LIKE 'automation.%%'"
    await submit(admin, f"{LIST}/preview", **form(trigger()))
    await submit(admin, NEW, **form(trigger(), do="add"))
    assert await house.value(rows) is None
    await submit(admin, NEW, **form(trigger(cron="never")))
    await submit(admin, NEW, **form(trigger()))
    assert await house.value(rows) == [422, 200]


async def test_what_somebody_else_saved_meanwhile_is_not_overwritten_unseen(admin: AsyncClient, house: Any) -> None:
    await submit(admin, NEW, **form(trigger()))
    edit = f"{LIST}/errand/edit"
    begun = [each["value"] for each in Page(await admin.get(edit)).all("input") if each.get("name") == "revision"]
    assert begun == ["1"]
    assert (await submit(admin, edit, **form(trigger(), prompt="First", revision="1"))).status_code == 303
    late = await submit(admin, edit, **form(trigger(), prompt="Second", revision="1"))
    assert late.status_code == 422
    assert "It was changed while you were writing" in late.text
    assert "Second" in late.text  # nothing typed is lost
    assert await house.value("SELECT prompt FROM automations") == "First"
    [told] = [each["value"] for each in Page(late).all("input") if each.get("name") == "revision"]
    assert (await submit(admin, edit, **form(trigger(), prompt="Second", revision=told))).status_code == 303
    assert await house.value("SELECT prompt FROM automations") == "Second"


async def test_both_clocks_are_shown_when_a_trigger_has_another_zone_than_the_reader(
    admin: AsyncClient, house: Any
) -> None:
    automation = await house.automation({"at": "2031-01-15T09:00", "timezone": "America/Los_Angeles"})
    admin.cookies.set("rota_zone", "Europe/Berlin")
    for path in (f"{LIST}/{automation}", f"{LIST}/{automation}/edit"):
        assert "09:00 Los Angeles = 18:00 Berlin" in Page(await admin.get(path)).text
    admin.cookies.set("rota_zone", "Asia/Tokyo")
    assert "09:00 Los Angeles = 02:00 Tokyo (next day)" in Page(await admin.get(f"{LIST}/{automation}")).text
    admin.cookies.set("rota_zone", "America/Tijuana")  # another name, the same clock
    assert "09:00 Los Angeles" not in Page(await admin.get(f"{LIST}/{automation}")).text


async def credential(admin: AsyncClient, name: str, usable_by: str = "member") -> None:
    fields = {"name": name, "value": "a-value-nobody-may-see", "usable_by": usable_by}
    assert (await submit(admin, "/w/default/settings/credentials", **fields)).status_code == 303


def secrets(*rows: tuple[str, str]) -> dict[str, str]:
    fields = {
        f"secrets.{at}.{name}": value
        for at, row in enumerate(rows)
        for name, value in zip(drafts.SECRET, row, strict=True)
    }
    return {"secrets": str(len(rows)), **fields}


def offered(page: Page) -> list[Any]:
    return [each.get("value") for each in page.all("option")]


async def test_the_editor_gives_an_automation_secrets_and_its_page_shows_them(admin: AsyncClient, house: Any) -> None:
    stored = "SELECT credentials FROM automations"
    await credential(admin, "stripe-live")
    await credential(admin, "mail-relay")
    added = Page(await submit(admin, NEW, **(form(trigger(), **secrets()) | {"do": "secret"})))
    assert {"stripe-live", "mail-relay"} <= {*offered(added)}
    rows = secrets(("STRIPE_KEY", "stripe-live"), ("MAIL_KEY", "mail-relay"), ("", ""))
    assert (await submit(admin, NEW, **form(trigger(), **rows))).status_code == 303
    assert await house.value(stored) == {"STRIPE_KEY": "stripe-live", "MAIL_KEY": "mail-relay"}
    detail = " ".join(Page(await admin.get(f"{LIST}/errand")).text.split())
    assert "STRIPE_KEY → stripe-live" in detail
    edited = Page(await admin.get(f"{LIST}/errand/edit"))
    assert "STRIPE_KEY" in [each.get("value") for each in edited.all("input")]
    await submit(admin, f"{LIST}/errand/edit", **form(trigger()))  # a form without secrets leaves them
    assert len(await house.value(stored)) == 2
    dropped = await submit(admin, f"{LIST}/errand/edit", **(form(trigger(), **rows) | {"do": "drop-0"}))
    assert "STRIPE_KEY" not in [each.get("value") for each in Page(dropped).all("input")]
    await submit(admin, f"{LIST}/errand/edit", **form(trigger(), **secrets(("MAIL_KEY", "mail-relay"))))
    assert await house.value(stored) == {"MAIL_KEY": "mail-relay"}


async def test_a_secret_that_is_wrong_is_refused_at_its_row(admin: AsyncClient, house: Any) -> None:
    await credential(admin, "open")
    await credential(admin, "closed", "admin")
    for row, wrong in (
        (("9 lives", "open"), "variable"),
        (("", "open"), "variable"),
        (("FIRST", "open"), "variable"),
        (("KEY", ""), "credential"),
        (("KEY", "gone"), "credential"),
        (("ROTA_HTTP_SECRET", "open"), "credential"),
    ):
        answer = await submit(admin, NEW, **form(trigger(), **secrets(("FIRST", "open"), row)))
        assert (answer.status_code, errors(answer)) == (422, [f"secrets.1.{wrong}"]), row
    await house.execute("UPDATE members SET level = 'member'")
    assert {"open", "closed"} & {*offered(Page(await submit(admin, NEW, **form(**secrets(("A", ""))))))} == {"open"}
    answer = await submit(admin, NEW, **form(trigger(), **secrets(("KEY", "closed"))))
    assert (answer.status_code, errors(answer)) == (422, ["secrets.0.credential"])
    for many in ("9" * 5000, "x", "-1"):
        pressed = await submit(admin, NEW, **(form(trigger(), **secrets()) | {"do": f"drop-{many}"}))
        assert pressed.status_code == 200
    assert await house.value("SELECT count(*) FROM automations") == 0


async def test_the_page_of_an_automation_shows_its_access_and_limits(admin: AsyncClient, house: Any) -> None:
    automation = await house.automation(max_attempts=3)
    await house.execute('UPDATE agents SET credentials = \'{"KEY": "shared"}\'')
    async with house.db.transaction() as conn:
        run_id = await running.run_now(conn, house.caller, automation)
        await conn.execute("INSERT INTO usage SELECT workspace_id, %s, 1, 'money', 4.34, id FROM accounts", [run_id])
    budget = '{"per_run": {"money": "0.5", "seconds": 600}, "per_month": {"money": "60"}}'
    await house.execute("UPDATE automations SET budget = %s WHERE id = %s", budget, automation)
    told = "".join(Page(await admin.get(f"{LIST}/{automation}")).text.split())
    for each in (
        f"Runs as {await house.value('SELECT name FROM users')}", "KEY → shared from its agent", "4.34 of 60.00 USD this month",
        "At most 0.50 USD, 10 min of run time per run", "Timeout 1h", "Attempts 3",
    ):  # fmt: skip
        assert each.replace(" ", "") in told
    unlimited = await house.automation(name="Free")
    told = "".join(Page(await admin.get(f"{LIST}/{unlimited}")).text.split())
    assert "BudgetNolimit" in told
    assert "Attempts1noretry" in told
