"""A hostile agent: tries to reach Rota from inside its run, and reports what it got.

Runs as a program (`python attacker.py FACTS`) and as a Python agent (`attacker:agent`). It may import only what an agent has.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
NEW_USER_AND_MOUNTS = 0x10000000 | 0x00020000


def attack(facts: Facts) -> dict[str, str]:
    """What each attack gained, by name; one that failed gained nothing and is left out."""
    gained = {name: _gain(attempt, facts) for name, attempt in ATTACKS.items() if name in facts.get("only", ATTACKS)}
    return {name: what for name, what in gained.items() if what}


def _gain(attempt: Callable[[Facts], str], facts: Facts) -> str:
    try:
        return attempt(facts)
    except (OSError, subprocess.SubprocessError):
        return ""


def read_key_by_relative_path(facts: Facts) -> str:
    return Path("../../..", Path(facts["key"]).name).read_text()


def read_key_by_absolute_path(facts: Facts) -> str:
    return Path(facts["key"]).read_text()


def read_key_through_other_roots(facts: Facts) -> str:
    """Through the root or the working directory of whatever process is visible."""
    for each in Path("/proc").glob("[0-9]*"):
        for name in ("root", "cwd"):
            with suppress(OSError):
                return Path(f"{each}/{name}{facts['key']}").read_text()
    return ""


def read_key_after_unmounting(facts: Facts) -> str:
    """Become root of a new user namespace and take away what covers the home."""
    reader = (
        "import ctypes, sys; l = ctypes.CDLL(None); l.unshare(int(sys.argv[2])); l.umount2(sys.argv[1].encode(), 2)"
    )
    reader += "; print(open(sys.argv[3]).read())"
    command = [sys.executable, "-I", "-c", reader, facts["home"], str(NEW_USER_AND_MOUNTS), facts["key"]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def find_files_in_home(facts: Facts) -> str:
    own = os.getcwd()
    found = [os.path.join(at, name) for at, _, names in os.walk(facts["home"]) for name in names]
    return "\n".join(each for each in found if not each.startswith(own))


def write_into_home(facts: Facts) -> str:
    Path(facts["home"], "planted").write_text("x")
    return "wrote into the home"


def read_other_session(facts: Facts) -> str:
    return "\n".join(os.listdir(facts["other_session"]))


def connect_to_database(facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX) as database:
        database.connect(facts["database_socket"])
    return "connected to the database's socket"


def read_memory_of_server(facts: Facts) -> str:
    return _read_of_others("maps", facts)


def read_environment_of_server(facts: Facts) -> str:
    return _read_of_others("environ", facts)


def see_other_processes(facts: Facts) -> str:
    """Process 1 is the launcher of this agent, which it may see and not touch."""
    return "\n".join(f"{pid}: {command}" for pid, command in _others(facts).items() if pid != 1 and command)


def _read_of_others(name: str, facts: Facts) -> str:
    for pid in {facts["server"], *_others(facts)}:
        with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            if file.read(1):
                return f"read {name} of process {pid}"
    return ""


def _others(facts: Facts) -> dict[int, str]:
    """The command line of every visible process that this agent has not started."""
    seen = {}
    for each in os.listdir("/proc"):
        if each.isdigit() and int(each) != os.getpid():
            with suppress(OSError):
                seen[int(each)] = Path("/proc", each, "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return {pid: command for pid, command in seen.items() if facts["marker"] not in command}


def signal_server(facts: Facts) -> str:
    os.kill(facts["server"], signal.SIGTERM)
    return "signalled the server"


def trace_launcher(_facts: Facts) -> str:
    return Path("/proc/1/environ").read_text() or Path("/proc/1/maps").read_text()


def print_sign_in_link(facts: Facts) -> str:
    command = [facts["rota"], "sign-in", "--home", facts["home"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    return done.stdout + done.stderr if "token=" in done.stdout + done.stderr else ""


def create_admin_token(facts: Facts) -> str:
    command = [facts["rota"], "tokens", "create", "mine", "--home", facts["home"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    return done.stdout if "rota_" in done.stdout else ""


def change_installation(facts: Facts) -> str:
    for directory in facts["installation"]:
        with suppress(OSError):
            Path(directory, "planted.py").write_text("x")
            return f"wrote into {directory}"
    return ""


def open_raw_disk(_facts: Facts) -> str:
    for each in Path("/sys/class/block").glob("*"):
        with suppress(OSError), open(f"/dev/{each.name}", "rb") as disk:
            disk.read(1)
            return f"read /dev/{each.name}"
    return ""


def change_kernel(_facts: Facts) -> str:
    with open("/proc/sys/kernel/core_pattern", "r+") as file:
        file.write(file.read())
    return "wrote the kernel's core_pattern"


def keep_capabilities(_facts: Facts) -> str:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    held = {name: value for name, value in status.items() if name.startswith("Cap") and int(value, 16)}
    if status["NoNewPrivs"] != "1":
        held["NoNewPrivs"] = status["NoNewPrivs"]
    return json.dumps(held) if held else ""


def gain_privileges_by_new_root(_facts: Facts) -> str:
    """A root of our own making must not mount over, or look behind, what hides Rota."""
    libc = ctypes.CDLL(None, use_errno=True)
    return "mounted" if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else ""


def be_somebody_else(facts: Facts) -> str:
    """Root of a user namespace, for instance: an agent is the user that runs Rota."""
    return str(os.getuid()) if os.getuid() != facts["uid"] else ""


ATTACKS: dict[str, Callable[[Facts], str]] = {
    each.__name__: each
    for each in (
        read_key_by_relative_path, read_key_by_absolute_path, read_key_through_other_roots, read_key_after_unmounting,
        find_files_in_home, write_into_home, read_other_session, connect_to_database, read_memory_of_server,
        read_environment_of_server, see_other_processes, signal_server, trace_launcher, print_sign_in_link,
        create_admin_token, change_installation, open_raw_disk, change_kernel, keep_capabilities,
        gain_privileges_by_new_root, be_somebody_else,
    )
}  # fmt: skip


def stay_behind(marker: str, *, stubborn: bool) -> None:
    """Leave a process of another session and group; a stubborn one ignores every signal that it may."""
    script = (
        "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; " if stubborn else "import time; "
    )
    script += "time.sleep(600)"
    leader = os.fork()
    if leader == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            os.execv(sys.executable, [sys.executable, "-I", "-c", script, marker])
        os._exit(0)
    os.waitpid(leader, 0)


def agent(context: Any) -> str:
    facts = context.input
    stay_behind(facts["marker"], stubborn=False)
    report(attack(facts))
    return "tried all"


def report(gained: dict[str, str]) -> None:
    Path("gained.json").write_text(json.dumps(gained))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    stay_behind(given["marker"], stubborn=True)
    report(attack(given))
