"""Every route that changes something does it once for its `Idempotency-Key`: a repeat has the answer of the first."""

import asyncio
import hashlib
import re
from typing import Any

import orjson
import pytest
from httpx import Response

from rota.access import passwords, signing_in
from rota.db import people
from rota.errors import Conflict
from rota.roster import grants
from support import api_client
from support.api_client import DAILY, Api, Office, Site, assert_ok, assert_refused, example
from support.api_routes import AGENT, EXPORT, TARGET

from .test_api_approvals import park

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

ROOT = "/api/v1/workspaces/{workspace}"
KEY = "Idempotency-Key"
AUTOMATION, SESSION = "/automations/{automation}", "/sessions/{chat}"
PASSWORD = "correct horse battery staple"
SECRET = re.compile(rb'"(secret|link)":"[^"]+"')

Step = tuple[str, str, Any]

# What is asked, and what must have happened before it can be.
WRITES: list[tuple[Step, list[Step]]] = [
    (("POST", "/agents", AGENT), []),
    (("PATCH", "/agents/{agent}", {"name": "Mine"}), []),
    (("DELETE", "/agents/{idle}", None), []),
    (("POST", "/agents/{agent}/runs", {"prompt": "Sweep."}), []),
    (("POST", "/automations", example(name="Another")), []),
    (("PATCH", AUTOMATION, {"prompt": "Tell it in one line", "triggers": [{"webhook": {}}]}), []),
    (("DELETE", AUTOMATION, None), []),
    (("POST", f"{AUTOMATION}/run", {"payload": {"a": 1}}), []),
    (("POST", f"{AUTOMATION}/pause", None), []),
    (("POST", f"{AUTOMATION}/resume", None), [("POST", f"{AUTOMATION}/pause", None)]),
    (("POST", f"{AUTOMATION}/restore", None), [("DELETE", AUTOMATION, None)]),
    (("POST", f"{AUTOMATION}/renew-grant", None), []),
    (("POST", f"{AUTOMATION}/triggers", {"webhook": {}}), []),
    (("PATCH", f"{AUTOMATION}/triggers/{{trigger}}", {"webhook": {}}), []),
    (("DELETE", f"{AUTOMATION}/triggers/{{trigger}}", None), []),
    (("POST", f"{AUTOMATION}/triggers/{{hook}}/secret", None), []),
    (("PUT", f"{AUTOMATION}/memory/{{key}}", {"value": 2}), []),
    (("DELETE", f"{AUTOMATION}/memory/{{key}}", None), [("PUT", f"{AUTOMATION}/memory/{{key}}", {"value": 2})]),
    (("POST", "/runs/{queued}/cancel", None), []),
    (("POST", "/runs/{failed}/retry", None), []),
    (("POST", "/sessions", {"agent": "worker-bee", "prompt": "Hello."}), []),
    (("POST", "/sessions/{draft}/enable", None), []),
    (("POST", f"{SESSION}/pause", None), []),
    (("POST", f"{SESSION}/resume", None), [("POST", f"{SESSION}/pause", None)]),
    (("POST", f"{SESSION}/complete", None), []),
    (("POST", f"{SESSION}/fail", None), []),
    (("POST", f"{SESSION}/archive", None), [("POST", f"{SESSION}/complete", None)]),
    (("POST", "/sessions/{draft}/roles", {"name": "judge", "agent": "worker-bee"}), []),
    (("POST", "/sessions/{draft}/tasks", {"tasks": [{"role": "planner", "prompt": "Plan."}]}), []),
    (("POST", "/sessions/import", {"lines": [EXPORT]}), []),
    (("POST", "/sessions/{half}/import", {"lines": [{"end": {"events": 0}}], "first": 2}), []),
    (("POST", f"{SESSION}/messages", {"prompt": "And now?"}), []),
    (("POST", "/sessions/{draft}/messages", {"body": "Hello.", "to": "planner"}), [("POST", "/sessions/{draft}/enable", None)]),
    (("POST", f"{SESSION}/messages/{{message}}/ack", None), []),
    (("POST", f"{SESSION}/artifacts", {"uri": "https://example.org/"}), []),
    (("POST", "/approvals/{pending}", {"answer": "approve"}), []),
    (("POST", "/events", {"event": "rain"}), []),
    (("POST", "/credentials", {"name": "mine", "value": "some long secret"}), []),
    (("PATCH", "/credentials/{credential}", {"value": "another long secret"}), []),
    (("DELETE", "/credentials/{credential}", None), []),
    (("POST", "/grants/{grant}/revoke", None), []),
    (("POST", "/members", {"email": "ada@{host}"}), []),
    (("PATCH", "/members/{invited}", {"level": "member"}), []),
    (("DELETE", "/members/{invited}", None), []),
    (("POST", "/members/{invited}/link", None), []),
    (("POST", "/tokens", {"name": "Mine"}), []),
    (("DELETE", "/tokens/{token}", None), []),
    (("POST", "/notifications/read", None), []),
    (("POST", "/notifications/{notification}/read", None), []),
    (("PUT", "/notifications/choices", {"paused": {"bell": False, "outward": True}}), []),
    (("POST", "/notifications/targets", {**TARGET, "name": "Another"}), []),
    (("DELETE", "/notifications/targets/{target}", None), []),
    (("POST", "/notifications/targets/{target}/test", None), []),
    (("POST", "/accounts", {"name": "Mine"}), []),
    (("PATCH", "/accounts/{account}", {"name": "Ours"}), []),
    (("PATCH", "", {"name": "Ours"}), []),
    (("POST", "/pause", {"reason": "The budget is spent", "lasts": "2h"}), []),
    (("POST", "/resume", None), [("POST", "/pause", {"reason": "The budget is spent"})]),
    (("PATCH", "/me", {"name": "Me"}), []),
    (("PUT", "/me/password", {"current": PASSWORD, "new": f"{PASSWORD} anew"}), []),
    (("DELETE", "/me/logins", None), []),
    (("DELETE", "/me/logins/{login}", None), []),
]  # fmt: skip
CHANGES_NOTHING = {("POST", "/automations/preview")}
# Only the first answer held the secret: its repeat is told so.
SHOWN_ONCE = {"/tokens", "/members/{invited}/link", f"{AUTOMATION}/triggers/{{hook}}/secret"}
# A repeat may be told of in the audit log, a token that was used says when, and the password of before is wrong.
BESIDE_THE_WRITE = {"audit", "tokens", "throttles"}


def nameless(path: str) -> str:
    return re.sub(r"{\w+}", "{}", path)


async def test_the_list_above_names_every_route_that_changes_something(site: Site) -> None:
    """A new one must be put there, and so be shown to write once; those of a desk are shown in test_api_desk.py."""
    writing = {
        (method.upper(), path.removeprefix(ROOT)): any(each["name"] == KEY for each in told.get("parameters", ()))
        for path, methods in site.app.openapi()["paths"].items()
        for method, told in methods.items()
        if path.startswith(ROOT) and method != "get"
    }
    assert {route for route, takes_key in writing.items() if not takes_key} == CHANGES_NOTHING
    offered = {(method, nameless(path)) for method, path in writing if "/desk/" not in path}
    assert offered - CHANGES_NOTHING == {(method, nameless(path)) for (method, path, _), _ in WRITES}


GOAL = {"kind": "background", "goal": "Peace", "roles": [{"name": "planner", "agent": "worker-bee"}], "draft": True}
NEW: dict[str, tuple[str, Any]] = {
    "idle": ("/agents", {**AGENT, "name": "Idle"}),
    "automation": ("/automations", example(schedule=DAILY)),
    "hook": (f"{AUTOMATION}/triggers", {"webhook": {}}),
    "queued": ("/agents/worker-bee/runs", {"prompt": "Sweep."}),
    "chat": ("/sessions", {"agent": "worker-bee"}),
    "draft": ("/sessions", GOAL),
    "half": ("/sessions/import", {"lines": [EXPORT]}),
    "message": ("/sessions/{chat}/messages", {"body": "Go.", "to": "user"}),
    "credential": ("/credentials", {"name": "theirs", "value": "a secret of this office"}),
    "invited": ("/members", {"email": "bob@{host}"}),
    "token": ("/tokens", {"name": "A script's"}),
    "target": ("/notifications/targets", TARGET),
    "account": ("/accounts", {"name": "Research"}),
}


class Furniture(dict[str, str]):
    """The ids of what routes name, made when they are first named, in a state in which they can be changed."""

    def __init__(self, office: Office, api: Api) -> None:
        super().__init__(agent="worker-bee", key="last", host=f"{office.caller.workspace_slug}.example.org")
        self._office, self._api = office, api

    async def path(self, path: str) -> str:
        for name in re.findall(r"{(\w+)}", path):
            if name not in self:
                self[name] = str(await self._make(name))
        return path.format(**self)

    async def _make(self, name: str) -> Any:
        match name:
            case "failed":
                run_id = await self.path("{queued}")
                await self._office.fail(await self._office.claim())
                return run_id
            case "notification":
                await self.path("{failed}")
                return assert_ok(await self._api.get("/notifications"), 200)["items"][0]["id"]
            case "pending":
                return (await park(self._office, self._api))["id"]
            case "login":
                return assert_ok(await self._api.get("/me/logins"), 200)["items"][0]["id"]
            case "trigger" | "grant":
                automation = assert_ok(await self._api.get(await self.path(AUTOMATION)), 200)
                return automation["grant_id"] if name == "grant" else automation["triggers"][0]["id"]
            case _:
                where, body = NEW[name]
                return assert_ok(await self.send(("POST", where, body)))["id"]

    async def send(self, step: Step, **options: Any) -> Response:
        method, path, body = step
        if body and "email" in body:
            body = {"email": await self.path(body["email"])}
        given = {} if body is None else {"json": body}
        return await self._api.send(method, await self.path(path), **given, **options)


async def sign_in(office: Office) -> None:
    """The admin, who knows their password, at a browser."""
    user_id = office.caller.user_id
    async with office.db.transaction() as conn:
        await people.set_password(conn, user_id, await passwords.hashed(PASSWORD))
        await conn.execute("UPDATE users SET email = id || '@example.org' WHERE id = %s", [user_id])
        await signing_in.open_login(conn, user_id, signing_in.Visit())


async def everything(office: Office) -> dict[str, str]:
    """What all tables hold, but for what stands beside the write."""
    tables = await office.value(
        "SELECT array_agg(oid::regclass::text) FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND NOT relispartition"
    )
    kept = sorted(set(tables) - BESIDE_THE_WRITE)
    sums = ", ".join(
        f"(SELECT coalesce(md5(string_agg(t::text, '' ORDER BY t::text)), '') FROM {each} t)" for each in kept
    )
    return dict(zip(kept, await office.value(f"SELECT ARRAY[{sums}]"), strict=True))


@pytest.mark.parametrize(("step", "before"), WRITES, ids=[" ".join(step[:2]) for step, _ in WRITES])
async def test_a_repeat_with_its_key_has_the_same_answer_and_writes_nothing(
    office: Office, api: Api, step: Step, before: list[Step]
) -> None:
    furniture = Furniture(office, api)
    if step[1].startswith("/me/"):
        await sign_in(office)
    for earlier in before:
        assert (await furniture.send(earlier)).is_success
    first = await furniture.send(step, key="once")
    assert first.is_success, first.text
    written = await everything(office)
    again = await furniture.send(step, key="once")
    if step[0] == "POST" and step[1] in SHOWN_ONCE:
        assert_refused(again, 409, "shown_once", KEY)
    else:
        assert (again.status_code, again.content) == (first.status_code, SECRET.sub(rb'"\1":null', first.content))
    assert await everything(office) == written


async def renewed(office: Office, furniture: Furniture) -> int:
    """How many grants the automation has had."""
    automation = {"automation": await furniture.path("{automation}")}
    return len(assert_ok(await (await office.api()).get("/grants", **automation), 200)["items"])


async def test_of_two_at_once_the_second_waits_for_the_first_and_has_its_answer(office: Office, api: Api) -> None:
    """Provoked: the first has its key and waits for the automation, the second waits for the key."""
    furniture = Furniture(office, api)
    renew = ("POST", f"{AUTOMATION}/renew-grant", None)
    async with office.db.transaction() as conn:
        await conn.execute("SELECT FROM automations WHERE id = %s FOR UPDATE", [await furniture.path("{automation}")])
        both = [asyncio.create_task(furniture.send(renew, key="once")) for _ in range(2)]
        await office.site.waiting_for_a_lock(2)
    first, second = [assert_ok(await each, 200) for each in both]
    assert first == second
    assert await renewed(office, furniture) == 2


async def test_of_two_at_once_the_second_does_it_if_the_first_failed(
    office: Office, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    furniture, renew, broken = Furniture(office, api), grants.renew, asyncio.Event()

    async def fail_once(*given: Any, **options: Any) -> Any:
        if broken.is_set():
            return await renew(*given, **options)
        broken.set()
        await office.site.waiting_for_a_lock(1)
        raise Conflict("Not now.")

    monkeypatch.setattr(grants, "renew", fail_once)
    await furniture.path("{automation}")
    asked = [furniture.send(("POST", f"{AUTOMATION}/renew-grant", None), key="once") for _ in range(2)]
    assert sorted(each.status_code for each in await asyncio.gather(*asked)) == [200, 409]
    assert await renewed(office, furniture) == 2


async def test_a_key_is_for_one_request_of_one_person(office: Office, api: Api) -> None:
    other = await office.api("member")
    assert_ok(await api.patch("/me", {"name": "Ada"}, key="once"), 200)
    for method, path, body in [
        ("PATCH", "/me", {"name": "Eve"}),
        ("PATCH", "", {"name": "Ada"}),
        ("PATCH", "/agents/worker-bee?dry_run=true", {"name": "Ada"}),
        ("DELETE", "/me/logins", None),
        ("POST", "/notifications/read", None),
    ]:
        assert_refused(await api.send(method, path, json=body, key="once"), 422, "key_reused", KEY)
    assert_refused(await api.patch("/me", {"name": "Eve"}, key="x" * 201), 422, "invalid_key", KEY)
    assert assert_ok(await api.get("/me"), 200)["name"] == "Ada"
    assert assert_ok(await other.patch("/me", {"name": "Eve"}, key="once"), 200)["name"] == "Eve"


async def test_what_was_refused_or_only_tried_keeps_no_key(office: Office, api: Api) -> None:
    before = await office.count("write_keys")
    assert_ok(await api.patch("/agents/worker-bee?dry_run=true", {"name": "Ada"}, key="once"), 200)
    assert_refused(await api.post("/sessions/import", {}, key="once"), 422, "invalid", "lines")
    assert_refused(await api.delete("/agents/nobody", key="once"), 404, "not_found")
    assert await office.count("write_keys") == before
    assert_ok(await api.patch("/me", {"name": "Ada"}, key="once"), 200)


async def test_the_audit_log_tells_of_a_change_once(office: Office, api: Api) -> None:
    for _ in range(3):
        assert_ok(await api.patch("/me", {"name": "Ada"}, key="once"), 200)
    told = assert_ok(await api.get("/audit", limit=100), 200)["items"]
    assert [each["status"] for each in told if each["action"] == "me.change"] == [200]


async def test_no_secret_is_kept_with_a_key_and_none_can_be_guessed_by_it(office: Office, api: Api) -> None:
    furniture, value = Furniture(office, api), "1234567890"
    link = assert_ok(await furniture.send(("POST", "/members", {"email": "ada@{host}"}), key="a"))["link"]
    assert_ok(await api.post("/credentials", {"name": "pin", "value": value}, key="b"))
    assert_refused(
        await api.post("/credentials", {"name": "pin", "value": value[::-1]}, key="b"), 422, "key_reused", KEY
    )
    assert_ok(await api.post("/notifications/targets", TARGET, key="c"))
    other = {**TARGET, "url": "json://elsewhere.example.org/"}
    assert_refused(await api.post("/notifications/targets", other, key="c"), 422, "key_reused", KEY)
    kept = await office.value("SELECT string_agg(k::text, '') FROM write_keys k")
    assert link.partition("token=")[2] not in kept
    asked = orjson.dumps(["POST", api.url("/credentials"), "", {"name": "pin", "value": value}])
    assert hashlib.sha256(asked).hexdigest() not in kept


@pytest.mark.parametrize(
    "body",
    [b"not json", b"\xff\xfe", b'{"a": 1e999}', b'{"name": 123456789012345678901234567890}', b"[" * 2000, b'"\\ud800"'],
    ids=lambda body: repr(body[:12]),
)
@pytest.mark.parametrize("path", ["/me", "/agents/none"])
async def test_a_body_that_cannot_be_read_is_refused_also_with_a_key(api: Api, path: str, body: bytes) -> None:
    answer = await api.send("PATCH", path, content=body, key="key", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
