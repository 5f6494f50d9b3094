"""An agent written with the protocol's own library. The first argument of its program says what it does; the others what it is like.

It keeps its conversations in its working directory, as real ones do, and notes in `pids` that it is at work.
"""

import asyncio
import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import acp
from acp import schema

PROGRAM = Path(__file__).with_name("acp_program.py")
LIMITED = ("max_tokens", "max_turn_requests", "refusal", "cancelled")


def config(how: str, *like: str, **more: Any) -> dict[str, Any]:
    return {"argv": [sys.executable, str(PROGRAM), how, *like], **more}


def recalled(session_id: str) -> list[str]:
    try:
        history: list[str] = json.loads(Path(f"{session_id}.json").read_text())
    except FileNotFoundError:
        raise acp.RequestError.resource_not_found(session_id) from None
    return history


class Agent:
    def __init__(self, how: str, like: list[str]) -> None:
        self._how, self._like = how, like
        self._cancelled = asyncio.Event()
        self._signed_in = "wants a key" not in like

    def on_connect(self, client: Any) -> None:
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        able = schema.AgentCapabilities(load_session="forgets" not in self._like)
        methods: list[schema.EnvVarAuthMethod | schema.TerminalAuthMethod | schema.AuthMethodAgent] = [
            schema.AuthMethodAgent(id=name, name=name.capitalize()) for name in self._methods()
        ]
        version = 9 if "is from the future" in self._like else protocol_version
        if "never greets" in self._like:
            await asyncio.Event().wait()
        return acp.InitializeResponse(protocol_version=version, agent_capabilities=able, auth_methods=methods)

    def _methods(self) -> tuple[str, ...]:
        """The sign-in methods that the released agents offer to a client that can open no browser."""
        if "like Claude Code" in self._like:
            return ()
        return ("api-key", "chat-gpt") if "like Codex" in self._like else ("gemini-api-key", "web")

    async def authenticate(self, method_id: str, **_: Any) -> None:
        """As Codex does, also with an unknown method or without its key."""
        if method_id not in self._methods():
            raise acp.RequestError.invalid_params()
        if "like Codex" in self._like and not {"OPENAI_API_KEY", "CODEX_API_KEY"} & os.environ.keys():
            raise acp.RequestError(-32603, "Internal error: CODEX_API_KEY or OPENAI_API_KEY is not set")
        self._signed_in = method_id != "web"

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> acp.NewSessionResponse:
        if not self._signed_in:
            raise acp.RequestError.auth_required()
        self._servers = mcp_servers
        self._session = f"conversation-{os.getpid()}"
        self._history: list[str] = []
        return acp.NewSessionResponse(session_id=self._session)

    async def load_session(self, session_id: str, mcp_servers: Any = None, **_: Any) -> acp.LoadSessionResponse:
        self._session, self._servers, self._history = session_id, mcp_servers, recalled(session_id)
        for each in self._history:
            await self.say(f"[said before: {each}]")
        return acp.LoadSessionResponse()

    async def set_session_mode(self, mode_id: str, **_: Any) -> None:
        self._mode = mode_id

    async def cancel(self, **_: Any) -> None:
        self._cancelled.set()

    async def prompt(self, prompt: Any, **_: Any) -> acp.PromptResponse:
        text = prompt[0].text
        if "like Claude Code" in self._like and os.environ.get("ANTHROPIC_API_KEY") != "valid":
            raise acp.RequestError.auth_required()  # it opens a conversation without a key
        self.remember(f"asked: {text}")
        if self._how in LIMITED:
            return acp.PromptResponse(stop_reason=cast("schema.StopReason", self._how))
        reason = await getattr(self, self._how)(text)
        usage = schema.Usage(total_tokens=12, input_tokens=10, output_tokens=2)
        return acp.PromptResponse(stop_reason=reason or "end_turn", usage=usage)

    # ── What it does ─────────────────────────────────────────────────────────────────────────────────────────────

    async def echoes(self, text: str) -> None:
        await self.say(text)

    async def chats(self, text: str) -> None:
        """All kinds of updates, and what is none."""
        print("[a line that is no message]", flush=True)
        for piece in ("Let me ", "look."):
            await self.update(acp.update_agent_thought_text(piece))
        await self.say("Looking")
        call = acp.start_tool_call("1", "Find rhymes", kind="search", status="pending")
        await self.update(call)
        await self.update(acp.update_tool_call("1", status="in_progress", raw_input={"query": "rhymes"}))
        await self.update(acp.update_tool_call("1", title="Find all rhymes"))
        await self.update(acp.update_tool_call("1", status="completed", raw_output={"found": 2}))
        for status in ("pending", "pending", "completed"):
            await self.update(acp.update_plan([acp.plan_entry("Write", status=status)]))
        for amount in (0.1, 0.3):  # so far, each time
            cost = schema.Cost(amount=amount, currency="USD")
            await self.update(schema.UsageUpdate(session_update="usage_update", used=1, size=2, cost=cost))
        await self.say("A poem.")

    async def steps(self, text: str) -> None:
        """One thing after the other, once each: it looks at its history for what is done."""
        if "did: one" not in self._history:
            self.do("one")
            await self.say("Did one.")
            self.at_work()
            await asyncio.Event().wait()
        self.do("two")
        await self.say("Did two.")

    async def pushes(self, text: str) -> str:
        """Does one thing, and another one only if it may; as often as it is like."""
        if "did: one" not in self._history:
            self.do("one")
        for _ in range(2 if "twice" in self._like else 1):
            answer = await self.ask("git push", {"command": "git push"})
            if answer is None:
                return "cancelled"
            self.do(f"push {answer}")
        await self.say(f"Answered: {answer}.")
        return "end_turn"

    async def asks_and_waits(self, text: str) -> None:
        self.at_work()
        answer = await self.ask("git push", {"command": "git push"})
        await self.say(f"Answered: {answer}.")

    async def waits(self, text: str) -> str:
        """Until it is cancelled, which it notes."""
        self.at_work()
        await self._cancelled.wait()
        self.do("cancel")
        return "cancelled"

    async def opens_files(self, text: str) -> None:
        """Each path of the prompt: written, then read."""
        for path in json.loads(text):
            try:
                await self._client.write_text_file(session_id=self._session, path=path, content="a\nb\nc\n")
                found = await self._client.read_text_file(session_id=self._session, path=path, line=2, limit=1)
                await self.say(f"{found.content!r}\n")
            except acp.RequestError as refusal:
                await self.say(f"{refusal}\n")

    async def runs_programs(self, text: str) -> None:
        """In a terminal: one that ends, one that is killed, one that is left, and one outside."""
        ended = await self.terminal("sh", "-c", "printf '%s' \"$COLOUR\"; pwd; exit 3")
        status = await self._client.wait_for_terminal_exit(session_id=self._session, terminal_id=ended)
        output = await self._client.terminal_output(session_id=self._session, terminal_id=ended)
        await self.say(f"{status.exit_code} {output.output}")
        hangs = await self.terminal("sleep", "600")
        await self._client.kill_terminal(session_id=self._session, terminal_id=hangs)
        await self._client.release_terminal(session_id=self._session, terminal_id=hangs)
        with suppress(acp.RequestError):
            await self.terminal("pwd", cwd="/")
            await self.say("It got out.\n")
        left = await self.terminal("sh", "-c", "echo $$ > pids; echo ready; exec sleep 600")
        while "ready" not in output.output:
            output = await self._client.terminal_output(session_id=self._session, terminal_id=left)

    async def tells_what_it_was_given(self, text: str) -> None:
        servers = [each.model_dump(by_alias=True, exclude_none=True) for each in self._servers or []]
        await self.say(json.dumps({"servers": servers, "mode": self._mode}))

    async def betrays(self, text: str) -> None:
        """What it was given, in every way that it can speak, cut and whole, and as its error."""
        key = os.environ["KEY"]
        await self.say(f"proof {hashlib.sha256(key.encode()).hexdigest()[:16]}\n")
        for piece in ("cut ", key[:9], key[9:], "!"):
            await self.say(piece)
        await self.update(acp.update_agent_thought_text(key))
        await self.update(acp.start_tool_call("1", key, kind="search", raw_input={"key": key, key: [key]}))
        await self.update(acp.update_plan([acp.plan_entry(key, status="pending")]))
        print(key, file=sys.stderr, flush=True)
        raise acp.RequestError(-32000, f"no way in with {key}", {"key": key})

    async def fails_with_a_warning(self, text: str) -> None:
        await self.say("I look for ink.")
        print("npm warn config deprecated", file=sys.stderr, flush=True)
        raise acp.RequestError.internal_error()

    async def hangs_up(self, text: str) -> None:
        os.close(1)

    # ── How ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def say(self, text: str) -> None:
        await self.update(acp.update_agent_message_text(text))

    async def update(self, update: Any) -> None:
        await self._client.session_update(session_id=self._session, update=update)

    async def ask(self, title: str, given: Any) -> str | None:
        call = schema.ToolCallUpdate(tool_call_id=os.urandom(4).hex(), title=title, kind="execute", raw_input=given)
        options = [
            schema.PermissionOption(option_id="no", name="No", kind="reject_once"),
            schema.PermissionOption(option_id="always", name="Always", kind="allow_always"),
            schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
        ]
        answer = await self._client.request_permission(session_id=self._session, tool_call=call, options=options)
        return getattr(answer.outcome, "option_id", None)

    async def terminal(self, command: str, *args: str, cwd: str | None = None) -> str:
        env = [schema.EnvVariable(name="COLOUR", value="blue ")]
        made = await self._client.create_terminal(
            session_id=self._session, command=command, args=list(args), env=env, cwd=cwd
        )
        found: str = made.terminal_id
        return found

    def do(self, what: str) -> None:
        with Path("done.txt").open("a") as done:
            done.write(f"{what}\n")
        self.remember(f"did: {what}")

    def remember(self, what: str) -> None:
        self._history.append(what)
        Path(f"{self._session}.json").write_text(json.dumps(self._history))

    def at_work(self) -> None:
        Path("pids.new").write_text(str(os.getpid()))
        Path("pids.new").rename("pids")


async def main() -> None:
    await acp.run_agent(Agent(sys.argv[1], sys.argv[2:]))  # type: ignore[arg-type]
