"""Every route of the API with a body that it accepts, sorted by who may use it."""

from typing import Any

from httpx import Response

from rota.model.outcome import Parked
from rota.model.session import Verb
from support.api_client import DAILY, UNKNOWN, Api, Office, assert_ok, example

AGENT = {"name": "Shell", "executor": "command", "config": {"argv": ["true"]}}
EXPORT = {"rota": "session", "version": 1, "session": {"id": UNKNOWN, "kind": "interactive", "title": "Far away"}}
TARGET = {"name": "My desk", "url": "json://example.org/news"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
EVERYTHING = (
    "agents",
    "automations",
    "triggers",
    "revisions",
    "grants",
    "runs",
    "sessions",
    "events",
    "start_keys",
    "deliveries",
    "credentials",
    "members",
    "tokens",
    "notifications",
    "notification_choices",
    "notification_targets",
)


async def create_one_of_each(office: Office, owner: Api) -> dict[str, str]:
    """One of each that routes can name."""
    automation = assert_ok(await owner.post("/automations", example(schedule=DAILY)))
    assert_ok(await owner.send("PUT", f"/automations/{automation['id']}/memory/last", json={"value": 1}), 200)
    run = assert_ok(await owner.post(f"/automations/{automation['id']}/run"))
    message = assert_ok(await owner.post(f"/sessions/{run['session_id']}/messages", {"body": "Go.", "to": "user"}))
    artifact = assert_ok(await owner.send("POST", f"/sessions/{run['session_id']}/artifacts?name=a.txt", content=b"A."))
    at_work = await office.claim()
    asked = await at_work.desk.park("May I?")
    assert isinstance(asked, Parked)
    await office.fail(at_work)
    [told] = assert_ok(await owner.get("/notifications", limit=1), 200)["items"]
    target = assert_ok(await owner.post("/notifications/targets", TARGET))
    secret = {"name": f"key-{run['id']}", "value": "a secret of this office"}
    credential = assert_ok(await (await office.api()).post("/credentials", secret))
    member = await office.member("viewer")
    token = assert_ok(await owner.post("/tokens", {"name": "A script's"}))
    return {
        "member": str(member), "token": token["id"], "login": UNKNOWN,
        "account": str(await office.value("SELECT id FROM accounts WHERE workspace_id = %s", office.caller.workspace_id)),
        "grant": automation["grant_id"], "agent": automation["agent_id"], "automation": automation["id"], "trigger": automation["triggers"][0]["id"],
        "run": run["id"], "session": run["session_id"],
        "message": str(message["id"]), "artifact": artifact["id"],
        "credential": credential["id"],
        "approval": str(asked.approval_id),
        "notification": told["id"],
        "target": target["id"],
    }  # fmt: skip


READS = [
    "/agents", "/agents/{agent}", "/agents/{agent}/runs", "/agents/{agent}/sessions", "/automations", "/automations/{automation}",
    "/automations/{automation}/runs", "/automations/{automation}/revisions", "/automations/{automation}/memory",
    "/automations/{automation}/memory/last", "/runs", "/runs/{run}", "/approvals", "/approvals/{approval}", "/sessions",
    "/sessions/{session}", "/sessions/{session}/origin", "/sessions/{session}/events",
    "/sessions/{session}/messages", "/sessions/{session}/export", "/sessions/{session}/roles", "/sessions/{session}/tasks",
    "/sessions/{session}/artifacts", "/sessions/{session}/transcript",
    "/sessions/{session}/artifacts/{artifact}/content", "/workers", "/executors",
    "/snapshots", "/credentials", "/credentials/{credential}", "/grants", "/grants/{grant}", "",
    "/members", "/members/{member}", "/tokens", "/accounts", "/accounts/{account}", "/accounts/{account}/usage", "/usage",
    "/usage/forecast",
]  # fmt: skip
# One's own, at every level; nobody else finds it, and an agent has none.
OWN_READS = ["/notifications", "/notifications/choices", "/notifications/targets"]
OWN_WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/notifications/read", None),
    ("POST", "/notifications/{notification}/read", None),
    ("PUT", "/notifications/choices", {"paused": {"bell": False, "outward": True}}),
    ("POST", "/notifications/targets/{target}/test", None),
    ("DELETE", "/notifications/targets/{target}", None),
]
READS_OF_PEOPLE = ["/me", "/me/logins"]  # not for agents at work
READS_OF_ADMINS = ["/audit", "/audit/export"]
WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/agents", AGENT),
    ("PATCH", "/agents/{agent}", {"name": "Mine"}),
    ("DELETE", "/agents/{agent}", None),
    ("POST", "/agents/{agent}/runs", {"prompt": "Sweep."}),
    ("POST", "/automations", example()),
    ("PATCH", "/automations/{automation}", {"name": "Mine"}),
    ("DELETE", "/automations/{automation}", None),
    ("POST", "/automations/{automation}/run", None),
    ("POST", "/automations/{automation}/pause", None),
    ("POST", "/automations/{automation}/resume", None),
    ("POST", "/automations/{automation}/restore", None),
    ("POST", "/automations/{automation}/renew-grant", None),
    ("POST", "/automations/{automation}/triggers", DAILY),
    ("PATCH", "/automations/{automation}/triggers/{trigger}", {"enabled": False}),
    ("DELETE", "/automations/{automation}/triggers/{trigger}", None),
    ("POST", "/automations/{automation}/triggers/{trigger}/secret", None),
    ("POST", "/grants/{grant}/revoke", None),
    ("POST", "/runs/{run}/cancel", None),
    ("POST", "/runs/{run}/retry", None),
    ("POST", "/approvals/{approval}", {"answer": "approve"}),
    ("POST", "/events", {"event": "rain"}),
    ("POST", "/sessions/{session}/artifacts", {"uri": "https://example.org/"}),
    ("POST", "/sessions/{session}/artifacts?name=report.md", {"any": "content"}),
    ("PUT", "/automations/{automation}/memory/last", {"value": 2}),
    ("DELETE", "/automations/{automation}/memory/last", None),
    ("POST", "/sessions/{session}/messages", {"body": "Hello."}),
    ("POST", "/sessions/{session}/messages", {"prompt": "And now?"}),
    ("POST", "/sessions/{session}/messages/{message}/ack", None),
    ("POST", "/sessions", {"agent": "worker-bee"}),
    *[("POST", f"/sessions/{{session}}/{verb}", None) for verb in Verb],
    ("POST", "/sessions/import", {"lines": [EXPORT]}),
    ("POST", "/sessions/{session}/import", {"lines": [{"end": {"events": 0}}], "first": 2}),
    ("POST", "/sessions/{session}/roles", {"name": "judge", "agent": "worker-bee"}),
    ("POST", "/sessions/{session}/tasks", {"tasks": [{"role": "judge", "prompt": "Judge."}]}),
    ("POST", "/credentials", {"name": "mine", "value": "some long secret"}),
    ("POST", "/notifications/targets", TARGET),
    ("PATCH", "/credentials/{credential}", {"description": "Mine"}),
    ("DELETE", "/credentials/{credential}", None),
    ("PATCH", "", {"name": "Ours"}),
    ("POST", "/pause", {"reason": "The budget is spent"}),
    ("POST", "/resume", None),
    ("POST", "/accounts", {"name": "Mine"}),
    ("PATCH", "/accounts/{account}", {"budget": None}),
    ("POST", "/members", {"email": "ada@example.org"}),
    ("PATCH", "/members/{member}", {"level": "member"}),
    ("POST", "/members/{member}/link", None),
    ("DELETE", "/members/{member}", None),
    ("DELETE", "/tokens/{token}", None),
    ("POST", "/tokens", {"name": "Mine"}),
    ("PATCH", "/me", {"name": "Me"}),
    ("PUT", "/me/password", {"new": "correct horse battery"}),
    ("DELETE", "/me/logins", None),
    ("DELETE", "/me/logins/{login}", None),
]
FOR_ADMINS = {
    ("POST", "/agents"), ("PATCH", "/agents/{agent}"), ("DELETE", "/agents/{agent}"),
    ("POST", "/credentials"), ("PATCH", "/credentials/{credential}"), ("DELETE", "/credentials/{credential}"),
    ("PATCH", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/members"), ("PATCH", "/members/{member}"), ("DELETE", "/members/{member}"),
    ("POST", "/members/{member}/link"), ("POST", "/accounts"), ("PATCH", "/accounts/{account}"),
}  # fmt: skip
OF_ONES_OWN = {  # whatever the level; another's is not there
    ("POST", "/tokens"), ("DELETE", "/tokens/{token}"), ("PATCH", "/me"), ("PUT", "/me/password"),
    ("DELETE", "/me/logins"), ("DELETE", "/me/logins/{login}"),
}  # fmt: skip
FOR_ANY_MEMBER = {
    ("POST", "/notifications/targets"),
    ("POST", "/automations"),
    ("POST", "/agents/{agent}/runs"),
    ("POST", "/events"),
    ("POST", "/sessions"),
    ("POST", "/sessions/import"),
}


async def send(api: Api, method: str, path: str, body: Any = None, **options: Any) -> Response:
    return await api.send(method, path, **({"json": body} if body is not None else {}), **options)
