"""The desk over HTTP: every verb, for the attempt alone, fenced, and once for its key."""

import asyncio
import hashlib
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from httpx import Response

from rota.db.listener import ANSWERS
from rota.http import redacting
from rota.model.budget import MOST_UNITS
from rota.model.executor import LARGEST_CHECKPOINT
from rota.model.ids import ApprovalId
from rota.model.outcome import Succeeded
from rota.model.session import MOST_ROLES, MOST_TASKS
from rota.sessions import approvals
from rota.sessions import seat as desk
from rota.watch.prune import Prune
from support import api_client, run_state
from support.api_client import Api, AtWork, Office, assert_ok, assert_refused, example
from support.run_state import from_now
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

DAY = timedelta(days=1)


class Seat:
    """An agent at work, and its way to its desk."""

    def __init__(self, office: Office, client: Api, at_work: AtWork) -> None:
        self.office, self.at_work = office, at_work
        self.api = Api(client.client, client.workspace, at_work.token)
        self.path = f"/runs/{at_work.id}/desk"
        self.session = f"/sessions/{at_work.assignment.session_id}"

    async def send(self, method: str, verb: str, json: Any = None, **options: Any) -> Response:
        given = {"json": json} if json is not None else {}
        return await self.api.send(method, f"{self.path}/{verb}", **given, **options)

    async def post(self, verb: str, json: Any = None, **options: Any) -> Response:
        return await self.send("POST", verb, json, **options)

    async def log(self, kind: str) -> list[dict[str, Any]]:
        events = (await self.api.get(f"{self.session}/events", limit=100)).json()["items"]
        return [each for each in events if each["kind"] == kind]


@pytest_asyncio.fixture(loop_scope="module")
async def seat(office: Office, api: Api) -> Seat:
    automation = assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    return Seat(office, api, await office.claim())


# Verbs -------------------------------------------------------------------------------------------------------------


async def test_what_it_says_and_uses_stands_in_the_log_under_its_attempt(seat: Seat) -> None:
    assert (await seat.post("say", {"text": "x" * 40_000})).status_code == 204
    assert (await seat.post("tool", {"name": "grep", "data": {"hits": 3}})).status_code == 204
    assert [len(each["data"]["text"]) for each in await seat.log("output")] == [32_768, 7_232]
    [used] = await seat.log("tool")
    assert (used["data"], used["run_id"], used["attempt"]) == ({"name": "grep", "hits": 3}, str(seat.at_work.id), 1)


@pytest.mark.parametrize("before", ["", "Beginning.\n"])
async def test_what_it_said_last_over_http_sums_up_the_run(seat: Seat, office: Office, before: str) -> None:
    await seat.at_work.desk.say(before)
    await finished(seat)
    assert (await seat.post("say", {"text": "All plants are watered.\n\n"})).status_code == 204
    await office.settle(seat.at_work, Succeeded())
    assert (await office.run(seat.at_work.id))["summary"] == "All plants are watered."


async def test_a_secret_that_is_cut_in_two_requests_is_found_all_the_same(office: Office, api: Api) -> None:
    secret = f"Zq7/{office.caller.workspace_slug}+secret&9x"
    assert_ok(await api.post("/credentials", {"name": "canary", "value": secret}))
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"KEY": "canary"}}), 200)
    for at in (1, 3, 4, 9, len(secret) - 1):
        assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sing."}))
        seat = Seat(office, api, await office.claim())
        for piece in ("cut ", secret[:at], secret[at:], "!"):
            assert (await seat.post("say", {"text": piece})).status_code == 204
        said = "".join(each["data"]["text"] for each in await seat.log("output"))
        letters = secret[: min(at, 3)] if at <= 3 else ""  # that were given out before it could be known
        assert said == f"cut {letters}[redacted]!", at
        stored = await office.value("SELECT string_agg(e::text, '') FROM events e WHERE run_id = %s", seat.at_work.id)
        assert secret[4:] not in stored
        await office.settle(seat.at_work)
    assert await office.value("SELECT count(*) FROM held_words") == 0


async def test_a_secret_that_is_replaced_between_two_requests_does_not_speak_for_the_one_before(
    office: Office, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redacting, "KNOWN_SECONDS", 0.0)
    assert_ok(await api.post("/credentials", {"name": "turned", "value": "swordfish-and-herring"}))
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"KEY": "turned"}}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Fish."}))
    seat = Seat(office, api, await office.claim())
    assert (await seat.post("say", {"text": "It is swordfi"})).status_code == 204
    assert_ok(await api.patch("/credentials/turned", {"value": "marmalade-on-toast-for-breakfast"}), 200)
    assert (await seat.post("say", {"text": " and so on."})).status_code == 204
    assert "".join(each["data"]["text"] for each in await seat.log("output")) == "It is  and so on."
    await office.settle(seat.at_work)


@pytest.mark.parametrize("fate", ["replaced", "closed", "deleted"])
async def test_an_attempt_speaks_on_and_hides_what_it_was_given_whatever_became_of_that(
    office: Office, api: Api, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    monkeypatch.setattr(redacting, "KNOWN_SECONDS", 0.0)
    secret = "swordfish-and-herring"
    assert_ok(await api.post("/credentials", {"name": "of-old", "value": secret}))
    automation = assert_ok(await api.post("/automations", example(credentials={"KEY": "of-old"})))
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    seat = Seat(office, api, await office.claim())
    await office.set_run(seat.at_work.id, started_at=from_now(hours=-1))
    if fate == "replaced":
        for value in ("marmalade-on-toast", "marmalade-and-butter"):
            assert_ok(await api.patch("/credentials/of-old", {"value": value}), 200)
    elif fate == "closed":
        await office.execute("UPDATE members SET level = 'member' WHERE user_id = %s", office.caller.user_id)
    else:
        assert_ok(await api.patch(f"/automations/{automation['id']}", {"credentials": {}}), 200)
        assert (await api.delete("/credentials/of-old")).status_code == 204
    assert (await seat.post("say", {"text": f"It is {secret}."})).status_code == 204
    await office.execute("UPDATE members SET level = 'admin' WHERE user_id = %s", office.caller.user_id)
    [said] = await seat.log("output")
    assert said["data"]["text"] == "It is [redacted]."
    await office.execute("UPDATE former_credentials SET replaced_at = replaced_at - interval '2 minutes'")
    prune, kept = Prune(office.db, keep_events=DAY, keep_snapshots=DAY), "SELECT count(*) FROM former_credentials"
    await prune.once()
    assert await office.value(kept) == {"replaced": 2, "closed": 0, "deleted": 1}[fate]
    await office.settle(seat.at_work)
    await prune.once()
    assert await office.value(kept) == 0


async def test_a_token_behind_more_than_one_blank_hides_what_its_attempt_was_given(office: Office, api: Api) -> None:
    assert_ok(await api.post("/credentials", {"name": "blank", "value": "swordfish-and-herring"}))
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"KEY": "blank"}}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Fish."}))
    seat = Seat(office, api, await office.claim())
    headers = {"Authorization": f"Bearer  {seat.at_work.token}"}
    told = {"name": "catch", "data": {"key": "swordfish-and-herring"}}
    assert (await seat.post("tool", told, headers=headers)).status_code == 204
    [used] = await seat.log("tool")
    assert used["data"]["key"] == "[redacted]"
    await office.settle(seat.at_work)


async def test_a_secret_is_found_in_an_address_however_it_is_written_and_in_headers(office: Office, api: Api) -> None:
    secret = "swordfish-and-herring"
    assert_ok(await api.post("/credentials", {"name": "escaped", "value": secret}))
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"KEY": "escaped"}}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Fish."}))
    seat = Seat(office, api, await office.claim())
    every = "".join(f"%{ord(letter):02x}" for letter in secret)
    left = assert_ok(await seat.send("POST", f"artifact?name=a%20{every}.txt", content=b"", key=secret))
    assert (left["name"], left["media_type"]) == ("a [redacted].txt", "text/plain")
    told = await seat.send("POST", "artifact?name=b", content=b"", headers={"Content-Type": f"text/{secret}"})
    assert_refused(told, 422, "invalid_media_type", "media_type")
    kept = await office.value("SELECT array_agg(key) FROM write_keys WHERE scope_id = %s", seat.at_work.id)
    assert kept == ["[redacted]"]
    await office.settle(seat.at_work)


async def test_what_only_looked_like_a_secret_is_said_with_the_next_words(office: Office, api: Api) -> None:
    assert_ok(await api.post("/credentials", {"name": "phrase", "value": "correct horse battery"}))
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"KEY": "phrase"}}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Ride."}))
    seat = Seat(office, api, await office.claim())
    for piece, key in (("the correct", "one"), ("the correct", "one"), ("ion is done", "two")):
        assert (await seat.post("say", {"text": piece}, headers={"Idempotency-Key": key})).status_code == 204
    assert "".join(each["data"]["text"] for each in await seat.log("output")) == "the correction is done"
    await office.settle(seat.at_work)


async def test_usage_adds_up_beside_what_the_worker_records(office: Office, seat: Seat) -> None:
    """The worker writes its total again and again; the agent adds. Neither swallows or doubles the other."""
    amount = "SELECT amount FROM usage WHERE run_id = %s AND unit = 'tokens'"
    await seat.at_work.desk.usage("tokens", 10)
    await finished(seat)
    for _ in range(2):
        assert (await seat.post("usage", {"unit": "tokens", "amount": 5})).status_code == 204
    assert await office.value(amount, seat.at_work.id) == 20
    await seat.at_work.desk.usage("tokens", 1)
    await finished(seat)
    assert await office.value(amount, seat.at_work.id) == 21


async def finished(seat: Seat) -> None:
    """All that the worker's own desk was given is written."""
    await seat.at_work.desk.finish()  # type: ignore[attr-defined]


async def test_words_of_both_ways_stand_in_one_sequence(seat: Seat) -> None:
    await asyncio.gather(
        *(seat.post("say", {"text": f"http {n}\n"}) for n in range(10)),
        *(seat.at_work.desk.say(f"pipe {n}\n") for n in range(10)),
    )
    await finished(seat)
    text = "".join(each["data"]["text"] for each in await seat.log("output"))
    assert sorted(text.split("\n")[:-1]) == sorted(f"{way} {n}" for way in ("http", "pipe") for n in range(10))
    numbers = [each["seq"] for each in (await seat.api.get(f"{seat.session}/events", limit=100)).json()["items"]]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_it_sends_reads_and_acknowledges_messages(seat: Seat, api: Api) -> None:
    sent = assert_ok(await seat.post("message", {"body": {"done": 1}, "to": "user"}))
    assert (sent["from"], sent["run_id"], sent["attempt"]) == ("agent", str(seat.at_work.id), 1)
    asked = assert_ok(await api.post(f"{seat.session}/messages", {"body": "And now?"}))
    [read] = assert_ok(await seat.send("GET", "inbox"), 200)["items"]
    assert (read["id"], read["body"]) == (asked["id"], "And now?")
    for _ in range(2):
        assert (await seat.post("ack", {"ids": [read["id"]]})).status_code == 204
    assert assert_ok(await seat.send("GET", "inbox"), 200)["items"] == []
    assert_refused(await seat.post("ack", {"ids": [sent["id"]]}), 404, "not_delivered", "ids")


async def test_it_leaves_artifacts(seat: Seat) -> None:
    kept = assert_ok(await seat.api.send("POST", f"{seat.path}/artifact", params={"name": "r.md"}, content=b"# R"))
    assert (kept["run_id"], kept["attempt"], kept["sha256"]) == (
        str(seat.at_work.id), 1, hashlib.sha256(b"# R").hexdigest(),
    )  # fmt: skip
    assert_ok(await seat.post("artifact", {"uri": "https://example.org/pull/1"}))
    assert len(await seat.log("artifact")) == 2


async def test_it_remembers_for_the_next_run(seat: Seat, office: Office, api: Api) -> None:
    kept = assert_ok(await seat.send("PUT", "memory/last", {"value": [1], "ttl": "1h", "confidence": 1}), 200)
    assert kept["run_id"] == str(seat.at_work.id)
    automation = seat.at_work.assignment.automation_id
    await office.settle(seat.at_work)
    assert_ok(await api.post(f"/automations/{automation}/run"))
    later = Seat(office, api, await office.claim())
    assert assert_ok(await later.send("GET", "memory/last"), 200)["value"] == [1]
    assert [each["key"] for each in assert_ok(await later.send("GET", "memory"), 200)["items"]] == ["last"]
    assert_refused(await later.send("DELETE", "memory/last", {"value": [1]}), 422, "invalid", "value")
    assert (await later.send("DELETE", "memory/last")).status_code == 204
    assert_refused(await later.send("GET", "memory/last"), 404, "not_found")


async def test_a_run_without_an_automation_has_no_memory(office: Office, api: Api) -> None:
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    seat = Seat(office, api, await office.claim())
    assert_refused(await seat.send("PUT", "memory/last", {"value": 1}), 409, "no_automation")
    assert_refused(await seat.send("GET", "memory/last"), 409, "no_automation")


async def test_it_keeps_a_checkpoint_of_any_bytes(seat: Seat) -> None:
    assert_refused(await seat.send("GET", "checkpoint"), 404, "not_found")
    data = bytes(range(256)) * 5000  # larger than a request may be
    assert (await seat.api.send("PUT", f"{seat.path}/checkpoint", content=data)).status_code == 204
    assert (await seat.send("GET", "checkpoint")).content == data
    too_large = await seat.api.send("PUT", f"{seat.path}/checkpoint", content=b"x" * (LARGEST_CHECKPOINT + 1))
    assert_refused(too_large, 413, "checkpoint_too_large")


async def test_it_asks_and_waits_for_the_answer(seat: Seat, office: Office) -> None:
    asked = assert_ok(await seat.post("ask", {"question": "Shall I?", "key": "once"}))
    assert (asked["status"], asked["approved"]) == ("pending", None)
    assert assert_ok(await seat.post("ask", {"question": "Shall I?", "key": "once"})) == asked
    assert assert_ok(await seat.send("GET", f"ask/{asked['approval_id']}", params={"wait": "0.05s"}), 200) == asked
    waiting = asyncio.create_task(seat.send("GET", f"ask/{asked['approval_id']}", params={"wait": "30s"}))
    async with office.db.transaction() as conn:
        await approvals.answer(conn, office.caller, ApprovalId(UUID(asked["approval_id"])), "refuse", text="Not today.")
    office.site.web.wakes.send(ANSWERS, [asked["approval_id"]])
    async with asyncio.timeout(10):
        answered = assert_ok(await waiting, 200)
    assert (answered["status"], answered["approved"], answered["text"]) == ("refused", False, "Not today.")
    assert (await seat.post("say", {"text": "Then not."})).status_code == 204


async def test_a_question_without_a_key_is_asked_anew_but_by_a_later_attempt(seat: Seat, office: Office) -> None:
    question = {"question": "Shall I?"}
    first = assert_ok(await seat.post("ask", question, key="first try"))
    second = assert_ok(await seat.post("ask", question, key="second try"))
    assert first != second
    await office.execute("UPDATE approvals SET attempt = 0 WHERE id = %s", UUID(second["approval_id"]))  # asked then
    for _ in range(2):  # what takes it over is repeated too
        assert assert_ok(await seat.post("ask", question, key="later")) == second
    assert await office.value("SELECT count(*) FROM approvals WHERE run_id = %s", seat.at_work.id) == 2


async def test_it_works_on_while_it_waits(seat: Seat) -> None:
    assert_ok(await seat.post("ask", {"question": "Shall I?"}))
    assert (await seat.post("say", {"text": "Waiting …"})).status_code == 204
    assert_ok(await seat.post("message", {"body": "Waiting."}))


async def test_it_adds_tasks_in_its_role_and_talks_to_others(office: Office, api: Api) -> None:
    roles = [{"name": name, "agent": "worker-bee"} for name in ("planner", "worker")]
    given = {
        "kind": "background",
        "goal": "Tidy up.",
        "roles": roles,
        "tasks": [{"role": "planner", "prompt": "Plan."}],
    }
    session = assert_ok(await api.post("/sessions", given))
    planner = Seat(office, api, await office.claim())
    assert planner.session == f"/sessions/{session['id']}"
    body = {
        "tasks": [
            {"key": "a", "role": "worker", "prompt": "A."},
            {"role": "worker", "prompt": "B.", "depends_on": ["a"]},
        ]
    }
    first, second = assert_ok(await planner.post("task", body, key="k"))["items"]
    assert (first["status"], second["status"], first["added_by_run"]) == ("ready", "pending", str(planner.at_work.id))
    assert assert_ok(await planner.post("task", body, key="k"))["items"][0]["id"] == first["id"]
    assert len(assert_ok(await planner.send("GET", "task"), 200)["items"]) == 3
    assert_ok(await planner.post("message", {"body": "Begin.", "to": "worker"}))
    worker = Seat(office, api, await office.claim())
    [read] = assert_ok(await worker.send("GET", "inbox"), 200)["items"]
    assert (read["from"], read["body"]) == ("planner", "Begin.")
    assert_refused(
        await planner.post("task", {"tasks": [{"role": "nobody", "prompt": "x"}]}), 422, "unknown_role", "tasks.0.role"
    )


async def test_it_may_report_only_so_many_units_and_those_of_budgets_always(seat: Seat, office: Office) -> None:
    for number in range(MOST_UNITS):
        await seat.at_work.desk.usage(f"unit-{number}", 1)
    await finished(seat)
    told = await seat.post("usage", {"unit": "one more", "amount": 1})
    assert str(MOST_UNITS) in assert_refused(told, 422, "too_many_units", "unit")["detail"]
    for unit in ("unit-0", "money"):
        assert (await seat.post("usage", {"unit": unit, "amount": 1})).status_code == 204
    assert await office.value("SELECT count(*) FROM usage WHERE run_id = %s", seat.at_work.id) == MOST_UNITS + 1


async def test_it_does_not_become_whom_it_gives_a_task(seat: Seat, office: Office) -> None:
    assert_ok(await seat.post("task", {"tasks": [{"role": "helper", "prompt": "Sweep."}]}))
    assert_ok(await seat.post("message", {"body": "Begin.", "to": "helper"}))
    assert assert_ok(await seat.send("GET", "inbox"), 200)["items"] == []
    helper = Seat(office, seat.api, await office.claim())
    [read] = assert_ok(await helper.send("GET", "inbox"), 200)["items"]
    assert (read["from"], read["body"]) == ("agent", "Begin.")
    assert_ok(await helper.post("message", {"body": "Swept.", "to": "agent"}))
    assert_ok(await helper.post("message", {"body": "Who is next?"}))
    heard = assert_ok(await seat.send("GET", "inbox"), 200)["items"]
    assert [(each["from"], each["body"]) for each in heard] == [("helper", "Swept."), ("helper", "Who is next?")]
    assert assert_ok(await seat.api.get(f"{seat.session}/messages", role="agent"), 200)["items"] == heard


async def test_a_session_has_only_so_many_roles(seat: Seat, office: Office, api: Api) -> None:
    run = await office.run(seat.at_work.id)
    await office.execute(
        "INSERT INTO session_roles (workspace_id, session_id, name, agent_id, grant_id) "
        "SELECT %s, %s, 'helper-' || n, %s, %s FROM generate_series(2, %s) AS n",
        run["workspace_id"], run["session_id"], run["agent_id"], run["grant_id"], MOST_ROLES,
    )  # fmt: skip
    both = {"tasks": [{"role": role, "prompt": "Sweep."} for role in ("first", "second")]}
    assert_refused(await seat.post("task", both), 409, "too_many_roles")
    first, second = ({"name": name, "agent": "worker-bee"} for name in ("first", "second"))
    assert_ok(await api.post(f"{seat.session}/roles", first))
    assert_refused(await api.post(f"{seat.session}/roles", second), 409, "too_many_roles")


async def test_a_session_has_only_so_many_tasks(seat: Seat, office: Office) -> None:
    """An agent whose tasks add tasks of the same kind comes to an end."""
    session_id = seat.session.rpartition("/")[2]
    one, two = ({"tasks": [{"role": "helper", "prompt": "Sweep."}] * many} for many in (1, 2))
    assert_ok(await seat.post("task", one))
    await office.execute(
        "INSERT INTO tasks (workspace_id, session_id, id, key, role, prompt, status, unmet, timeout, batch, finished_at) "
        "SELECT workspace_id, session_id, gen_random_uuid(), 'key-' || n, role, prompt, 'skipped', 0, timeout, batch, now() "
        "FROM tasks, generate_series(3, %s) AS n WHERE session_id = %s",
        MOST_TASKS, session_id,
    )  # fmt: skip
    await office.execute("UPDATE sessions SET last_seq = %s WHERE id = %s", MOST_TASKS, session_id)
    assert_refused(await seat.post("task", two), 409, "too_many_tasks")
    assert_ok(await seat.post("task", one))
    assert_refused(await seat.post("task", one), 409, "too_many_tasks")


async def test_a_role_that_it_named_in_an_earlier_turn_is_not_its_own_in_the_next(office: Office, api: Api) -> None:
    session = assert_ok(await api.post("/sessions", {"agent": "worker-bee", "prompt": "Tidy up."}))
    helping = {"tasks": [{"role": "helper", "prompt": "Sweep."}]}
    first = Seat(office, api, await office.claim())
    assert_ok(await first.post("task", helping))
    await office.settle(first.at_work)
    await office.settle(await office.claim())  # who swept
    await office.execute(
        "UPDATE grants SET expires_at = now() WHERE id = %s", (await office.run(first.at_work.id))["grant_id"]
    )
    assert_ok(await api.post(f"/sessions/{session['id']}/messages", {"prompt": "Once more."}))
    second = Seat(office, api, await office.claim())
    assert_ok(await second.post("message", {"body": "Begin.", "to": "helper"}))
    assert assert_ok(await second.send("GET", "inbox"), 200)["items"] == []
    assert_ok(await second.post("task", helping))  # on a grant that holds
    helper = Seat(office, api, await office.claim())
    [read] = assert_ok(await helper.send("GET", "inbox"), 200)["items"]
    assert (read["from"], read["body"]) == ("agent", "Begin.")


async def test_requests_at_the_same_moment_do_not_add_more_tasks_together_than_one_run_may(
    office: Office, api: Api
) -> None:
    """Provoked: somebody holds the session while eight requests come, each for one task."""
    automation = assert_ok(await api.post("/automations", example(max_tasks=3)))
    run = assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    seat = Seat(office, api, await office.claim())
    one = {"tasks": [{"role": "helper", "prompt": "Sweep."}]}
    waiting = (
        "SELECT count(*) >= 4 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with office.db.transaction() as conn:
        await conn.execute("SELECT FROM sessions WHERE id = %s FOR UPDATE", [run["session_id"]])
        requests = [asyncio.create_task(seat.post("task", one)) for _ in range(8)]
        await until(lambda: office.value(waiting))
    answers = await asyncio.gather(*requests)
    assert sorted(each.status_code for each in answers) == [201] * 3 + [409] * 5
    for each in answers:
        if each.status_code == 409:
            told = assert_refused(each, 409, "too_many_tasks_of_run", "tasks")
            assert (told["limit"], told["refused"]) == (3, 1)
    assert len((await api.get(f"{seat.session}/tasks")).json()["items"]) == 3
    found = assert_ok(await api.get(f"/runs/{run['id']}"), 200)
    assert found["refused_tasks"] == {"too_many_tasks_of_run": 5}
    [told] = [each["data"] for each in await seat.log("run") if "tasks_refused" in each["data"]]
    assert told["tasks_refused"] == "too_many_tasks_of_run"
    assert re.findall(r"\d+", told["reason"])[:1] == ["3"]
    lines = (await api.get(f"{seat.session}/transcript")).json()["items"]
    assert [each["text"] for each in lines if "refused" in each["text"]] == [f"Tasks were refused: {told['reason']}"]


async def test_a_task_adds_tasks_that_are_one_deeper_and_a_person_begins_anew(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(max_task_depth=1)))
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    seat = Seat(office, api, await office.claim())
    one = {"tasks": [{"role": "helper", "prompt": "Sweep."}]}
    assert_ok(await seat.post("task", one))
    helper = Seat(office, api, await office.claim())
    told = assert_refused(await helper.post("task", one), 409, "task_depth", "tasks")
    assert told["detail"] == (
        "These tasks would have depth 2; tasks that add tasks may go 1 deep (policy `max_task_depth`)."
    )
    assert_ok(await api.post(f"{seat.session}/tasks", one))  # a person is not held to it
    depths = "SELECT array_agg(depth ORDER BY depth) FROM tasks WHERE session_id = %s"
    assert await office.value(depths, UUID(seat.session.rpartition("/")[2])) == [1, 1]
    assert_ok(await api.patch(f"/automations/{automation['id']}", {"max_task_depth": 2}), 200)
    assert_ok(await helper.post("task", one))  # what the automation says now counts
    assert await office.value(depths, UUID(seat.session.rpartition("/")[2])) == [1, 1, 2]


EVERYBODY_HEARS = [("Hear", {"event": "swept"}), ("Hear more", {"event": "swept"}), ("Deaf", {"event": "other"})]


async def test_it_posts_an_event_that_starts_who_waits_for_it(seat: Seat, api: Api) -> None:
    waiting = [await waits(api, *each) for each in EVERYBODY_HEARS]
    given = {"event": "swept", "data": {"rooms": 3}}
    fired = assert_ok(await seat.post("event", given, key="k"), 202)["runs"]
    started = [assert_ok(await api.get(f"/runs/{each}"), 200) for each in fired]
    assert {each["automation_id"] for each in started} == set(waiting[:2])
    assert {each["source"] for each in started} == {"event"}
    assert started[0]["payload"] == {**given, "run_id": str(seat.at_work.id)}
    own = await seat.at_work.desk.event("swept", given["data"], key="k")  # by its worker it is the same one
    assert sorted(map(str, own["runs"])) == sorted(fired)
    assert assert_ok(await seat.post("event", {"event": "nobody.waits"}), 202) == {"runs": []}
    assert_refused(await seat.post("event", {"event": "no name!"}), 422, "invalid_event", "event")


async def waits(api: Api, name: str, *triggers: Any) -> str:
    return str(assert_ok(await api.post("/automations", example(name=name, triggers=triggers)))["id"])


async def test_agents_do_not_start_each_other_in_a_circle(office: Office, api: Api) -> None:
    """Alpha's agent posts x, which starts Beta; Beta's end starts Gamma; the agent of a task of Gamma's posts what the others
    wait for."""
    a = await waits(api, "Alpha", {"event": "y"}, {"event": "self"})
    await waits(api, "Beta", {"event": "x"})
    await waits(api, "Gamma", {"after": "beta"})
    assert_ok(await api.post(f"/automations/{a}/run"))
    first = Seat(office, api, await office.claim())
    assert_refused(await first.post("event", {"event": "self"}), 422, "event_cycle", "event")
    assert_ok(await first.post("event", {"event": "x"}), 202)
    second = Seat(office, api, await office.claim())
    await office.settle(second.at_work, Succeeded())
    third = Seat(office, api, await office.claim())
    assert third.at_work.assignment.source == "after"
    assert_ok(await third.post("task", {"tasks": [{"role": "helper", "prompt": "Post."}]}))
    await office.settle(third.at_work, Succeeded())
    helper = Seat(office, api, await office.claim())
    before = await office.count(*WRITTEN)
    for event, again in (("x", "beta"), ("y", "alpha")):
        circle = assert_refused(await helper.post("event", {"event": event}), 422, "event_cycle", "event")
        assert again in circle["detail"]
    assert await office.count(*WRITTEN) == before


async def test_while_an_event_waits_for_an_automation_its_run_is_free(seat: Seat, office: Office, api: Api) -> None:
    """Provoked: who has the automation wants the run next, as a run that replaces another does."""
    heard = await waits(api, "Hear", {"event": "swept"})
    async with office.db.transaction() as conn:
        await conn.execute("SELECT FROM automations WHERE id = %s FOR NO KEY UPDATE", [heard])
        posting = asyncio.create_task(seat.post("event", {"event": "swept"}))
        await office.site.waiting_for_a_lock(1)
        await run_state.find_run(conn, "FOR UPDATE", id=seat.at_work.id)
    assert len(assert_ok(await posting, 202)["runs"]) == 1


async def test_it_posts_no_event_for_somebody_who_may_not(seat: Seat, office: Office, api: Api) -> None:
    await waits(api, "Hear", {"event": "swept"})
    await office.execute("UPDATE members SET level = 'viewer' WHERE user_id = %s", office.caller.user_id)
    assert_refused(await seat.post("event", {"event": "swept"}), 403, "forbidden")


# Whose desk --------------------------------------------------------------------------------------------------------

VERBS: list[tuple[str, str, Any]] = [
    ("POST", "say", {"text": "x"}),
    ("POST", "tool", {"name": "x"}),
    ("POST", "usage", {"unit": "tokens", "amount": 1}),
    ("POST", "message", {"body": "x"}),
    ("GET", "inbox", None),
    ("POST", "ack", {"ids": [1]}),
    ("GET", "task", None),
    ("POST", "task", {"tasks": [{"role": "worker", "prompt": "x"}]}),
    ("POST", "event", {"event": "swept", "data": [1]}),
    ("POST", "artifact", {"uri": "https://example.org/"}),
    ("POST", "artifact?name=x", {"any": "content"}),
    ("GET", "memory", None),
    ("GET", "memory/last", None),
    ("PUT", "memory/last", {"value": 1}),
    ("DELETE", "memory/last", None),
    ("GET", "checkpoint", None),
    ("PUT", "checkpoint", {"any": "content"}),
    ("POST", "ask", {"question": "x"}),
    ("GET", "ask/01a1e0db-2cd9-7826-809d-0931e0e98709", None),
]
WRITTEN = (
    "runs",
    "events",
    "usage",
    "deliveries",
    "artifacts",
    "memory",
    "checkpoints",
    "approvals",
    "write_keys",
    "tasks",
)


async def test_only_the_attempt_itself_sits_at_its_desk(seat: Seat, office: Office, api: Api) -> None:
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    other = Seat(office, api, await office.claim())
    before = await office.count(*WRITTEN)
    for method, verb, body in VERBS:
        given = {"json": body} if body is not None else {}
        for who in (api, await office.api("viewer"), other.api):
            assert_refused(await who.send(method, f"{seat.path}/{verb}", **given), 403, "not_at_desk")
    assert await office.count(*WRITTEN) == before


@pytest.mark.parametrize("loss", ["lease", "attempt", "grant"])
async def test_a_zombie_is_refused_at_every_verb_and_leaves_nothing(seat: Seat, office: Office, loss: str) -> None:
    await office.take_away(loss, seat.at_work)
    before = await office.count(*WRITTEN)
    for method, verb, body in VERBS:
        assert_refused(await seat.send(method, verb, body), 401, "attempt_over")
    assert await office.count(*WRITTEN) == before


@pytest.mark.parametrize(("method", "verb", "body"), [each for each in VERBS if each[0] != "GET"])
async def test_an_attempt_that_is_lost_between_its_token_and_its_write_writes_nothing(
    seat: Seat, office: Office, monkeypatch: pytest.MonkeyPatch, method: str, verb: str, body: Any
) -> None:
    """The token was good; then the lease went; the write itself must find out."""
    of_attempt = desk.of_attempt

    async def then_lost(*given: Any) -> Any:
        found = await of_attempt(*given)
        await office.take_away("lease", seat.at_work)
        return found

    monkeypatch.setattr(desk, "of_attempt", then_lost)
    before = await office.count(*WRITTEN)
    assert_refused(await seat.send(method, verb, body), 401, "attempt_over")
    assert await office.count(*WRITTEN) == before


# Once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "verb", "body"),
    [each for each in VERBS if each[0] != "GET" and each[1] not in {"ack", "memory/last", "task"}],
)
async def test_a_repeat_with_its_key_is_done_once(
    seat: Seat, office: Office, method: str, verb: str, body: Any
) -> None:
    first = await seat.send(method, verb, body, key="k")
    assert first.is_success, first.text
    once = await office.count(*WRITTEN)
    spent = await office.value("SELECT sum(amount) FROM usage")
    again = await seat.send(method, verb, body, key="k")
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert await office.count(*WRITTEN) == once
    assert await office.value("SELECT sum(amount) FROM usage") == spent


async def test_a_key_is_for_one_request(seat: Seat) -> None:
    assert (await seat.post("say", {"text": "one"}, key="k")).status_code == 204
    assert_refused(await seat.post("say", {"text": "two"}, key="k"), 422, "key_reused", "Idempotency-Key")
    assert_refused(await seat.post("say", {"text": "one"}, key=""), 422, "invalid_key", "Idempotency-Key")


# Refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "body", "status", "code", "field"),
    [
        ("say", {"text": ""}, 422, "invalid", "text"),
        ("say", {"text": "x", "to": "y"}, 422, "invalid", "to"),
        ("tool", {"name": "x" * 201}, 422, "invalid", "name"),
        ("usage", {"unit": "tokens", "amount": -1}, 422, "invalid", "amount"),
        ("usage", {"unit": "tokens", "amount": 1e15}, 422, "invalid", "amount"),
        ("message", {"body": "x", "to": "nobody"}, 422, "unknown_role", "to"),
        ("ack", {"ids": []}, 422, "invalid", "ids"),
        ("ask", {"question": " "}, 422, "invalid", "question"),
        ("ask", {"question": "x", "options": [{"id": "a", "label": "A"}]}, 422, "invalid", "options.0.approves"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    seat: Seat, verb: str, body: Any, status: int, code: str, field: str
) -> None:
    assert_refused(await seat.post(verb, body), status, code, field)
