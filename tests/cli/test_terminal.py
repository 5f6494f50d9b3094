"""The command line at a real terminal: as wide as it is, in colour unless that is unwanted, and left by Ctrl-C."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from rota.cli.showing import width_of

from .conftest import Answer, Command

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


async def test_a_content_is_read_out_and_nothing_of_it_obeyed(rota: Command) -> None:
    session = (await rota("sessions", "open", "worker-bee")).stdout.strip()
    await rota("artifacts", "add", session, "-", "--name", "notes.txt", stdin="\x1b]0;owned\x07All is \x1b[31mwell.")
    await rota("artifacts", "add", session, "-", "--name", "notes.zip", stdin="PK")
    read = await asyncio.to_thread(at_a_terminal, 72, "artifacts", "download", session, "notes.txt", "-o", "-")
    assert read == ["All is well."]
    with pytest.raises(AssertionError):
        await asyncio.to_thread(at_a_terminal, 72, "artifacts", "download", session, "notes.zip", "-o", "-")


def left(*arguments: str) -> tuple[int, str]:
    """How it ends when somebody presses Ctrl-C after its first words."""
    program = subprocess.Popen([str(ROTA), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout
    assert program.stdout.readline()
    program.send_signal(signal.SIGINT)
    _, told = program.communicate(timeout=30)
    return program.returncode, told


@pytest.mark.usefixtures("worker")
async def test_ctrl_c_ends_the_looking_and_says_that_the_run_goes_on(rota: Command, answer: Answer) -> None:
    config = '{"argv": ["sh", "-c", "echo begun; exec sleep 600"]}'
    await rota("agents", "create", "Slow", "--executor", "command", "--config", config)
    code, told = await asyncio.to_thread(left, "agents", "run", "slow", "Go.", "--follow")
    [run] = (await answer("runs", "list", "--status", "running"))["items"]
    assert (code, told) == (130, f"\nThe run goes on. `rota runs cancel {run['id']}` stops it.\n")
    assert await asyncio.to_thread(left, "sessions", "follow", run["session_id"]) == (130, "")
    await rota("runs", "cancel", run["id"])
    await rota("runs", "wait", run["id"], code=1)
