"""The settings and the list of sessions, asked for as a browser without scripts asks."""

import re
from typing import Any

import pytest
from httpx import AsyncClient

from rota.roster import running
from support.run_state import from_now

from .test_pages import NASTY, Page, live, submit
from .test_people_pages import member

ROOT = "/w/default"
SECRET = "a-value-nobody-may-see"
PAGES = (
    "me",
    "members",
    "tokens",
    "tokens?shown=all",
    "credentials",
    "grants",
    "grants?shown=all",
    "accounts",
    "workspace",
    "audit",
)


async def test_the_settings_lead_to_their_first_page_and_list_the_others(admin: AsyncClient) -> None:
    sent = await admin.get(f"{ROOT}/settings")
    assert sent.status_code == 303
    shown = (await admin.get(sent.headers["Location"])).text
    for each in ("me", "members", "tokens", "credentials", "grants", "accounts", "workspace", "audit"):
        assert f'href="{ROOT}/settings/{each}"' in shown


async def test_who_is_no_admin_sees_no_way_to_the_audit_log(admin: AsyncClient, house: Any) -> None:
    await house.execute("UPDATE members SET level = 'member'")
    assert f"{ROOT}/settings/audit" not in (await admin.get(f"{ROOT}/settings/grants")).text
    assert (await admin.get(f"{ROOT}/settings/audit")).status_code == 403


async def test_an_admin_changes_the_workspace(admin: AsyncClient, house: Any) -> None:
    home = f"{ROOT}/settings/workspace"
    named = {"name": f"House {NASTY}", "timezone": "Europe/Berlin"}
    limits = {"minimum_interval": "5m", "max_concurrent": "3", "max_schedules": "40"}
    saved = await submit(admin, f"{home}/change", **named, **limits)
    assert (saved.status_code, saved.headers["Location"]) == (303, home)
    stored = "SELECT to_jsonb(w) FROM (SELECT name, timezone, minimum_interval::text, max_concurrent, max_schedules FROM workspaces) w"
    assert await house.value(stored) == {
        **named, "minimum_interval": "00:05:00", "max_concurrent": 3, "max_schedules": 40,
    }  # fmt: skip
    page = await admin.get(home)
    fields = {str(each.get("name")): each.get("value") for each in Page(page).all("input")}
    assert fields | named | limits == fields
    assert NASTY not in page.text
    await submit(admin, f"{home}/change", **named)  # an empty limit is none
    assert set((await house.value(stored)).values()) == {*named.values(), None}
    audited = "SELECT json_agg(ARRAY[before->>'max_schedules', after->>'name'] ORDER BY id) FROM audit WHERE action = 'workspace.change'"
    assert await house.value(audited) == [[None, named["name"]], ["40", None]]


async def test_a_refused_change_of_the_workspace_names_the_field(admin: AsyncClient, house: Any) -> None:
    home = f"{ROOT}/settings/workspace"
    valid = {"name": "House", "timezone": "UTC"}
    wrong = {
        "name": "", "timezone": "Europe/Berln", "minimum_interval": "soon", "max_concurrent": "0", "max_schedules": "x",
    }  # fmt: skip
    for field, value in wrong.items():
        refused = await submit(admin, f"{home}/change", **(valid | {field: value}))
        assert refused.status_code == 422
        assert [each["id"] for each in Page(refused).all("p") if each.get("class") == "error"] == [
            f"{field}-workspace-error"
        ]
    await house.execute("UPDATE members SET level = 'member'")
    assert (await submit(admin, f"{home}/change", **valid)).status_code == 403
    assert (await admin.get(home)).status_code == 403
    assert f'href="{home}"' not in (await admin.get(f"{ROOT}/settings/me")).text
    assert await house.value("SELECT name FROM workspaces") != "House"


@pytest.mark.parametrize("path", ["credentials", "accounts"])
async def test_what_a_field_takes_is_said_before_and_when_a_browser_refuses_it(admin: AsyncClient, path: str) -> None:
    page = Page(await admin.get(f"{ROOT}/settings/{path}"))
    for each in [each for each in page.all("input") if "pattern" in each] or pytest.fail("none has a pattern"):
        assert each["title"]
        assert each["title"] in page.text
        assert each["aria-describedby"] in [hint.get("id") for hint in page.all("p")]


async def test_a_credential_is_saved_changed_and_deleted_and_its_value_is_never_shown(
    admin: AsyncClient, house: Any
) -> None:
    home = f"{ROOT}/settings/credentials"
    assert "New credential" in (await admin.get(home)).text
    saved = await submit(admin, home, name="openai", value=SECRET, description=NASTY, usable_by="member")
    assert (saved.status_code, saved.headers["Location"]) == (303, home)
    page = await admin.get(home)
    assert "openai" in page.text
    assert NASTY not in page.text
    assert NASTY in Page(page).text
    credential = await house.value("SELECT id FROM credentials")
    before = await house.value("SELECT sealed FROM credentials")
    await submit(admin, f"{home}/{credential}/change", value="", description="For the digest", usable_by="admin")
    assert await house.value("SELECT sealed FROM credentials") == before  # an empty field keeps the value
    await submit(admin, f"{home}/{credential}/change", value=SECRET + "2", description="", usable_by="admin")
    assert await house.value("SELECT sealed FROM credentials") != before
    for path in (home, f"{ROOT}/settings/audit"):
        assert SECRET not in (await admin.get(path)).text
    await submit(admin, f"{home}/{credential}/delete")
    assert await house.value("SELECT count(*) FROM credentials") == 0
    told = (await admin.get(f"{ROOT}/settings/audit")).text
    for action in ("credential.create", "credential.change", "credential.delete"):
        assert action in told


async def test_what_cannot_be_saved_says_why_and_repeats_no_value(admin: AsyncClient, house: Any) -> None:
    home = f"{ROOT}/settings/credentials"
    for fields in ({"name": "Not A Name", "value": SECRET}, {"name": "short", "value": "abc"}, {"name": "none"}):
        refused = await submit(admin, home, **fields, description="What for")
        assert refused.status_code == 422
        assert SECRET not in refused.text
        assert f'value="{fields["name"]}"' in refused.text
        assert 'value="What for"' in refused.text
        assert 'class="error"' in refused.text
    await house.execute("UPDATE members SET level = 'member'")
    assert (await submit(admin, home, name="mine", value=SECRET)).status_code == 403
    assert "New credential" not in (await admin.get(home)).text
    assert await house.value("SELECT count(*) FROM credentials") == 0


async def test_an_account_is_given_a_budget_and_its_usage_is_drawn(admin: AsyncClient, house: Any) -> None:
    home = f"{ROOT}/settings/accounts"
    assert "No limit" in Page(await admin.get(home)).text
    account = await house.value("SELECT id FROM accounts")
    named = {"name": f"House {NASTY}", "currency": "eur"}
    caps = {"budget.per_run.money": "0.50", "budget.per_month.money": "10"}
    assert (await submit(admin, f"{home}/{account}/change", **named, **caps)).status_code == 303
    assert await house.value("SELECT currency FROM accounts") == "EUR"
    automation = await house.automation({"cron": "* * * * *"})
    async with house.db.transaction() as conn:
        run_id = await running.run_now(conn, house.caller, automation)
        await conn.execute(
            "INSERT INTO usage SELECT workspace_id, %s, 1, 'money', 0.25, %s FROM accounts", [run_id, account]
        )
    await house.set_run(run_id, status="succeeded", finished_at=from_now(), attempt=1)
    page = await admin.get(home)
    assert NASTY in Page(page).text
    assert NASTY not in page.text
    assert "0.00 of 10.00 and 0.50 set aside" in " ".join(Page(page).text.split())
    assert page.text.count('class="bar"') == 1
    assert "0.25 so far" in page.text
    for wrong, field in (
        ({"budget.per_month.money": "10"}, "one run"),
        ({"budget.per_run.money": "x"}, f'id="budget.per_run.money-{account}-error"'),
    ):
        refused = await submit(admin, f"{home}/{account}/change", **{**named, "name": "As typed"}, **wrong)
        assert refused.status_code == 422
        assert field in refused.text
        assert 'value="As typed"' in refused.text
    assert (await submit(admin, home, name="Second", currency="USD")).status_code == 303
    spent = "INSERT INTO usage SELECT workspace_id, %s, 2, 'money', 3, id FROM accounts WHERE name = 'Second'"
    await house.execute(spent, run_id)
    told = (await admin.get(home)).text
    assert "Second" in told
    assert (told.count("<h3>Money, EUR</h3>"), told.count("<h3>Money, USD</h3>")) == (1, 1)
    assert ("0.25 so far" in told, "3.00 so far" in told) == (True, True)
    await house.execute("UPDATE members SET level = 'member'")
    assert (await submit(admin, home, name="Third", currency="USD")).status_code == 403
    assert "New account" not in (await admin.get(home)).text


async def test_run_time_is_one_figure_over_all_runs(
    admin: AsyncClient, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first of two runs has a budget, so the ledger has seconds of that one alone."""
    automation = await house.automation()
    for seconds in (40, 50):
        async with house.db.transaction() as conn:
            run_id = await running.run_now(conn, house.caller, automation)
            if seconds == 40:
                await conn.execute(
                    "INSERT INTO usage SELECT workspace_id, %s, 1, 'seconds', 39, id FROM accounts", [run_id]
                )
        ended = {"started_at": from_now(seconds=-seconds), "finished_at": from_now()}
        await house.set_run(run_id, status="succeeded", attempt=1, **ended)
    for path in (f"{ROOT}/settings/accounts", f"{ROOT}/automations/{automation}?view=calendar"):
        page = await admin.get(path)
        assert "<h3>Run time</h3>" in page.text
        assert "Run time 1.5 min" in " ".join(Page(page).text.split())
        assert "Seconds" not in page.text
    assert "latest" not in (await admin.get(f"{ROOT}/settings/accounts")).text
    monkeypatch.setattr("rota.http.ui.accounts.TIMED", 1)
    told = " ".join(Page(await admin.get(f"{ROOT}/settings/accounts")).text.split())
    assert "Run time is that of the latest 1 runs" in told


async def test_the_forecast_is_within_budgets_however_many_schedules_there_are(
    admin: AsyncClient, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = f"{ROOT}/settings/accounts"
    ran = await house.automation({"every": "1s"}, name="Ran")
    await house.automation({"every": "1s"}, name="Never ran")
    async with house.db.transaction() as conn:
        run_id = await running.run_now(conn, house.caller, ran)
        await conn.execute("INSERT INTO usage SELECT workspace_id, %s, 1, 'money', 2, id FROM accounts", [run_id])
    await house.set_run(run_id, status="succeeded", finished_at=from_now(), attempt=1)
    budget = '{"per_run": {"money": "1"}, "per_month": {"money": "60"}}'
    await house.execute("UPDATE automations SET budget = %s WHERE id = %s", budget, ran)
    told = " ".join(Page(await admin.get(home)).text.split())
    assert "at least 60.00 2.00 so far + 58.00 expected" in told
    assert "limited by its own budget" in told
    assert "1 automation has no finished run yet" in told
    account = await house.value("SELECT id FROM accounts")
    caps = {"budget.per_run.money": "1", "budget.per_month.money": "9"}
    await submit(admin, f"{home}/{account}/change", name="House", currency="USD", **caps)
    monkeypatch.setattr("rota.http.ui.accounts.FORESEEN", 1)
    told = " ".join(Page(await admin.get(home)).text.split())
    assert "at the pace of the last 1 h 0 min" in told
    assert "about 9.00 2.00 so far + 7.00 expected" in told


async def test_a_grant_is_revoked_and_renewed(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation(name=f"Watch {NASTY}")
    grant = await house.value("SELECT grant_id FROM automations WHERE id = %s", automation_id)
    home = f"{ROOT}/settings/grants"
    for path in (home, f"{home}?shown=all", f"{home}/{grant}"):
        page = await admin.get(path)
        assert NASTY in Page(page).text
        assert NASTY not in page.text
        assert "To run Worker bee" in page.text
    assert "No run is waiting or in progress" in (await admin.get(f"{home}/{grant}/revoke")).text
    run = await house.queue_run(automation_id)
    for path in (home, f"{home}/{grant}"):  # a link, because the next page says what stops
        shown = Page(await admin.get(path))
        assert f"{home}/{grant}/revoke" in [each.get("href") for each in shown.all("a")]
        assert f"{home}/{grant}/revoke" not in [each.get("action") for each in shown.all("form")]
    asks = await admin.get(f"{home}/{grant}/revoke")
    assert "One run stops now" in asks.text
    assert f"{ROOT}/sessions/{run['session_id']}" in asks.text
    assert not await house.value("SELECT revoked_at FROM grants WHERE id = %s", grant)
    revoked = await submit(admin, f"{home}/{grant}/revoke", next=home)
    assert (revoked.status_code, revoked.headers["Location"]) == (303, home)
    assert (await house.run(run["id"]))["skip_reason"] == "grant_revoked"
    assert "skips every slot until its grant is renewed" in (await admin.get(f"{home}/{grant}")).text
    assert 'aria-label="Renew:' in (await admin.get(home)).text
    await submit(admin, f"{home}/{grant}/renew")
    now = await house.value("SELECT grant_id FROM automations WHERE id = %s", automation_id)
    assert now != grant
    assert f"{home}/{grant}" in (await admin.get(f"{home}/{now}")).text  # the way back through the history


async def test_a_grant_is_offered_to_be_renewed_only_to_who_owns_its_automation(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation()
    grant = await house.value("SELECT grant_id FROM automations WHERE id = %s", automation_id)
    home, renew = f"{ROOT}/settings/grants", f"{ROOT}/settings/grants/{grant}/renew"
    other = await member(house, "admin")
    await house.execute("UPDATE grants SET user_id = %s", other)  # as when Ada has changed its prompt
    await house.execute("UPDATE members SET level = 'member' WHERE user_id <> %s", other)
    for path in (home, f"{home}/{grant}"):
        assert renew in (await admin.get(path)).text
    await house.execute("UPDATE automations SET owner_id = %s", other)
    for path in (home, f"{home}/{grant}"):
        assert renew not in (await admin.get(path)).text


async def test_the_audit_log_is_narrowed_by_its_own_words(admin: AsyncClient, house: Any) -> None:
    await house.automation()
    await submit(admin, f"{ROOT}/automations/errand/pause")
    await submit(admin, f"{ROOT}/automations/none/pause")
    home = f"{ROOT}/settings/audit"
    whole = await admin.get(home)
    assert "Refused: not_found" in whole.text
    paused = re.search(r"action=[^\"&]*pause[^\"&]*", whole.text)
    assert paused
    narrowed = (await admin.get(f"{home}?{paused[0]}")).text
    assert "automation “Errand”" in narrowed  # though no entry here has its name
    assert "<code>none</code>" in narrowed  # a slug in full
    link = next(each["href"] for each in Page(whole).all("a") if "action=automation.pause" in (each["href"] or ""))
    assert link
    done = (await admin.get(f"{link}&refused=false")).text
    assert "not_found" not in done
    assert "automation.pause" in done
    assert "active" in done  # how it stood before
    await submit(admin, f"{ROOT}/automations/errand/delete")
    assert "automation <code>" in (await admin.get(home)).text  # nothing here says what it is called
    await submit(admin, f"{ROOT}/agents", name="Poet", executor="command", config='{"argv": ["cat"]}')
    await submit(admin, f"{ROOT}/agents/poet/pause")
    assert (await admin.get(home)).text.count("agent “Poet”</a>") == 2
    deleted = (await admin.get(f"{home}?action=automation.delete")).text
    assert "deleted_at" in deleted
    assert "As it was made" not in deleted  # it had no such field before
    assert f"{home}?refused=false" in done  # without the word
    export = next(each["href"] for each in Page(whole).all("a") if "/audit/export" in (each["href"] or ""))
    assert (await admin.get(str(export))).status_code == 200
    assert "Nothing of this kind" in (await admin.get(f"{home}?action=none")).text


@pytest.mark.parametrize(
    "path",
    [
        "grants/none",
        "members/none",
        "members/01a1e0db-2cd9-7826-809d-0931e0e98709",
        "tokens?shown=odd",
        "grants/01a1e0db-2cd9-7826-809d-0931e0e98709",
        "credentials?cursor=odd",
        "audit?since=odd",
    ],
)
async def test_an_address_that_makes_no_sense_is_a_page_too(admin: AsyncClient, path: str) -> None:
    answer = await admin.get(f"{ROOT}/settings/{path}")
    assert answer.status_code in {404, 422}
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", PAGES)
async def test_a_part_for_htmx_is_no_page(admin: AsyncClient, path: str) -> None:
    answer = await admin.get(f"{ROOT}/settings/{path}", headers=live())
    assert answer.status_code == 200
    assert path == "audit" or "<html" not in answer.text


async def test_a_conversation_is_opened_and_listed(admin: AsyncClient, house: Any) -> None:
    home = f"{ROOT}/sessions"
    assert "No conversation yet." in (await admin.get(home)).text
    await house.execute("UPDATE agents SET deleted_at = now()")
    assert f'href="{ROOT}/agents/new?next=' in (await admin.get(home)).text, "an admin is not sent to an admin"
    await house.execute("UPDATE agents SET deleted_at = NULL")
    opened = await submit(admin, home, agent="worker-bee", prompt=f"Hello {NASTY}")
    session_id = await house.value("SELECT id FROM sessions")
    assert (opened.status_code, opened.headers["Location"]) == (303, f"{home}/{session_id}")
    page = await admin.get(home)
    assert f"{home}/{session_id}" in page.text
    assert NASTY not in page.text
    assert "Queued" in page.text
    assert "There is none here." in (await admin.get(f"{home}?status=done")).text
    for fields in ({"agent": "worker-bee", "prompt": " "}, {"agent": "nobody", "prompt": "Hello"}):
        assert (await submit(admin, home, **fields)).status_code == 422
    assert (await admin.get(f"{home}?kind=odd")).status_code == 422
    assert "Unknown status" in (await admin.get(f"{home}?kind=automation&status=done")).text
    await house.execute("UPDATE members SET level = 'viewer'")
    assert "<textarea" not in (await admin.get(home)).text
    assert (await submit(admin, home, agent="worker-bee", prompt="Hello")).status_code == 403


async def test_sessions_of_automations_are_a_list_of_their_own(admin: AsyncClient, house: Any) -> None:
    run = await house.queue_run(await house.automation())
    home = f"{ROOT}/sessions"
    assert str(run["session_id"]) not in (await admin.get(home)).text
    assert str(run["session_id"]) in (await admin.get(f"{home}?kind=automation")).text


async def test_a_session_of_an_automation_says_what_became_of_its_run(admin: AsyncClient, house: Any) -> None:
    run = await house.ended_run(await house.automation(), "cancelled", error_class="cancelled_by_user")
    await house.execute("UPDATE sessions SET status = 'failed'")  # as a run leaves it that did not succeed
    row = (
        (await admin.get(f"{ROOT}/sessions?kind=automation")).text.split(f's-{run["session_id"]}"')[1].split("</tr>")[0]
    )
    assert ">Cancelled<" in row
    assert ">Failed<" not in row


async def test_pages_count_what_waits_for_an_answer(admin: AsyncClient, house: Any) -> None:
    assert 'class="count"' not in (await admin.get(f"{ROOT}/runs")).text
    run = await house.running_run(await house.automation())
    await house.add_question(run)
    assert '<span class="count">1<span class="unseen"> waiting' in (await admin.get(f"{ROOT}/runs")).text
    await house.execute("UPDATE approvals SET expires_at = now()")
    assert 'class="count"' not in (await admin.get(f"{ROOT}/runs")).text
