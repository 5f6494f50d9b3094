"""The starter for the Agent Client Protocol: keeps a diary of its machine, and asks before it writes into it.

A whole agent, written with the protocol's own library. It knows nothing of Rota: its client, which is Rota, reads and
writes the diary, asks the person, and shows the plan. While it waits for an answer its process may end, so it keeps its
draft.
"""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import acp
from acp import schema

DIARY, DRAFT = "diary.md", Path("draft.md")
STEPS = ("Look at the machine", "Write it down")


def _draft() -> str:
    """What it was about to write when its process ended, or what it finds now."""
    if not DRAFT.exists():
        DRAFT.write_text(_look())
    return DRAFT.read_text()


def _look() -> str:
    return f"- {datetime.now(UTC):%Y-%m-%d %H:%M}: load {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors\n"


class Diary:
    def __init__(self) -> None:
        self._client: Any = None
        self._session = "diary"

    def on_connect(self, client: Any) -> None:
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        able = schema.AgentCapabilities(load_session=True)
        return acp.InitializeResponse(protocol_version=protocol_version, agent_capabilities=able)

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        self._file = str(Path(cwd) / DIARY)
        return acp.NewSessionResponse(session_id=self._session)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> acp.LoadSessionResponse:
        """What it remembers is in the diary."""
        self._file, self._session = str(Path(cwd) / DIARY), session_id
        return acp.LoadSessionResponse()

    async def cancel(self, **_: Any) -> None:
        """It is asked between two steps, and there is nothing to take back."""

    async def prompt(self, **_: Any) -> acp.PromptResponse:
        await self._plan(0)
        entry = _draft()
        await self._plan(1)
        chosen = await self._ask(entry)
        if chosen is None:
            return acp.PromptResponse(stop_reason="cancelled")
        if chosen == "write":
            await self._client.write_text_file(
                session_id=self._session, path=self._file, content=await self._so_far() + entry
            )
        await self._plan(2)
        await self._say(entry if chosen == "write" else "Nothing was written today.\n")
        return acp.PromptResponse(stop_reason="end_turn")

    async def _so_far(self) -> str:
        try:
            found = await self._client.read_text_file(session_id=self._session, path=self._file)
        except acp.RequestError:  # there is no diary yet
            return "# Diary\n\n"
        return str(found.content)

    async def _ask(self, entry: str) -> str | None:
        call = schema.ToolCallUpdate(
            tool_call_id="write", kind="edit", title="Write into the diary", raw_input={"entry": entry.strip()}
        )
        options = [
            schema.PermissionOption(option_id="write", name="Write it", kind="allow_once"),
            schema.PermissionOption(option_id="skip", name="Not today", kind="reject_once"),
        ]
        answer = await self._client.request_permission(session_id=self._session, tool_call=call, options=options)
        return getattr(answer.outcome, "option_id", None)

    async def _plan(self, done: int) -> None:
        states = ["completed" if at < done else "in_progress" if at == done else "pending" for at in range(len(STEPS))]
        entries = [acp.plan_entry(step, status=state) for step, state in zip(STEPS, states, strict=True)]  # type: ignore[arg-type]
        await self._tell(acp.update_plan(entries))

    async def _say(self, text: str) -> None:
        await self._tell(acp.update_agent_message_text(text))

    async def _tell(self, update: Any) -> None:
        await self._client.session_update(session_id=self._session, update=update)


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Diary()))  # type: ignore[arg-type]
