"""`rota mcp`: Rota as a server of the Model Context Protocol that a desktop client starts and talks to over pipes."""

import asyncio
import os
import sys

import click

from rota.cli import options
from rota.mcp.bridge import Bridge, lines_of


@click.command("mcp")
@options.url
@options.token
def command(url: str, token: str | None) -> None:
    """Give a client of the Model Context Protocol the tools of a Rota that runs, here or elsewhere.

    Reads JSON-RPC messages from the standard input, a line each, and writes the answers to the standard output.
    """
    known = options.known(token)
    if sys.stdin.isatty():
        _warn("Clients start this themselves and speak on its standard input; docs/mcp.md says how to connect one.")
    asyncio.run(_serve(url, known))


async def _serve(url: str, token: str) -> None:
    bridge = Bridge(url, token, write=_write, warn=_warn)
    await bridge.run(lines_of(sys.stdin.fileno()))


def _write(line: bytes) -> None:
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # the client has gone, and there is nobody left to tell


def _warn(told: str) -> None:
    print(f"rota: {told}", file=sys.stderr, flush=True)
