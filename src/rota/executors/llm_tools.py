"""The tools of a model: the desk, the session's directory, and functions of its agent. Loaded only in a child."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic_ai.tools import Tool

from rota.agent import Context, Unusable
from rota.executors.llm_models import function_named

LONGEST_FILE = 200_000
MOST_FILES = 1000
MEMORY = frozenset({"remember", "recall", "forget"})  # of an automation: they fail in a run that has none


class Declined(Exception):
    """The tool could not do it; the model is told why."""


class DeskTools:
    """What a model may do at the desk. `key` names the call that is carried out, the same in every attempt."""

    def __init__(self, context: Context, directory: Path) -> None:
        self._context, self._directory = context, directory.resolve()
        self.key = ""

    async def message(self, body: str, to: str = "all") -> str:
        """Send a message to another role of the session, to the person (`user`), or to all.

        Args:
            body: What to say.
            to: A role, `user` or `all`.
        """
        sent = await self._context.message(body, to=to, key=self.key)
        return f"Sent as message {sent['id']}."

    async def task(self, role: str, prompt: str, key: str | None = None, depends_on: Sequence[str] = ()) -> Any:
        """Add a task to the session, for the agent of a role.

        Args:
            role: The role that should do it.
            prompt: What is to be done.
            key: A name for the task, so that others can depend on it.
            depends_on: Keys of tasks that must be done before.
        """
        return await self._context.task({"role": role, "prompt": prompt, "key": key, "depends_on": list(depends_on)})

    async def event(self, name: str, data: Any = None) -> str:
        """Post a named event. It starts the automations that wait for it.

        Args:
            name: The name of the event, such as invoice.paid.
            data: Any JSON value, for those that are started.
        """
        fired = await self._context.event(name, data, key=self.key)
        return f"Posted. Runs it started: {len(fired['runs'])}."

    async def artifact(self, name: str, content: str | None = None, path: str | None = None) -> Any:
        """Keep a result for people to read and download: a text, or a file of the working directory.

        Args:
            name: The name it is shown under, such as report.md.
            content: The text itself.
            path: A file of the working directory, in place of a text.
        """
        return await self._context.artifact(name, content, path=path)

    async def remember(self, key: str, value: Any, ttl: str | None = None) -> str:
        """Keep a value for later runs of this automation.

        Args:
            key: The name it is kept under.
            value: Any JSON value.
            ttl: For how long, such as 7d; for good if left out.
        """
        await self._context.remember(key, value, ttl=ttl)
        return "Remembered."

    async def recall(self, key: str) -> Any:
        """What an earlier run remembered under a key.

        Args:
            key: The name it was kept under.
        """
        found = await self._context.recall(key)
        return "Nothing is remembered under this key." if found is None else found["value"]

    async def forget(self, key: str) -> str:
        """Forget what is remembered under a key.

        Args:
            key: The name it was kept under.
        """
        await self._context.forget(key)
        return "Forgotten."

    async def ask(self, question: str, detail: str | None = None) -> dict[str, Any]:
        """Ask a person, who may take hours to answer. They approve or refuse, and may add a text.

        Args:
            question: What they should decide.
            detail: What they need to know for it.
        """
        shown = {"tool": "ask", "detail": detail} if detail else {"tool": "ask"}
        answer = await self._context.park(question, detail=shown, key=self.key)
        return {"approved": answer.approved, "text": answer.text}

    def list_files(self, path: str = ".") -> list[str]:
        """The files of the working directory, or of a directory in it.

        Args:
            path: A directory within the working directory.
        """
        folder = self._inside(path)
        if not folder.is_dir():
            raise Declined(f"There is no directory {path!r}.")
        found = sorted(each for each in folder.rglob("*") if each.is_file())
        return [str(each.relative_to(self._directory)) for each in found[:MOST_FILES]]

    def read_file(self, path: str) -> str:
        """Read a text file of the working directory.

        Args:
            path: A file within the working directory.
        """
        file = self._inside(path)
        if not file.is_file():
            raise Declined(f"There is no file {path!r}.")
        with file.open("rb") as opened:
            data = opened.read(LONGEST_FILE + 1)
        if b"\0" in data:
            raise Declined(f"{path!r} is not a text file.")
        cut = f"\n[Only the first {LONGEST_FILE:,} bytes.]" if len(data) > LONGEST_FILE else ""
        return data[:LONGEST_FILE].decode(errors="replace") + cut

    def write_file(self, path: str, content: str) -> str:
        """Write a text file in the working directory, in place of one that is there.

        Args:
            path: A file within the working directory; directories are made as needed.
            content: All of its text.
        """
        file = self._inside(path)
        if file == self._directory or file.is_dir():
            raise Declined(f"{path!r} is a directory.")
        file.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode()
        file.write_bytes(data)
        return f"Wrote {len(data):,} bytes."

    def _inside(self, path: str) -> Path:
        """No way out of the directory, not by `..` and not by a link."""
        found = (self._directory / path).resolve()
        if not found.is_relative_to(self._directory):
            raise Declined(f"{path!r} is outside the working directory.")
        return found


class Toolbox:
    """The tools of one agent, by name."""

    def __init__(self, desk: DeskTools, given: Sequence[Mapping[str, Any]], *, has_memory: bool) -> None:
        self._desk = desk
        self._tools = {each["name"]: _tool(desk, each) for each in given if has_memory or not _is_memory(each)}
        self.definitions = [tool.tool_def for tool in self._tools.values()]

    def needs_approval(self, name: str) -> bool:
        return name in self._tools and self._tools[name].requires_approval

    async def use(self, name: str, arguments: Any, key: str) -> Any:
        """What the tool gives back; `Declined`, or whatever the tool raises, is for the model to hear."""
        tool = self._tools.get(name)
        if tool is None:
            raise Declined(f"There is no tool {name!r}; there are {', '.join(self._tools) or 'none'}.")
        self._desk.key = key
        validator = tool.function_schema.validator
        valid = (
            validator.validate_json(arguments) if isinstance(arguments, str) else validator.validate_python(arguments)
        )
        call: Callable[[Any, Any], Awaitable[Any]] = tool.function_schema.call
        return await call(valid, None)


def _is_memory(given: Mapping[str, Any]) -> bool:
    return given["function"] is None and given["name"] in MEMORY


def _tool(desk: DeskTools, given: Mapping[str, Any]) -> "Tool[Any]":
    target, approval = given["function"], bool(given["approval"])
    function = function_named(target) if target else getattr(desk, given["name"])
    style: Literal["google", "auto"] = "auto" if target else "google"
    try:
        return Tool(function, name=given["name"], takes_ctx=False, requires_approval=approval, docstring_format=style)
    except Exception as failure:  # of its signature no schema can be made
        raise Unusable(f"{target or given['name']!r} cannot be a tool: {failure}") from failure
