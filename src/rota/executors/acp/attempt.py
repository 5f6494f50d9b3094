"""One turn of an agent that speaks the protocol: its conversation opened or gone on with, and heard to the end."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from acp import PROTOCOL_VERSION, Client, RequestError, connect_to_agent, schema, text_block
from acp.core import ClientSideConnection
from pydantic import ValidationError

from rota import __version__
from rota.executors.acp import opening
from rota.executors.acp.files import Files
from rota.executors.acp.host import CAPABILITIES, Host
from rota.executors.acp.opening import Bookmark, digest
from rota.executors.acp.permissions import Permissions
from rota.executors.acp.story import Story
from rota.executors.acp.terminals import Terminals
from rota.executors.acp.wire import Wire
from rota.executors.ending import LONGEST, failure
from rota.executors.pipes import Pipe
from rota.executors.process import Ending, Exited, Killed, Program, Spec, Unstarted, attend
from rota.executors.transcript import Tail, Transcript, Words
from rota.model.agent_config import AcpConfig, McpServer, how_to_install
from rota.model.duration import format_duration
from rota.model.executor import STDERR, Assignment, Desk
from rota.model.outcome import ErrorClass, Failed, Outcome, Parked, Succeeded

AUTH_REQUIRED = -32000
TIDYING = timedelta(seconds=1)  # for an agent whose input has ended, before it is asked by a signal


class Unusable(Exception):
    """This agent cannot work here, and would not the next time either."""


class Attempt:
    def __init__(
        self,
        assignment: Assignment,
        config: AcpConfig,
        desk: Desk,
        spec: Spec,
        *,
        servers: Sequence[McpServer],
        politeness: timedelta,
    ) -> None:
        self._assignment, self._config, self._desk, self._spec = assignment, config, desk, spec
        self._servers, self._politeness = servers, politeness
        self._transcript, self._tail = Transcript(desk, config.output_limit), Tail()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._story = Story(self._transcript, self._spend)
        self._permissions = Permissions(desk, self._story, self._mark, config.park_after)
        self._terminals = Terminals(spec)
        self._host = Host(self._permissions, Files(spec.directory), self._terminals, self._fail)
        self._agent: ClientSideConnection | None = None
        self._session = ""
        self._prompting: asyncio.Task[schema.PromptResponse] | None = None
        self._hung_up = False
        self._outcome: Outcome | None = None

    async def attend(self, program: Program) -> Outcome:
        outcome: Outcome | None = None
        try:
            errors = self._hear_errors(program.stderr)
            ending = await attend(program, self._converse(program), errors, farewell=self._take_leave)
            outcome = self._outcome or self._without_a_word(ending)
        finally:
            self._terminals.stop()
            await self._terminals.gone()
            if self._failed.done():
                self._failed.exception()  # it was raised above
            elif not isinstance(outcome, Succeeded | Parked):
                await self._transcript.say(self._tail.text(), STDERR)
        return outcome

    async def _hear_errors(self, stderr: Pipe) -> None:
        """Agents write their logs there. Only when something went wrong does anybody want to read them."""
        while data := await stderr.read():
            self._tail.hear(data)

    # ── The conversation ─────────────────────────────────────────────────────────────────────────────────────────

    async def _converse(self, program: Program) -> None:
        words = Words(self._transcript)
        wire = Wire(program.stdin, program.stdout, words, self._story.hear, self._fail)
        self._agent = connect_to_agent(cast("Client", self._host), wire)
        talking = asyncio.create_task(self._talk(self._agent))
        try:
            await _first_of(talking, self._failed)
            if self._failed.done():
                self._failed.result()
            self._outcome = talking.result()
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
            await self._agent.close()
            self._terminals.stop()
        program.stdin.close()
        program.stop_after(TIDYING)
        while await program.stdout.read():  # nobody can end well while its pipe is full
            pass

    async def _talk(self, agent: ClientSideConnection) -> Outcome | None:
        """None when the agent hung up: how its process ended tells why."""
        try:
            async with asyncio.timeout(self._config.start_timeout.total_seconds()):
                prompt = await self._open(agent)
            return await self._turn(agent, prompt)
        except Unusable as reason:
            return Failed(ErrorClass.EXECUTOR_ERROR, str(reason), retryable=False)
        except RequestError as refusal:
            return self._describe_refusal(refusal)
        except ValidationError as nonsense:
            return Failed(ErrorClass.AGENT_ERROR, f"the agent answered what the protocol does not know: {nonsense}")
        except TimeoutError:
            within = format_duration(self._config.start_timeout)
            return Failed(ErrorClass.EXECUTOR_ERROR, f"the agent was not ready within {within}, its start_timeout")
        except ConnectionError:
            self._hung_up = True
            return None

    def _describe_refusal(self, refusal: RequestError) -> Failed:
        """Some agents, such as Claude Code, notice only when they are prompted that they have no key."""
        if refusal.code == AUTH_REQUIRED:
            return Failed(ErrorClass.EXECUTOR_ERROR, self._not_signed_in(_told(refusal)), retryable=False)
        return Failed(ErrorClass.AGENT_ERROR, _told(refusal))

    async def _open(self, agent: ClientSideConnection) -> str:
        """What to prompt the agent with, once its conversation is open."""
        us = schema.Implementation(name="rota", title="Rota", version=__version__)
        greeting = await agent.initialize(PROTOCOL_VERSION, client_capabilities=CAPABILITIES, client_info=us)
        if greeting.protocol_version != PROTOCOL_VERSION:
            theirs = greeting.protocol_version
            raise Unusable(f"the agent speaks version {theirs} of the protocol, and Rota version {PROTOCOL_VERSION}")
        able = greeting.agent_capabilities or schema.AgentCapabilities()
        self._check_servers(able.mcp_capabilities or schema.McpCapabilities())
        if self._config.auth_method:
            await self._sign_in(agent, self._config.auth_method)
        try:
            prompt = await self._enter(agent, able)
        except RequestError as refusal:
            if refusal.code != AUTH_REQUIRED or self._config.auth_method:
                raise
            await self._sign_in(agent, self._sign_in_method(greeting.auth_methods or [], _told(refusal)))
            prompt = await self._enter(agent, able)
        if self._config.mode:
            await agent.set_session_mode(session_id=self._session, mode_id=self._config.mode)
        return prompt

    async def _enter(self, agent: ClientSideConnection, able: schema.AgentCapabilities) -> str:
        assignment, run = self._assignment, str(self._assignment.run_id)
        left = opening.bookmark(assignment.checkpoint)
        resumes = able.session_capabilities is not None and able.session_capabilities.resume is not None
        loads = bool(able.load_session) or resumes
        if left is not None and loads and await self._go_on(agent, left, load=bool(able.load_session)):
            kept = replace(left.for_run(run), instructions=digest(assignment.instructions))
            self._permissions.bookmark = kept
            if left.run != run:  # otherwise an answer that came meanwhile would be older than the mark
                await self._mark(kept)
            return opening.going_on(assignment, left)
        opened = await agent.new_session(cwd=str(self._spec.directory), mcp_servers=self._given_servers())
        self._session = opened.session_id
        if loads:
            await self._mark(Bookmark(self._session, run, digest(assignment.instructions)))
        return opening.beginning(assignment)

    async def _go_on(self, agent: ClientSideConnection, left: Bookmark, *, load: bool) -> bool:
        """Whether the agent still knows the conversation. Either way the trace says so."""
        self._story.costs = dict(left.costs)
        enter = agent.load_session if load else agent.resume_session
        try:
            await enter(cwd=str(self._spec.directory), session_id=left.session, mcp_servers=self._given_servers())
        except RequestError as refusal:
            if refusal.code == AUTH_REQUIRED:
                raise
            self._story.costs = {}
            await self._story.note("resume", {"session": left.session, "resumed": False, "why": _told(refusal)})
            return False
        self._session = left.session
        why = "interrupted" if left.run == str(self._assignment.run_id) else "next run"
        why = "answered" if why == "interrupted" and self._assignment.answer else why
        await self._story.note("resume", {"session": left.session, "resumed": True, "why": why})
        return True

    async def _turn(self, agent: ClientSideConnection, prompt: str) -> Outcome:
        self._story.listening = True
        self._host.cancel = lambda: agent.cancel(session_id=self._session)
        parked = self._permissions.parked
        self._prompting = asyncio.create_task(agent.prompt(session_id=self._session, prompt=[text_block(prompt)]))
        try:
            await _first_of(self._prompting, parked)
            if parked.done():
                await asyncio.wait({self._prompting}, timeout=self._politeness.total_seconds())
            if self._prompting.done() or not parked.done():
                return await self._after(await self._prompting)
        except (RequestError, ConnectionError):
            if not parked.done():
                raise
        finally:
            self._prompting.cancel()
        return parked.result()

    async def _after(self, response: schema.PromptResponse) -> Outcome:
        await self._story.end()
        if response.usage is not None:
            await self._transcript.usage("tokens", response.usage.total_tokens)
        if self._permissions.parked.done():
            return self._permissions.parked.result()
        match response.stop_reason:
            case "end_turn":
                return Succeeded()
            case "refusal":
                return Failed(ErrorClass.AGENT_ERROR, "the agent refused to go on", retryable=False)
            case "max_tokens":
                return Failed(ErrorClass.AGENT_ERROR, "the agent reached its limit of tokens")
            case "max_turn_requests":
                return Failed(ErrorClass.AGENT_ERROR, "the agent reached its limit of requests in one turn")
            case "cancelled":
                return Failed(ErrorClass.AGENT_ERROR, "the agent says that its turn was cancelled")

    async def _take_leave(self) -> None:
        """Ask the agent to cancel its turn, before signals do."""
        self._terminals.stop()
        self._permissions.withdraw()
        if self._agent is None or self._prompting is None or self._prompting.done():
            return
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(self._politeness.total_seconds()):
                await self._agent.cancel(session_id=self._session)
                await asyncio.wait({self._prompting})

    # ── What it needs ────────────────────────────────────────────────────────────────────────────────────────────

    def _fail(self, failure: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(failure)

    async def _mark(self, bookmark: Bookmark) -> None:
        self._permissions.bookmark = bookmark
        await self._desk.checkpoint(replace(bookmark, costs=self._story.costs).encoded())

    async def _spend(self, unit: str, amount: float) -> None:
        await self._transcript.usage(unit, amount)
        bookmark = self._permissions.bookmark
        if bookmark is not None and not self._permissions.parked.done():
            await self._mark(bookmark)

    def _check_servers(self, able: schema.McpCapabilities) -> None:
        for server in self._servers:
            if server.type != "stdio" and not getattr(able, server.type):
                raise Unusable(f"the agent cannot use the MCP server {server.name!r}: it does not speak {server.type}")

    def _given_servers(self) -> list[Any]:
        return [_given(server) for server in self._servers]

    async def _sign_in(self, agent: ClientSideConnection, method: str) -> None:
        try:
            await agent.authenticate(method)
        except RequestError as refusal:
            raise Unusable(self._not_signed_in(f"method {method!r}: {_told(refusal)}")) from refusal

    def _sign_in_method(self, methods: Sequence[Any], refusal: str) -> str:
        """The method whose variables the agent has. Nobody is there to sign in by hand."""
        for method in methods:
            needs = [each.name for each in getattr(method, "vars", None) or ()]
            reads = [variable for variable, methods_of_it in self._keys.items() if method.id in methods_of_it]
            if any(each in self._spec.env for each in reads) or (
                needs and all(each in self._spec.env for each in needs)
            ):
                return str(method.id)
        offered = ", ".join(f"{method.id} ({method.name})" for method in methods)
        raise Unusable(self._not_signed_in(refusal, f"; it offers the methods {offered}" if offered else ""))

    @property
    def _keys(self) -> Mapping[str, Sequence[str]]:
        return self._config.known.keys if self._config.known else {}

    def _not_signed_in(self, refusal: str, offered: str = "") -> str:
        """Why the agent cannot work, and the credential to set."""
        held = [variable for variable in self._keys if variable in self._spec.env]
        if held:
            hint = f". Check the credential that it is given as {' and '.join(held)}"
        elif self._keys:
            hint = f". Give the agent a credential as {' or '.join(self._keys)}"
        else:
            hint = ". Give the agent its key as a credential"
        return f"the agent is not signed in ({refusal}){offered}{hint}"

    def _without_a_word(self, ending: Ending) -> Failed:
        """How it ended, when the conversation did not tell."""
        program = self._config.argv[0]
        told = failure(ending, program, self._tail.last_line())
        match ending:
            case Unstarted(passing=False):
                return replace(told, detail=f"{told.detail}{how_to_install(program)}")
            case Exited(0):
                return replace(told, detail="the agent ended without ending its turn")
            case Killed() if self._hung_up and ending.signal == 15:
                return replace(told, detail="the agent hung up without ending its turn")
        return told


async def _first_of(*awaited: asyncio.Future[Any]) -> None:
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


def _given(server: McpServer) -> Any:
    match server.type:
        case "stdio":
            env = [schema.EnvVariable(name=name, value=value) for name, value in server.values.items()]
            return schema.McpServerStdio(name=server.name, command=server.command, args=list(server.args), env=env)
        case "sse":
            return schema.SseMcpServer(type="sse", name=server.name, url=server.url, headers=_headers(server))
        case _:
            return schema.HttpMcpServer(type="http", name=server.name, url=server.url, headers=_headers(server))


def _headers(server: McpServer) -> list[schema.HttpHeader]:
    return [schema.HttpHeader(name=name, value=value) for name, value in server.values.items()]


def _told(refusal: RequestError) -> str:
    details = refusal.data.get("details") if isinstance(refusal.data, dict) else refusal.data
    return f"{refusal}: {details}"[:LONGEST] if details else str(refusal)[:LONGEST]
