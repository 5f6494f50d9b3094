"""Sends one message through Apprise, in a process of its own: what it is given comes by its standard input. With the
argument `examine` it says instead which services Apprise knows, and whether it understands a URL.

Apprise knows over a hundred services, each with code that makes its own connections and follows redirects. So it is not
the URL that is trusted: whatever this process connects to is judged at that moment, it starts no other program, and it
opens no file but what its libraries are made of: some services take the name of one, and send what is in it.
"""

import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from rota.model.address import AllowList
from rota.model.outward import ALLOW_SETTING, PORTS

SECONDS = 30
CONNECTING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
OF_THE_MACHINE = frozenset(
    {
        "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn",
        "syslog.openlog", "syslog.syslog",
    }
)  # fmt: skip
# Programs and their data. What people and agents write is elsewhere.
SHARED = ("/usr/lib", "/usr/share", "/etc/ssl", "/etc/pki", "/etc/mime.types", "/dev/null", "/dev/urandom")
_STATUS = re.compile(r"error=(\d{3})\b")


class Guard:
    """An audit hook: Python asks it before every connection, whoever makes it, and nothing can take it away again."""

    def __init__(self, allow: Iterable[str]) -> None:
        self._allow = AllowList(allow, setting=ALLOW_SETTING).by_address(_look_up)
        libraries = (sys.prefix, sys.base_prefix, *filter(os.path.isabs, sys.path), *SHARED)
        self._open = tuple(dict.fromkeys(os.path.realpath(each) for each in libraries))
        self.objection = ""

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if event in OF_THE_MACHINE:
            self._refuse("it is for the machine itself")
        elif event == "open" and isinstance(given[0], str | bytes) and not self._is_open(os.fsdecode(given[0])):
            self._refuse("it needs a file of the machine")
        elif event in CONNECTING and given[1] is not None and (objection := self._about(given[1])):
            self._refuse(f"{objection} (an operator may allow it by {ALLOW_SETTING})")

    def _is_open(self, path: str) -> bool:
        found = os.path.realpath(path)
        return any(found == each or found.startswith(f"{each.rstrip('/')}/") for each in self._open)

    def _about(self, address: Any) -> str | None:
        try:
            return self._allow.objection_at(ip_address(address[0].partition("%")[0]), int(address[1]), PORTS)
        except (ValueError, TypeError, AttributeError, IndexError):
            return "it is no address of a network"

    def _refuse(self, objection: str) -> None:
        self.objection = objection
        raise ConnectionRefusedError(objection)


def _look_up(host: str) -> list[str]:
    try:
        return [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


class _Heard(logging.Handler):
    """The status that a service answered with, if Apprise says one. Its other words may hold what must not be told."""

    status = ""

    def emit(self, record: logging.LogRecord) -> None:
        if found := _STATUS.search(record.getMessage()):
            self.status = found[1]


def send(url: str, title: str, body: str, allow: Iterable[str]) -> str:
    """Why it could not be sent; empty if it was."""
    try:
        import apprise  # noqa: PLC0415 - heavy, and an extra
    except ImportError:
        return "Apprise is not installed where messages are sent: install rota[notify]"
    guard, heard = Guard(allow), _Heard()
    logging.getLogger("apprise").addHandler(heard)
    asset = apprise.AppriseAsset(app_id="Rota", app_desc="Rota", async_mode=False, secure_logging=True)
    sys.addaudithook(guard)
    try:
        service = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        if service is None:
            return "Apprise does not understand this URL"
        # Not by the service itself: it would take for its own, such as HTML, what agents and people wrote as text.
        everybody = apprise.Apprise(service, asset=asset)
        sent = everybody.notify(body, title, apprise.NotifyType.INFO, body_format=apprise.NotifyFormat.TEXT)
    except Exception as failure:  # somebody else's code
        return _why(guard, heard) or f"it broke with {type(failure).__name__}"
    return "" if sent else _why(guard, heard) or "the service could not be reached, or refused it"


def examine(url: str) -> dict[str, Any]:
    """Whether Apprise understands the URL, and all its schemes."""
    import apprise  # noqa: PLC0415 - heavy, and an extra
    from apprise.manager_plugins import NotificationManager  # noqa: PLC0415

    schemes = sorted(NotificationManager().schemas())  # type: ignore[no-untyped-call]
    sys.addaudithook(Guard(()))  # a plugin reads a URL, which anybody may have written
    try:
        service = apprise.Apprise.instantiate(url, suppress_exceptions=True)
    except Exception:  # somebody else's code
        service = None
    return {"understood": service is not None, "schemes": schemes}


def _why(guard: Guard, heard: _Heard) -> str:
    """Who has answered was called: then it does not matter what else was refused, such as a file of passwords."""
    if heard.status:
        return f"the service answered {heard.status}"
    return f"it may not be called: {guard.objection}" if guard.objection else ""


def main() -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they mean the watch: it waits for what is on its way
        signal.signal(each, signal.SIG_IGN)
    signal.alarm(SECONDS)
    given = json.load(sys.stdin)
    told = examine(**given) if sys.argv[1:] == ["examine"] else {"error": send(**given)}
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main()
