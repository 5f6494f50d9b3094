"""The tools: each does what its route does, for whom its route does it, and says what it takes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator

from rota.access import signing_in
from rota.http.attempt_access import OWN
from rota.mcp import tools
from rota.mcp.forms import USUAL_LIMIT
from rota.mcp.tools import READS, TOOLS
from rota.model.ids import UserId
from rota.model.scope import Scope
from support import api_client
from support.api_client import DAILY, UNKNOWN, Api, Office, Site, assert_ok, example, furnish
from support.mcp_client import Wire
from support.waiting import until

from .test_rates import FAR, limited

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api


async def wire_of(office: Office, level: str = "admin", *, scopes: list[Scope] | None = None) -> Wire:
    user_id = office.caller.user_id if level == "admin" else await office.member(level)
    return await with_token(office, user_id, scopes)


async def with_token(office: Office, user_id: UserId, scopes: list[Scope] | None = None) -> Wire:
    async with office.db.transaction() as conn:
        given: dict[str, Any] = {"scopes": scopes} if scopes is not None else {}
        _, token = await signing_in.add_token(conn, office.caller.workspace_id, user_id, "model", **given)
    return Wire(office.site.client(), token)


@pytest_asyncio.fixture(loop_scope="module")
async def wire(office: Office) -> Wire:
    """The admin's model."""
    return await wire_of(office)


# What they say of themselves -----------------------------------------------------------------------------------------


async def test_every_schema_is_valid_whole_and_takes_its_example(wire: Wire) -> None:
    listed = await wire.tools()
    assert list(listed) == [tool.name for tool in TOOLS]
    for tool in TOOLS:
        schema = listed[tool.name]["inputSchema"]
        Draft202012Validator.check_schema(schema)
        assert "$ref" not in json.dumps(schema), tool.name
        assert schema["examples"] == [tool.example]
        checked = Draft202012Validator(schema)
        checked.validate(tool.example)
        assert not checked.is_valid({**tool.example, "no_such_argument": 1}), tool.name


async def test_every_tool_tells_a_model_what_it_does_and_what_it_changes(wire: Wire) -> None:
    for name, told in (await wire.tools()).items():
        tool, hints = tools.BY_NAME[name], told["annotations"]
        assert len(told["description"]) > 40, name
        assert hints["readOnlyHint"] is (tool.effect is READS)
        assert hints["readOnlyHint"] is (tool.needs is Scope.READ), name
        assert not (hints["readOnlyHint"] and hints["destructiveHint"])
        assert "workspace" not in told["inputSchema"]["properties"]


async def test_lists_are_short_unless_more_is_asked_for_and_can_be_paged(wire: Wire, office: Office, api: Api) -> None:
    for number in range(USUAL_LIMIT + 2):
        assert_ok(await api.post("/automations", example(name=f"Digest {number}")))
    limit = (await wire.tools())["list_automations"]["inputSchema"]["properties"]["limit"]
    assert (limit["default"], limit["maximum"]) == (USUAL_LIMIT, 100)
    page = await wire.assert_done("list_automations")
    assert len(page["items"]) == USUAL_LIMIT
    rest = await wire.assert_done("list_automations", cursor=page["next_cursor"])
    assert (len(rest["items"]), rest["next_cursor"]) == (2, None)
    assert len((await wire.assert_done("list_automations", limit=100))["items"]) == USUAL_LIMIT + 2


async def test_an_answer_is_the_same_as_text(wire: Wire) -> None:
    result = await wire.call("list_agents", limit=1)
    [said] = result["content"]
    assert said["type"] == "text"
    assert json.loads(said["text"]) == result["structuredContent"]


# What they do --------------------------------------------------------------------------------------------------------


class Journey:
    """A model at work in an office; `called` is what it has used."""

    def __init__(self, office: Office, wire: Wire) -> None:
        self.office, self.wire = office, wire
        self.called: set[str] = set()

    async def __call__(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        self.called.add(tool)
        return await self.wire.assert_done(tool, **arguments)

    async def status(self, run: str) -> str:
        return str((await self.office.run(UUID(run)))["status"])


@pytest.fixture
def model(office: Office, wire: Wire) -> Journey:
    return Journey(office, wire)


async def test_a_model_uses_every_tool_to_its_end(model: Journey, office: Office) -> None:
    for chapter in (save_and_change, run_and_cancel, hire_and_talk, share_out, ask_and_answer, look_around):
        await chapter(model, office)
    assert model.called == set(tools.BY_NAME)


async def save_and_change(model: Journey, office: Office) -> None:
    shown = await model("preview_schedule", schedule=DAILY, count=2)
    assert [fire["local"][11:16] for fire in shown["fires"]] == ["09:00", "09:00"]
    saved = await model("create_automation", **example(schedule=DAILY))
    assert (saved["slug"], saved["schedule_text"]) == ("morning-digest", shown["text"])
    assert [each["slug"] for each in (await model("list_automations"))["items"]] == ["morning-digest"]
    await model("update_automation", automation="morning-digest", prompt="Be brief.", timeout="30m")
    changed = await model("get_automation", automation=saved["id"])
    assert (changed["prompt"], changed["timeout"], changed["revision"]) == ("Be brief.", "30m", 2)
    assert changed["triggers"] == saved["triggers"]
    assert (await model("pause_automation", automation="morning-digest"))["next_fire_at"] is None
    assert await office.value("SELECT status FROM automations WHERE id = %s", saved["id"]) == "paused"
    assert (await model("resume_automation", automation="morning-digest"))["next_fire_at"]
    assert await model("delete_automation", automation="morning-digest") == {}
    assert await office.value("SELECT deleted_at IS NOT NULL FROM automations WHERE id = %s", saved["id"])
    assert (await model("list_automations", deleted=True))["items"][0]["id"] == saved["id"]
    assert (await model("restore_automation", automation=saved["id"]))["status"] == "active"


async def run_and_cancel(model: Journey, office: Office) -> None:
    run = await model("run_automation", automation="morning-digest", payload={"folder": "work"})
    assert (await office.run(run["id"]))["payload"] == {"folder": "work"}
    assert (await model("cancel_run", run_id=run["id"]))["status"] == "cancelled"
    again = await model("retry_run", run_id=run["id"])
    assert again["retry_of"] == run["id"]
    assert [each["id"] for each in (await model("list_runs", status="queued"))["items"]] == [again["id"]]
    at_work = await office.claim()
    assert str(at_work.id) == again["id"]
    await at_work.desk.say("Two letters.\n")
    await office.settle(at_work)
    told = await model("get_run", run_id=again["id"])
    assert (told["status"], len(told["attempts"])) == ("succeeded", 1)
    lines = (await model("read_transcript", session_id=told["session_id"]))["items"]
    assert "Two letters." in "".join(line["text"] for line in lines)
    events = await model("read_session_events", session_id=told["session_id"], after=1, limit=1)
    assert [each["seq"] for each in events["items"]] == [2]
    assert events["next_cursor"]


async def hire_and_talk(model: Journey, office: Office) -> None:
    kinds = {each["kind"] for each in (await model("list_executors"))["items"]}
    assert "command" in kinds
    hired = await model("create_agent", name="Poet", executor="command", config={"argv": ["cat"]}, pool=office.pool)
    assert (await model("get_agent", agent="poet"))["id"] == hired["id"]
    assert {each["slug"] for each in (await model("list_agents"))["items"]} == {"poet", "worker-bee"}
    run = await model("run_agent", agent="poet", prompt="The sea.")
    await office.settle(await office.claim())
    assert await model.status(run["id"]) == "succeeded"
    opened = await model("open_session", agent="poet", prompt="Good morning!")
    assert (await model("list_sessions", kind="interactive"))["items"][0]["id"] == opened["id"]
    await office.settle(await office.claim())
    turn = await model("follow_up", session_id=opened["id"], prompt="And in the evening?")
    assert (turn["source"], turn["session_id"]) == ("chat", opened["id"])
    await office.settle(await office.claim())


async def share_out(model: Journey, office: Office) -> None:
    roles = [{"name": "planner", "agent": "poet"}]
    opened = await model("open_session", kind="background", goal="A haiku", roles=roles, draft=True)
    assert (await model("get_session", session_id=opened["id"]))["status"] == "draft"
    sent = await model("send_message", session_id=opened["id"], to="planner", body="By Friday.")
    assert [each["role"] for each in sent["deliveries"]] == ["planner"]
    api = await office.api()
    assert_ok(await api.post(f"/sessions/{opened['id']}/artifacts", {"name": "PR", "uri": "https://example.org/1"}))
    assert [each["name"] for each in (await model("list_artifacts", session_id=opened["id"]))["items"]] == ["PR"]


async def ask_and_answer(model: Journey, office: Office) -> None:
    triggers = [{"event": "invoice.paid"}]
    await model("create_automation", **example(name="Pay", triggers=triggers))
    fired = await model("post_event", event="invoice.paid", data={"number": 17}, key="17")
    assert await model("post_event", event="invoice.paid", data={"number": 17}, key="17") == fired
    at_work = await office.claim()
    assert [str(at_work.id)] == fired["runs"]
    asking = asyncio.create_task(at_work.desk.ask("Pay 17?"))
    await until(lambda: office.value("SELECT EXISTS (SELECT FROM approvals WHERE run_id = %s)", at_work.id))
    pending = (await model("list_approvals", status="pending"))["items"]
    answered = await model("answer_approval", approval_id=pending[0]["id"], answer="approve", text="Yes.")
    assert (answered["status"], answered["answered_by"]) == ("approved", str(office.caller.user_id))
    await asyncio.gather(asking, return_exceptions=True)


async def look_around(model: Journey, office: Office) -> None:
    assert "items" in await model("list_workers")
    assert (await model("get_workspace"))["pause"] is None
    paused = await model("pause_workspace", reason="The database is being moved", lasts="2h")
    assert paused["pause"]["reason"] == "The database is being moved"
    assert (await model("resume_workspace"))["pause"] is None
    assert "items" in await model("get_usage", since="2026-01-01", until="2026-01-31")
    assert "items" in await model("get_forecast")


async def test_what_a_tool_changes_is_in_the_audit_log_like_any_change(office: Office) -> None:
    _, client = limited(office.site)
    wire = Wire(client, (await wire_of(office)).token)
    saved = await wire.assert_done("create_automation", **example())
    token = await office.value(
        "SELECT id FROM tokens WHERE workspace_id = %s ORDER BY id DESC LIMIT 1", office.caller.workspace_id
    )
    row = await office.value(
        "SELECT jsonb_build_array(action, object_id, status, token_id, ip) FROM audit WHERE workspace_id = %s ORDER BY id DESC LIMIT 1",
        office.caller.workspace_id,
    )
    assert row == ["automation.create", saved["id"], 201, str(token), FAR[0]]


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "code", "field", "words"),
    [
        ("create_automation", example(schedule={"cron": "61 9 * * *"}), "invalid_cron", "schedule.cron", "61"),
        ("create_automation", example(agent="nobody"), "unknown_agent", "agent", "nobody"),
        ("create_automation", {"agent": "worker-bee", "prompt": "x"}, "invalid", "name", "required"),
        ("create_automation", example(max_attempts="5"), "invalid", "max_attempts", "whole number"),
        ("create_automation", example(promt="x"), "invalid", "promt", "Did you mean prompt?"),
        ("list_runs", {"status": "gone"}, "invalid", "status", "succeeded"),
        ("list_runs", {"limit": 1000}, "invalid", "limit", "100"),
        ("list_runs", {"limit": [1, 2]}, "invalid", "limit", "whole number"),
        ("list_workers", {"limit": 1}, "invalid", "limit", "This tool takes none."),
        ("get_automation", {}, "invalid", "automation", "required"),
        ("get_run", {"run_id": "morning-digest"}, "invalid", "run_id", "Give an id"),
        ("get_run", {"run_id": UNKNOWN}, "not_found", None, "There is no such run."),
        ("run_automation", {"automation": "gone"}, "not_found", None, "no such"),
        ("retry_run", {"run_id": UNKNOWN, "idempotency_key": "ä"}, "invalid", "idempotency_key", "plain text"),
        ("get_automation", {"automation": "x" * 100_000}, "invalid", "automation", "Give an id"),
        ("list_runs", {"cursor": "x" * 100_000}, "invalid", "cursor", "at most 1000"),
        ("retry_run", {"run_id": UNKNOWN, "idempotency_key": "x" * 500}, "invalid_key", "idempotency_key", "200"),
        ("get_usage", {"since": "2026-02-01", "until": "2026-01-01"}, "invalid_span", "since", "give an earlier one"),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_field_the_reason_and_what_would_be_right(
    wire: Wire, name: str, arguments: dict[str, Any], code: str, field: str | None, words: str
) -> None:
    told = await wire.assert_refused(name, **arguments)
    assert (told["code"], told.get("field")) == (code, field), told
    assert words in told["text"]
    assert f"code: {code}" in told["text"]
    if field:
        assert field in told["text"]


@pytest.mark.parametrize(
    "step", ["", " ", ".", "..", "../runs", "x/run", "x\\run", "x/../../agents", None, True, {}, ["a"]]
)
async def test_no_argument_leads_to_another_route(wire: Wire, step: Any) -> None:
    for name in ("get_automation", "pause_automation", "update_automation"):
        assert (await wire.assert_refused(name, automation=step))["field"] == "automation"
    assert (await wire.assert_refused("answer_approval", approval_id=step, answer="approve"))["field"] == "approval_id"


@pytest.mark.parametrize("step", ["%2e%2e", "a%2Fb", "a?deleted=true", "a#b", "ä ö"])
async def test_an_odd_name_is_only_a_name(wire: Wire, step: str) -> None:
    assert (await wire.assert_refused("get_automation", automation=step))["code"] == "not_found"


async def test_all_that_is_wrong_is_told_at_once(wire: Wire) -> None:
    told = await wire.assert_refused("create_automation", agent="worker-bee", max_attempts=0, max_rescues=-1)
    assert {each["field"] for each in told["errors"]} >= {"name", "max_attempts", "max_rescues"}
    assert all(name in told["text"] for name in ("name", "max_attempts", "max_rescues"))


@pytest.mark.parametrize(
    ("name", "words"),
    [("list_automation", "Did you mean list_automations?"), ("rm", "no tool 'rm'"), (None, "None"), (5, "5")],
)
async def test_a_tool_that_is_not_there_is_an_error_of_the_protocol(wire: Wire, name: Any, words: str) -> None:
    told = (await wire.send("tools/call", name=name, arguments={})).json()["error"]
    assert told["code"] == -32602
    assert words in told["message"]


@pytest.mark.parametrize("arguments", [[], "x", 5])
async def test_arguments_are_an_object_and_may_be_left_out(wire: Wire, arguments: Any) -> None:
    assert (await wire.send("tools/call", name="list_agents", arguments=arguments)).json()["error"]["code"] == -32602
    assert (await wire.result("tools/call", name="list_agents"))["isError"] is False


# Who may -------------------------------------------------------------------------------------------------------------


async def test_levels_hold_as_they_do_at_the_api(office: Office, wire: Wire) -> None:
    viewer, member = await wire_of(office, "viewer"), await wire_of(office, "member")
    before = await office.count("automations", "runs", "agents")
    assert (await viewer.assert_done("list_automations"))["items"] == []
    for name, arguments in (("create_automation", example()), ("run_agent", {"agent": "worker-bee", "prompt": "x"})):
        told = await viewer.assert_refused(name, **arguments)
        assert (told["status"], told["code"], told["needs"]) == (403, "forbidden", "member")
    assert await office.count("automations", "runs", "agents") == before
    own = await member.assert_done("create_automation", **example(name="Own"))
    others = await wire.assert_done("create_automation", **example(name="Another's"))
    assert (await member.assert_done("pause_automation", automation=own["slug"]))["status"] == "paused"
    assert (await member.assert_refused("pause_automation", automation=others["slug"]))["status"] == 403
    agent = {"name": "Poet", "executor": "command", "config": {"argv": ["cat"]}}
    assert (await member.assert_refused("create_agent", **agent))["needs"] == "admin"
    assert (await wire.assert_done("create_agent", **agent))["slug"] == "poet"


async def test_a_token_lists_and_does_what_it_has_the_scope_for(office: Office) -> None:
    reader = await wire_of(office, scopes=[Scope.READ])
    listed = await reader.tools()
    assert set(listed) == {tool.name for tool in TOOLS if tool.effect is READS}
    told = await reader.assert_refused("run_agent", agent="worker-bee", prompt="x")
    assert (told["code"], told["needs_scope"]) == ("scope_missing", "run")
    assert "rota tokens create NAME --scope run" in told["text"]
    runner = await wire_of(office, scopes=[Scope.READ, Scope.RUN])
    assert "run_agent" in await runner.tools()
    assert "create_automation" not in await runner.tools()
    assert (await runner.assert_done("run_agent", agent="worker-bee", prompt="x"))["status"] == "queued"


async def test_another_workspaces_things_are_told_as_missing_ones(office: Office, site: Site) -> None:
    theirs = await furnish(site)
    their = await wire_of(theirs)
    saved = await their.assert_done("create_automation", **example())
    run = await their.assert_done("run_automation", automation="morning-digest")
    wire = await wire_of(office)
    pairs: list[tuple[str, str, str]] = [
        ("get_automation", "automation", saved["id"]), ("pause_automation", "automation", saved["id"]),
        ("run_automation", "automation", saved["id"]), ("get_run", "run_id", run["id"]),
        ("cancel_run", "run_id", run["id"]), ("retry_run", "run_id", run["id"]),
        ("get_session", "session_id", run["session_id"]), ("read_transcript", "session_id", run["session_id"]),
    ]  # fmt: skip
    for name, argument, there in pairs:
        assert await wire.call(name, **{argument: there}) == await wire.call(name, **{argument: UNKNOWN}), name
    assert (await wire.assert_done("list_runs"))["items"] == []
    assert (await theirs.run(run["id"]))["status"] == "queued"
    await theirs.leave()


@pytest.mark.parametrize("scopes", [[], ["workspace:read"]])
async def test_an_agent_at_work_gets_no_more_than_by_its_own_token(
    office: Office, api: Api, wire: Wire, scopes: list[str]
) -> None:
    assert_ok(await api.post("/automations", example(scopes=scopes)))
    assert_ok(await api.post("/automations/morning-digest/run"))
    at_work = await office.claim()
    agent, own = Wire(api.client, at_work.token), Api(api.client, api.workspace, at_work.token)
    asks: list[tuple[str, dict[str, Any], Callable[[], Awaitable[Any]]]] = [
        ("list_automations", {}, lambda: own.get("/automations")),
        ("get_run", {"run_id": str(at_work.id)}, lambda: own.get(f"/runs/{at_work.id}")),
        ("create_automation", example(name="More"), lambda: own.post("/automations", example(name="More"))),
        ("run_automation", {"automation": "morning-digest"}, lambda: own.post("/automations/morning-digest/run")),
        ("cancel_run", {"run_id": str(at_work.id)}, lambda: own.post(f"/runs/{at_work.id}/cancel")),
        ("post_event", {"event": "x"}, lambda: own.post("/events", {"event": "x"})),
        ("create_agent", {"name": "P", "executor": "command"}, lambda: own.post("/agents", {"name": "P", "executor": "command"})),
        ("follow_up", {"session_id": str(at_work.assignment.session_id), "prompt": "More."},
         lambda: own.post(f"/sessions/{at_work.assignment.session_id}/messages", {"prompt": "More."})),
    ]  # fmt: skip
    before = await office.count("automations", "runs", "agents", "triggers")
    for name, arguments, ask in asks:
        answer = await ask()
        result = await agent.call(name, **arguments)
        assert result["isError"] is not answer.is_success, name
        assert result["structuredContent"] == answer.json(), name
        reads = tools.BY_NAME[name].effect is READS and (name != "list_automations" or bool(scopes))
        assert answer.is_success is reads, name
    assert await office.count("automations", "runs", "agents", "triggers") == before
    listed = set(await agent.tools())
    readable = {each.name for each in TOOLS if each.effect is READS}
    assert listed == (readable if scopes else {name for name in readable if tools.BY_NAME[name].path in OWN})
    assert {"get_run", "read_transcript"} <= listed
    await office.settle(at_work)
    assert (await agent.send("ping")).status_code == 401


async def test_a_secret_of_an_attempt_is_taken_out_of_what_it_sends(office: Office, api: Api) -> None:
    secret = f"Zq7-{office.caller.workspace_slug}-secret-9x"
    assert_ok(await api.post("/credentials", {"name": "canary", "value": secret}))
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"KEY": "canary"}}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sing."}))
    at_work = await office.claim()
    told = await Wire(api.client, at_work.token).assert_refused("get_automation", automation=f"x{secret}", key=secret)
    assert secret not in json.dumps(told)
    broken = await Wire(api.client, at_work.token).post(content=b"{", headers={"Content-Type": "application/json"})
    assert broken.json()["error"]["code"] == -32700


# Once, and not too often ---------------------------------------------------------------------------------------------

ONCE: list[tuple[str, dict[str, Any], str]] = [
    ("create_automation", example(name="Another"), "automations"),
    ("run_automation", {"automation": "morning-digest"}, "runs"),
    ("run_agent", {"agent": "worker-bee", "prompt": "x"}, "runs"),
    ("open_session", {"agent": "worker-bee", "prompt": "x"}, "sessions"),
    ("post_event", {"event": "rain"}, "runs"),
]


@pytest.mark.parametrize(("name", "arguments", "table"), ONCE)
async def test_a_call_whose_answer_was_lost_is_done_once_for_its_key(
    office: Office, wire: Wire, name: str, arguments: dict[str, Any], table: str
) -> None:
    await wire.assert_done("create_automation", **example(triggers=[{"event": "rain"}]))
    first = await wire.assert_done(name, **arguments, idempotency_key="k1")
    before = await office.count(table)
    again = await Wire(wire.client, wire.token).assert_done(name, **arguments, idempotency_key="k1")
    assert again.get("id", again) == first.get("id", first)
    assert await office.count(table) == before
    if name != "post_event":
        changed = {**arguments, "prompt": "y"} if "prompt" in arguments else {**arguments, "payload": 5}
        told = await wire.assert_refused(name, **changed, idempotency_key="k1")
        assert (told["status"], told["field"]) == (422, "idempotency_key")


async def test_the_same_id_in_another_message_is_no_repeat(office: Office, wire: Wire) -> None:
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "run_agent", "arguments": {"agent": "worker-bee", "prompt": "x"}},
    }
    answers = [(await wire.post(message)).json() for _ in range(2)]
    runs = {each["result"]["structuredContent"]["id"] for each in answers}
    assert len(runs) == 2


async def test_what_is_asked_too_often_is_told_when_to_come_back(site: Site, office: Office) -> None:
    _, client = limited(site, rate_limit=5)
    wire = Wire(client, (await wire_of(office)).token)
    for _ in range(200):
        result = await wire.call("list_agents")
        if result["isError"]:
            break
    assert (result["structuredContent"]["code"], result["structuredContent"]["status"]) == ("rate_limited", 429)
    assert "Wait 1 s." in result["content"][0]["text"]
    for _ in range(200):  # a second may have passed meanwhile
        answer = await wire.send("tools/list")
        if answer.status_code != 200:
            break
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, 429)
    assert answer.headers["Retry-After"] == "1"


async def test_calls_at_once_do_not_wait_for_each_others_connections(wire: Wire, site: Site) -> None:
    """A call that held one connection while its route waits for another would stop all, once as many come as there are."""
    async with asyncio.timeout(20):
        told = await asyncio.gather(*(wire.assert_done("list_agents") for _ in range(60)))
    assert all(each["items"] for each in told)


async def test_something_that_breaks_is_told_without_its_inside(
    wire: Wire, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rota.db import workers

    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr(workers, "all_of", broken)
    told = await wire.assert_refused("list_workers")
    assert (told["status"], told["code"]) == (500, "broken")
    assert "the inside" not in json.dumps(told)
