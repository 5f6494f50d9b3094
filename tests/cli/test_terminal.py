"""The command line at a real terminal: as wide as it is, in colour unless that is unwanted."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from rota.cli.showing import width_of

from .conftest import Command

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROTA = Path(sys.executable).with_name("rota")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def at_a_terminal(columns: int, *arguments: str, **environment: str) -> list[str]:
    """The lines that a program writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    program = subprocess.Popen([str(ROTA), *arguments], stdin=theirs, stdout=theirs, env={**kept, **environment})
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65536):
            said += piece
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    assert program.wait(30) == 0, said
    return said.decode().splitlines()


async def test_a_table_is_no_wider_than_the_terminal_and_coloured_unless_unwanted(rota: Command) -> None:
    name = "A name that is much longer than anybody would " + "really " * 10 + "write"
    await rota(
        "automations", "create", name, "--slug", "long", "--agent", "worker-bee", "--prompt", "x", "--every", "1h"
    )
    lines = await asyncio.to_thread(at_a_terminal, 72, "automations", "list")
    assert COLOUR.search(lines[0])
    shown = [COLOUR.sub("", line) for line in lines]
    assert [width_of(line) <= 72 for line in shown] == [True, True]
    assert shown[1].startswith("long  A name")
    assert "…" in shown[1]
    plain = await asyncio.to_thread(at_a_terminal, 72, "automations", "list", NO_COLOR="1")
    assert plain == shown
    piped = (await rota("automations", "list")).stdout
    assert name in piped
    assert not COLOUR.search(piped)
