"""The page of a session: what was said and done in it, and what is being said just now."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from rota.db import accounts, approvals, artifacts, events, isolation, runs, sessions, tasks, workers
from rota.db.events import Event, Page
from rota.db.listener import RUNS, session_channel
from rota.db.pool import Connection
from rota.errors import Invalid, NotFound
from rota.http.api.sessions import LARGEST_SEQ, read_last_event_id
from rota.http.context import InUnit, Shared, Signed, Unit, Web, web
from rota.http.shapes.fields import LONGEST_PROMPT
from rota.http.streams import STILL_HERE, EventStream
from rota.http.ui import choosing, forms, speech
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.graph import graph
from rota.http.ui.live import message, with_top
from rota.http.ui.rendering import PageRoute, done, is_live, page, part, render, zone_of
from rota.http.ui.speech import Teller
from rota.http.ui.words import TASK_WORDS
from rota.model.agent_config import LOCAL_KINDS
from rota.model.caller import Caller
from rota.model.ids import SessionId, WorkspaceId, as_uuid
from rota.model.run import TERMINAL
from rota.model.session import STEPS, SessionStatus, Verb
from rota.sessions import changing, chat
from rota.sessions.approvals import may_answer
from rota.sessions.transcript import span
from rota.trace.follow import Told

HEAD_CHANGES = {"run", "approval", "task", "session"}
ASKED = 20  # questions shown at once
AT_ONCE = 100  # events in one message
FAR = 2000  # events behind the newest, from where on a page shows those instead
REST_SECONDS = 0.5  # before a page that could not keep up is told more
SHOWN_TASKS, SHOWN_ARTIFACTS = 200, 50
NEIGHBOURS = 100  # runs before and after one among which one with a session is looked for
SUMMED = 10_000  # runs of a goal whose figures are added up
# What people change about a session by hand, by its kind: one that an automation made ends with its run.
VERBS = {
    "interactive": (Verb.COMPLETE, Verb.ARCHIVE),
    "background": (Verb.ENABLE, Verb.PAUSE, Verb.RESUME, Verb.COMPLETE, Verb.ARCHIVE),
    "automation": (Verb.ARCHIVE,),
}
DONE = {
    Verb.ENABLE: "The work begins.",
    Verb.PAUSE: "The session is paused: what runs finishes, nothing new begins.",
    Verb.RESUME: "The session goes on.",
    Verb.COMPLETE: "The session is done.",
    Verb.FAIL: "The session is given up.",
    Verb.ARCHIVE: "The session is archived: it can only be read.",
}

Seq = Annotated[int, Query(ge=0, le=LARGEST_SEQ)]


def address_of(caller: Caller, session_id: SessionId) -> str:
    return f"/w/{caller.workspace_slug}/sessions/{session_id}"


router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/sessions", include_in_schema=False)


@router.get("/{session}")
async def session_page(
    unit: InUnit,
    request: Request,
    session: str,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_SEQ)] = None,
    after: Annotated[int | None, Query(ge=0, le=LARGEST_SEQ)] = None,
) -> Response:
    """The newest part of the transcript, which goes on live; with `before` an earlier part, with `after` a later one,
    which don't. For htmx that part alone, which is put among what is read."""
    head, told = await _look(unit, web(request), id_of(session), before, after)
    if is_live(request) and not told["newest"]:
        template = "sessions/_earlier.html" if after is None else "sessions/_later.html"
        return part(unit, request, template, **head, **told, before=before)
    return await page(unit, request, "sessions/session.html", **await _whole(unit, head), **told, form=UNTOUCHED)


async def refused(unit: Unit, request: Request, session_id: SessionId, form: Form) -> Response:
    """The page again, or for htmx the forms of its goal, with what was typed beside what is wrong with it."""
    head, told = await _look(unit, web(request), session_id)
    facts = {**await _whole(unit, head), **told, "form": form}
    if is_live(request):
        response = part(unit, request, "sessions/_adding.html", **facts)
        response.headers.update({"HX-Retarget": "#adding", "HX-Reswap": "innerHTML"})
    else:
        response = await page(unit, request, "sessions/session.html", **facts)
    response.status_code = form.status
    return response


async def _look(
    unit: Unit, shared: Web, session_id: SessionId, before: int | None = None, after: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the session stands, and a part of what was said in it."""
    # First the events, then the run: so the run's status is never older than the last line shown.
    found = await _part(unit.conn, unit.caller.workspace_id, session_id, before, after)
    head = await _head(unit.conn, shared, unit.caller.workspace_id, session_id)
    newest = before is None and after is None
    told = {
        "blocks": speech.blocks(found.shown, live=newest and not head["ended"]),
        "earlier": found.earlier,
        "later": found.later,
        "address": address_of(unit.caller, session_id),
        "last": found.shown[-1].seq if found.shown else 0,
        "newest": newest,
        "lives": newest,
    }
    return head, told


async def _whole(unit: Unit, head: dict[str, Any]) -> dict[str, Any]:
    """What a whole page shows besides."""
    session = head["session"]
    where = (unit.caller.workspace_id, session["id"])
    left = await artifacts.page(unit.conn, *where, before=None, limit=SHOWN_ARTIFACTS + 1)
    extends = _may_extend(unit.caller, session)
    seated = await sessions.roles(unit.conn, *where) if session["kind"] == "background" else []
    return {
        **_seen_by(unit.caller, head),
        "origin": await sessions.origin(unit.conn, *where),
        **await _ways(unit.conn, unit.caller.workspace_id, head["run"]),
        "artifacts": left[:SHOWN_ARTIFACTS],
        "more_artifacts": len(left) > SHOWN_ARTIFACTS,
        "may_write": _may_write(unit.caller, session),
        "may_extend": extends,
        "roles": seated,
        "role_names": [(each["name"], each["name"]) for each in seated],
        "agents": await choosing.agents_offered(unit.conn, unit.caller, active=True) if extends else None,
    }


async def _ways(conn: Connection, workspace_id: WorkspaceId, run: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ways from a run to others: to the one that it retries, and to its neighbours of the same automation."""
    previous = following = retried = None
    if run and run["automation_id"]:
        previous, following = await runs.beside(conn, workspace_id, run, limit=NEIGHBOURS)
    if run and run["retry_of"]:
        retried = await runs.find(conn, workspace_id, run["retry_of"])
    return {
        "previous": previous,
        "following": following,
        "retried": retried if retried and run and retried["session_id"] != run["session_id"] else None,
    }


class _Part(NamedTuple):
    """What fits on a page: `earlier` is the event before which there is more, `later` the one after which."""

    shown: Sequence[Event]
    earlier: int | None
    later: int | None


async def _part(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, before: int | None, after: int | None
) -> _Part:
    where, limit = (workspace_id, session_id), speech.SHOWN_EVENTS + 1  # with the next, whose line may go on
    if after is None:
        found = await events.tail(conn, *where, limit=limit, before=before)
        return _last_of(found, await events.find(conn, *where, before) if before else None, before)
    [found] = await events.pages(conn, workspace_id, [(session_id, after)], limit=limit)
    return _first_of(await events.find(conn, *where, after), found, after, before)


def _last_of(found: Page, beyond: Event | None, before: int | None) -> _Part:
    own = found.events
    shown = speech.fitting(own[-speech.SHOWN_EVENTS :])
    left_out = own[: len(own) - len(shown)]
    whole = speech.whole_lines(left_out[-1] if left_out else None, shown, beyond)
    begins = span(whole[0])[0] if left_out or found.more else 1
    return _Part(whole, begins if begins > 1 else None, before - 1 if before is not None else None)


def _first_of(prior: Event | None, found: Page, after: int, before: int | None) -> _Part:
    own = [each for each in found.events if before is None or each.seq < before]
    beyond = found.events[len(own)] if len(own) < len(found.events) else None
    shown = speech.fitting_first(own[: speech.SHOWN_EVENTS])
    left_out = own[len(shown) :]
    whole = speech.whole_lines(prior, shown, left_out[0] if left_out else beyond)
    goes_on = left_out or (found.more and beyond is None)
    return _Part(whole, after + 1 if after else None, span(shown[-1])[1] if goes_on else None)


def _may_write(caller: Caller, session: dict[str, Any]) -> bool:
    takes = session["status"] in {SessionStatus.ACTIVE, SessionStatus.DONE, SessionStatus.FAILED}
    return takes and caller.owns(session["owner_id"])


def _may_extend(caller: Caller, session: dict[str, Any]) -> bool:
    """Roles and tasks of a goal. In other sessions agents take their seats themselves."""
    open_ = session["kind"] == "background" and session["status"] != SessionStatus.ARCHIVED
    return open_ and caller.owns(session["owner_id"])


async def _tasks(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any]:
    """The first tasks, drawn as a graph if they are few, and how many there are of each status."""
    where = (workspace_id, session_id)
    counts = await tasks.counts(conn, where)
    asking = await tasks.asking(conn, where) if counts.get("running") else {}
    counts = Counter(counts) - Counter(running=len(asking)) + Counter(asking=len(asking))
    found = await tasks.page(conn, where, limit=SHOWN_TASKS)
    shown = [{**each, "status": "asking"} if each["id"] in asking else each for each in found]
    left_out = counts.total() - len(shown)
    return {
        "tasks": shown,
        "graph": None if left_out else graph(shown),
        "task_counts": {status: counts[status] for status in TASK_WORDS if status in counts},
        "tasks_left_out": left_out,
        "questions": asking,
        "figures": await runs.by_ids(conn, workspace_id, [each["run_id"] for each in shown if each["run_id"]]),
        "seats": {each["run_id"]: each["role"] for each in shown if each["run_id"]},
    }


@router.post("/{session}/messages")
async def follow_up(unit: InUnit, request: Request, session: str) -> Response:
    """A message of a person: a turn of the session's agent. Or the page again, with what was typed."""
    session_id = id_of(session)
    typed = await forms.typed(request, "prompt")
    try:
        async with unit.conn.transaction():
            await chat.turn(unit.conn, unit.caller, session_id, prompt=_said(typed["prompt"]))
    except forms.WRONG as wrong:
        if is_live(request):  # the page still shows what was typed
            raise
        return await refused(unit, request, session_id, forms.rejected(request, wrong, "message", typed))
    unit.wake(RUNS, unit.caller.workspace_id)
    unit.wake(session_channel(session_id))
    answer = done(request, address_of(unit.caller, session_id), "Sent.")
    if is_live(request):
        answer.headers["HX-Trigger"] = json.dumps({"said": {"target": "form.follow-up"}})
    return answer


def _said(prompt: str) -> str:
    said = prompt.strip()
    if not said or len(said) > LONGEST_PROMPT:
        raise Invalid(f"Write something, of at most {LONGEST_PROMPT:,} characters.", field="prompt")
    return said


@router.post("/{session}/{verb}")
async def change(unit: InUnit, request: Request, session: str, verb: Verb) -> Response:
    """Enable, pause, resume, complete, fail or archive; the page looks again, since it may take no messages now."""
    session_id = id_of(session)
    await changing.change(unit.conn, unit.caller, session_id, verb)
    unit.wake(RUNS, unit.caller.workspace_id)
    unit.wake(session_channel(session_id))
    answer = done(request, address_of(unit.caller, session_id), DONE[verb])
    if is_live(request):
        answer.headers["HX-Refresh"] = "true"
    return answer


def id_of(ref: str) -> SessionId:
    found: UUID | None = as_uuid(ref)
    if found is None:
        raise NotFound("There is no such session.")
    return SessionId(found)


async def _head(conn: Connection, shared: Web, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any]:
    """The session with the run it is about, its tasks, and what its agents wait for."""
    session = await sessions.find(conn, workspace_id, session_id)
    if not session:
        raise NotFound("There is no such session.")
    run = (await runs.foremost_of_sessions(conn, workspace_id, [session_id])).get(session_id)
    of_goal = run is not None and session["kind"] == "background"
    asked = await approvals.page(
        conn, workspace_id, before=None, limit=ASKED, status="pending", session_id=session_id, brief=True
    )
    return {
        "session": session,
        "run": run,
        "served": await _served(conn, shared, run),
        "ended": run is not None and run["status"] in TERMINAL,
        "approvals": asked[::-1],
        "voice": session["agent_name"] or "Agent",
        "sandbox": await _sandbox(conn, run) if run else None,
        "total": await runs.of_session(conn, workspace_id, session_id, limit=SUMMED) if of_goal else None,
        "currency": await _currency(conn, workspace_id, run) if run else "",
        **(
            await _tasks(conn, workspace_id, session_id)
            if session["has_tasks"]
            else {"tasks": [], "seats": {}, "figures": {}}
        ),
    }


async def _served(conn: Connection, shared: Web, run: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """What live workers serve, if the run waits for one."""
    if run is None or run["status"] != "queued":
        return {}
    return await workers.served(conn, dead_after=shared.settings.timeouts.dead)


async def _sandbox(conn: Connection, run: Mapping[str, Any]) -> str | None:
    """What the run's latest attempt ran in, while its worker is remembered. The API has it for every attempt."""
    if run["executor"] not in LOCAL_KINDS or not run["worker_id"]:
        return None
    return await workers.sandbox_of(conn, run["worker_id"])


async def _currency(conn: Connection, workspace_id: WorkspaceId, run: Mapping[str, Any]) -> str:
    return await accounts.currency(conn, workspace_id, run["grant_id"]) if "money" in run["usage"] else ""


def _seen_by(caller: Caller, head: dict[str, Any]) -> dict[str, Any]:
    """With what this reader may do; all else is the same for everybody."""
    session = head["session"]
    verbs = [each for each in VERBS[session["kind"]] if session["status"] in STEPS[each][0]]
    return head | {
        "approvals": [each | {"mine": may_answer(caller, each["owners"])} for each in head["approvals"]],
        "verbs": verbs if caller.owns(session["owner_id"]) else [],
    }


@router.get("/{session}/stream")
async def session_stream(
    request: Request,
    caller: Signed,
    shared: Shared,
    session: str,
    after: Seq = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """What is said after `after`, rendered. Every message carries the number of its last event, so that a browser which
    lost the line goes on exactly where its page ends, also on another replica or after a restart.
    """
    session_id = id_of(session)
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        found = await sessions.find(conn, caller.workspace_id, session_id)
        if not found:
            raise NotFound("There is no such session.")
        start = min(read_last_event_id(last_event_id, after), found["last_seq"])
        shown = await events.tail(conn, caller.workspace_id, session_id, limit=speech.SHOWN_EVENTS, before=start + 1)
    teller = Teller(speech.fitting(shown.events))
    said = messages(shared, caller, session_id, start, teller, zone_of(request, caller))
    return EventStream(request, with_top(request, shared, caller, said))


async def messages(
    shared: Web, caller: Caller, session_id: SessionId, after: int, teller: Teller, zone: str = "UTC"
) -> AsyncGenerator[bytes]:
    """What comes after this event. Where more comes than anybody reads, only the newest is shown, and a way back."""
    page = _Open(shared, caller, session_id, teller, zone)
    while True:
        async with aclosing(shared.readers.follow(caller.workspace_id, session_id, after=after)) as news:
            async for told in news:
                if newest := await page.newest_if_far_ahead_of(told):
                    yield await page.skip(newest, after)
                    after = newest[-1].seq
                    break
                if not told:
                    yield STILL_HERE
                for place in range(0, len(told.events), AT_ONCE):
                    found = told.events[place : place + AT_ONCE]
                    yield await page.tell(found, told)
                    after = found[-1].seq
            else:
                return
        await asyncio.sleep(REST_SECONDS)


class _Open:
    """A session's page in somebody's browser."""

    def __init__(self, shared: Web, caller: Caller, session_id: SessionId, teller: Teller, zone: str) -> None:
        self._shared, self._caller, self._session_id, self._zone = shared, caller, session_id, zone
        self._teller = teller
        self._voices: dict[str, Any] = {}

    async def tell(self, found: Sequence[Event], told: Told) -> bytes:
        spoken = self._teller.tell(found)
        head = None
        if not self._voices or spoken.kinds & HEAD_CHANGES:
            head = self._seen(await _head_once(self._shared, self._caller, self._session_id, told))
        left = [_artifact(each.data) for each in found if each.kind == "artifact"]
        return self._message(found, told=spoken, left=left, head=head if spoken.kinds & HEAD_CHANGES else None)

    async def newest_if_far_ahead_of(self, told: Told) -> Sequence[Event]:
        """Nothing while the page can keep up."""
        if len(told.events) < AT_ONCE:
            return ()
        where = (self._caller.workspace_id, self._session_id)
        async with isolation.in_workspace(self._shared.db, self._caller.workspace_id) as conn:
            if await events.last_seq(conn, *where) - told.events[-1].seq < FAR:
                return ()
            found = (await events.tail(conn, *where, limit=speech.SHOWN_EVENTS + 1)).events
        shown = speech.fitting(found[-speech.SHOWN_EVENTS :])
        return speech.whole_lines(found[-len(shown) - 1] if len(shown) < len(found) else None, shown, None)

    async def skip(self, newest: Sequence[Event], shown: int) -> bytes:
        """Go on with the newest, whatever was between. The head is read after them: what others made of what came
        before may be older."""
        self._teller = Teller()
        where = (self._caller.workspace_id, self._session_id)
        async with isolation.in_workspace(self._shared.db, self._caller.workspace_id) as conn:
            head = self._seen(await _head(conn, self._shared, *where))
            left = await artifacts.page(conn, *where, before=None, limit=SHOWN_ARTIFACTS)
        skipped = {"count": newest[0].seq - shown - 1, "before": newest[0].seq}
        return self._message(newest, told=self._teller.tell(newest), left=left, head=head, skipped=skipped)

    def _seen(self, head: dict[str, Any]) -> dict[str, Any]:
        seen = _seen_by(self._caller, head)
        self._voices = {name: seen[name] for name in ("seats", "voice")}
        return seen

    def _message(self, found: Sequence[Event], *, head: dict[str, Any] | None, **facts: Any) -> bytes:
        root = f"/w/{self._caller.workspace_slug}"
        known = {
            "root": root,
            "address": f"{root}/sessions/{self._session_id}",
            "zone": self._zone,
            "skipped": None,
            "owns": self._caller.owns,
            "head": head is not None,
        }
        facts = known | self._voices | (head or {}) | facts
        return message(found[-1].seq, render("sessions/_message.html", **facts))


def _artifact(data: dict[str, Any]) -> dict[str, Any]:
    """As its event tells it; in the form of its row."""
    return {"id": data.get("artifact_id"), "name": "", "media_type": "", "uri": None, "size": None, **data}


async def _head_once(shared: Web, caller: Caller, session_id: SessionId, told: Told) -> dict[str, Any]:
    """One query for all readers."""

    async def look() -> dict[str, Any]:
        async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
            return await _head(conn, shared, caller.workspace_id, session_id)

    return await asyncio.shield(told.once("head", lambda: asyncio.ensure_future(look())))
