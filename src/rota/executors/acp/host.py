"""What an agent may ask of its client: files and terminals of the session's directory, and permission."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from acp import RequestError, schema

from rota.errors import NotFound, Refused
from rota.executors.acp.files import Files
from rota.executors.acp.permissions import Permissions
from rota.executors.acp.terminals import Terminals

CAPABILITIES = schema.ClientCapabilities(
    fs=schema.FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True
)

T = TypeVar("T")


class Host:
    """Handlers of the protocol's library, which calls them by these names. What the agent may not have it is told;
    every other failure is the attempt's."""

    def __init__(
        self, permissions: Permissions, files: Files, terminals: Terminals, fail: Callable[[BaseException], None]
    ) -> None:
        self._permissions, self._files, self._terminals, self._fail = permissions, files, terminals, fail
        self.cancel: Callable[[], Awaitable[None]] | None = None  # the turn, in the protocol's own way

    async def request_permission(
        self, tool_call: schema.ToolCallUpdate, options: Sequence[schema.PermissionOption], **_: Any
    ) -> schema.RequestPermissionResponse:
        async def asked() -> schema.RequestPermissionResponse:
            answer = await self._permissions.request(tool_call, options)
            if self._permissions.parked.done() and self.cancel is not None:
                await self.cancel()  # the process need not wait: the turn is over, and another one goes on from here
            return answer

        return await self._told(asked())

    async def read_text_file(
        self, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> schema.ReadTextFileResponse:
        text = await self._told(asyncio.to_thread(self._files.read, path, line, limit))
        return schema.ReadTextFileResponse(content=text)

    async def write_text_file(self, path: str, content: str, **_: Any) -> schema.WriteTextFileResponse:
        await self._told(asyncio.to_thread(self._files.write, path, content))
        return schema.WriteTextFileResponse()

    async def create_terminal(
        self,
        command: str,
        args: Sequence[str] | None = None,
        env: Sequence[schema.EnvVariable] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **_: Any,
    ) -> schema.CreateTerminalResponse:
        async def created() -> str:
            directory = self._files.directory(cwd)
            variables = {each.name: each.value for each in env or ()}
            return self._terminals.create([command, *(args or ())], variables, directory, output_byte_limit)

        return schema.CreateTerminalResponse(terminal_id=await self._told(created()))

    async def terminal_output(self, terminal_id: str, **_: Any) -> schema.TerminalOutputResponse:
        async def found() -> schema.TerminalOutputResponse:
            terminal = self._terminals.find(terminal_id)
            status = terminal.status
            ended = schema.TerminalExitStatus(exit_code=status.exit_code, signal=status.signal) if status else None
            return schema.TerminalOutputResponse(
                output=terminal.output, truncated=terminal.truncated, exit_status=ended
            )

        return await self._told(found())

    async def wait_for_terminal_exit(self, terminal_id: str, **_: Any) -> schema.WaitForTerminalExitResponse:
        async def ended() -> schema.WaitForTerminalExitResponse:
            status = await self._terminals.find(terminal_id).ended()
            return schema.WaitForTerminalExitResponse(exit_code=status.exit_code, signal=status.signal)

        return await self._told(ended())

    async def kill_terminal(self, terminal_id: str, **_: Any) -> schema.KillTerminalResponse:
        await self._told(self._terminals.kill(terminal_id))
        return schema.KillTerminalResponse()

    async def release_terminal(self, terminal_id: str, **_: Any) -> schema.ReleaseTerminalResponse:
        await self._told(self._terminals.release(terminal_id))
        return schema.ReleaseTerminalResponse()

    async def _told(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except RequestError:
            raise
        except NotFound as missing:
            raise RequestError(-32002, missing.message) from missing
        except Refused as refusal:
            raise RequestError(-32602, refusal.message) from refusal
        except OSError as failure:
            raise RequestError(-32603, str(failure)) from failure
        except Exception as failure:  # the desk's: the library would only write it into a log
            self._fail(failure)
            raise RequestError(-32603, "The attempt is over.") from failure
