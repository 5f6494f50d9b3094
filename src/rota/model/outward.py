"""Where messages to people may be sent, how often it is tried, and what they say. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from rota.errors import Invalid
from rota.model.address import OPEN_PORTS, AllowList, Target
from rota.model.cron import did_you_mean
from rota.model.notification import path, title

ALLOW_SETTING, SCHEMES_SETTING = "ROTA_NOTIFY_ALLOW", "ROTA_NOTIFY_SCHEMES"
LONGEST_URL = 2000
MOST_TARGETS = 10
MOST_TRIES = 8
GAP = timedelta(minutes=1)  # between two messages to one target; what comes meanwhile goes together
FIRST_DELAY, LONGEST_DELAY = timedelta(seconds=30), timedelta(minutes=30)
MOST_LINES = 20
TEST = "test"

# What reaches the machine itself, not the network.
LOCAL = frozenset(
    {"dbus", "exec", "file", "gio", "glib", "gnome", "kde", "macosx", "qt", "syslog", "windows", "apprise-config"}
)
# Any host's any path: the host is judged when it is saved. All others are judged when they are called.
PLAIN = {"json": 80, "jsons": 443, "xml": 80, "xmls": 443, "form": 80, "forms": 443}
# Every Apprise has these, so nobody needs to ask it.
ALWAYS_KNOWN = frozenset({*PLAIN, "mailto", "mailtos"})
WEB = frozenset({"http", "https"})  # some services may be given by the address that they show themselves
PORTS = OPEN_PORTS | {25, 465, 587, 2525}  # and those of mail

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{1,31})://[\x21-\x7e]+", re.IGNORECASE | re.ASCII)


def checked_url(url: str, allow: AllowList, schemes: Collection[str]) -> str:
    """Its scheme, if such a target may be saved. No refusal repeats any of it: a URL holds keys and passwords."""
    match = _URL.fullmatch(url)
    if match is None or len(url) > LONGEST_URL:
        raise _unfit(f"must be an Apprise URL such as mailto://… or slack://…, of at most {LONGEST_URL:,} characters")
    scheme = match["scheme"].lower()
    if scheme in LOCAL:
        raise _unfit("leads to the server itself, not to a person")
    if schemes and scheme not in schemes:
        raise _unfit(f"must have one of the schemes that {SCHEMES_SETTING} allows: {', '.join(sorted(schemes))}")
    if scheme in PLAIN and (objection := _objection(url, PLAIN[scheme], allow)):
        raise _unfit(f"may not be called: {objection} (an operator may allow it by {ALLOW_SETTING})")
    return scheme


def unknown_service(scheme: str, schemes: Collection[str]) -> Invalid:
    """The refusal of a URL that Apprise does not understand. `schemes` are those that it knows."""
    known = sorted(set(schemes) - LOCAL)
    hint = "" if scheme in WEB else did_you_mean(scheme, known)
    return _unfit(f"is for no service that Apprise knows.{hint} The schemes are: {', '.join(known)}")


def _objection(url: str, port: int, allow: AllowList) -> str | None:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").removesuffix("."), parts.port or port
        target = Target("http", host, port, "/")
        return allow.objection(target) if host else "it names no host"
    except ValueError:
        return "its host or port cannot be read"


def _unfit(reason: str) -> Invalid:
    return Invalid(f"The URL {reason}.", code="invalid_target", field="url")


def delay(tries: int) -> timedelta:
    """Until the next try, after so many that failed."""
    return min(FIRST_DELAY * (1 << min(tries - 1, 10)), LONGEST_DELAY)


def message(told: Sequence[Mapping[str, Any]], root: str) -> tuple[str, str]:
    """The title and body of one message about all of these; links begin with `root`."""
    news = [each for each in told if each["kind"] != TEST]
    if not news:
        return "Rota can reach you", f"This is the test that you asked for.\n{root}/notifications"
    lines = [_line(each, root) for each in news[:MOST_LINES]]
    if len(news) > MOST_LINES:
        lines.append(f"And {len(news) - MOST_LINES} more: {root}/notifications")
    return title(news[0]) if len(news) == 1 else f"{len(news)} notifications", "\n\n".join(lines)


def _line(told: Mapping[str, Any], root: str) -> str:
    where = path(told) or "/notifications"
    return "\n".join(each for each in (title(told), told["detail"], root + where) if each)
