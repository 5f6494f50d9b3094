"""Approvals on pages: shown where they are asked, answered by a plain form, and by nobody else."""

from typing import Any

import pytest
from httpx import AsyncClient
from psycopg.types.json import Jsonb

from rota.model.approval import Option, Question
from rota.sessions import approvals

from .test_pages import UNKNOWN, live

NASTY = "<script>alert('?')</script>"
ROOT = "/w/default"


@pytest.fixture
async def asked(house: Any) -> tuple[str, str]:
    """The ids of a question and of its session; the agent waits in its process."""
    run = await house.running_run(await house.automation())
    options = [Option("now", f"Now {NASTY}", approves=True), Option("never", "Never", approves=False)]
    async with house.db.transaction() as conn:
        question = Question(f"Send it? {NASTY}", options, {"to": NASTY})
        approval = await approvals.ask(conn, run["workspace_id"], run["id"], 1, question, keeps_process=True)
    return str(approval.id), str(run["session_id"])


async def test_a_question_stands_in_its_session_and_among_the_approvals_with_a_plain_form(
    admin: AsyncClient, asked: tuple[str, str]
) -> None:
    approval_id, session_id = asked
    for address in (f"{ROOT}/sessions/{session_id}", f"{ROOT}/approvals"):
        page = (await admin.get(address)).text
        assert f'method="post" action="{ROOT}/approvals/{approval_id}"' in page
        assert '<button class="button" name="answer" value="now">' in page
        assert "Send it? &lt;script&gt;" in page
        assert NASTY not in page
    assert "Needs approval" in (await admin.get(f"{ROOT}/sessions/{session_id}")).text


async def test_the_form_answers_and_leads_back(admin: AsyncClient, house: Any, asked: tuple[str, str]) -> None:
    approval_id, session_id = asked
    form = {"answer": "never", "text": " Not now. ", "next": f"{ROOT}/approvals"}
    answer = await admin.post(f"{ROOT}/approvals/{approval_id}", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{ROOT}/approvals")
    assert (await house.run())["status"] == "running"
    assert await house.value("SELECT answer_text FROM approvals WHERE status = 'refused'") == "Not now."
    assert "Nothing waits for an answer." in (await admin.get(f"{ROOT}/approvals")).text
    shown = (await admin.get(f"{ROOT}/approvals?status=refused")).text
    assert "Refused by Local admin, “Never”: Not now." in shown
    page = (await admin.get(f"{ROOT}/sessions/{session_id}")).text
    assert "Refused by Local admin: Never. “Not now.”" in page
    assert 'name="answer"' not in page


async def test_a_second_answer_is_told_that_somebody_was_first(admin: AsyncClient, asked: tuple[str, str]) -> None:
    for _ in range(2):
        answer = await admin.post(f"{ROOT}/approvals/{asked[0]}", data={"answer": "now"})
    assert answer.status_code == 409
    assert "by Local admin" in answer.text
    assert "Nothing needs to be done." in answer.text


async def test_a_long_detail_is_shown_on_a_page_of_its_own_and_burdens_no_list(
    admin: AsyncClient, house: Any, asked: tuple[str, str]
) -> None:
    approval_id, session_id = asked
    lists, alone = (f"{ROOT}/approvals", f"{ROOT}/sessions/{session_id}"), f"{ROOT}/approvals/{approval_id}"
    for told in ("the same line\n" * 20_000, "".join(map(str, range(2_000)))):  # packed well, and badly
        await house.execute("UPDATE approvals SET detail = %s", Jsonb({"diff": f"{told} its end"}))
        for path in lists:
            page = await admin.get(path)
            assert f'<a href="{alone}">Show what it is about</a>' in page.text
            assert len(page.content) < 30_000
        whole = await admin.get(alone)
        assert (whole.status_code, "its end" in whole.text, 'name="answer"' in whole.text) == (200, True, True)
    await house.execute("UPDATE approvals SET detail = %s", Jsonb({"to": "everybody"}))
    for path in (*lists, alone):
        page = await admin.get(path)
        assert "&#34;everybody&#34;" in page.text
        assert "Show what it is about" not in page.text


async def test_a_question_that_stands_alone_is_answered_in_place(admin: AsyncClient, asked: tuple[str, str]) -> None:
    alone = f"{ROOT}/approvals/{asked[0]}"
    await admin.post(alone, data={"answer": "now"}, headers=live())
    part = await admin.get(alone, headers=live())
    assert part.text.lstrip().startswith('<div class="asked">')
    assert "Approved by Local admin" in part.text
    assert 'name="answer"' not in part.text


async def test_who_may_not_answer_sees_the_question_without_the_form(
    admin: AsyncClient, house: Any, asked: tuple[str, str]
) -> None:
    await house.execute("UPDATE members SET level = 'viewer'")
    page = (await admin.get(f"{ROOT}/approvals")).text
    assert "The owner of the automation or an admin can answer." in page
    assert 'name="answer"' not in page
    await house.set_run(automation_id=None)  # as a chat's
    assert "The owner of the session or an admin can answer." in (await admin.get(f"{ROOT}/approvals")).text
    assert (await admin.post(f"{ROOT}/approvals/{asked[0]}", data={"answer": "now"})).status_code == 403


async def test_a_member_sees_and_counts_the_questions_that_they_may_answer(
    admin: AsyncClient, house: Any, asked: tuple[str, str]
) -> None:
    async def badge() -> bool:
        return '<span class="unseen"> waiting</span>' in (await admin.get(f"{ROOT}/fleet")).text

    mine, others = f"{ROOT}/approvals", f"{ROOT}/approvals?status=others"
    assert await badge()
    await house.execute("UPDATE members SET level = 'member'")
    assert await badge()
    assert f"a-{asked[0]}" in (await admin.get(mine)).text
    assert f"a-{asked[0]}" not in (await admin.get(others)).text
    await house.execute("INSERT INTO users (id, name) VALUES (gen_random_uuid(), 'Ann')")
    for table in ("sessions", "automations"):
        await house.execute(f"UPDATE {table} SET owner_id = (SELECT id FROM users WHERE name = 'Ann')")
    assert not await badge()
    assert f"a-{asked[0]}" not in (await admin.get(mine)).text
    theirs = (await admin.get(others)).text
    assert f"a-{asked[0]}" in theirs
    assert 'name="answer"' not in theirs
    await house.execute("UPDATE members SET level = 'viewer'")
    assert not await badge()
    assert f"a-{asked[0]}" in (await admin.get(mine)).text  # viewers, who answer none, see all in one list


@pytest.mark.parametrize(("path", "status"), [("?cursor=odd", 422), ("/odd", 404), (f"/{UNKNOWN}", 404)])
async def test_an_address_that_makes_no_sense_is_a_page_too(admin: AsyncClient, path: str, status: int) -> None:
    answer = await admin.get(f"{ROOT}/approvals{path}")
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(("parked", "told"), [(False, "asked to stop"), (True, "The run is cancelled.")])
async def test_who_cancels_is_told_whether_somebody_has_to_stop_first(
    admin: AsyncClient, house: Any, asked: tuple[str, str], parked: bool, told: str
) -> None:
    """One waits in its process, the other is parked."""
    if parked:
        await house.set_run(lease_until=None)
    run_id = (await house.run())["id"]
    headers = {"HX-Request": "true", "Origin": "http://rota.test"}
    answer = await admin.post(f"{ROOT}/runs/{run_id}/cancel", headers=headers)
    assert told in answer.text
