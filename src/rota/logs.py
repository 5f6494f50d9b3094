"""One line for each change of state: JSON for machines, readable on a terminal. Carries the trace id."""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Any, ClassVar, TextIO

from rota.errors import CannotStart

log = logging.getLogger(__name__)

trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)

_OWN = set(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


MASK = "[redacted]"
# What no line shows, wherever it comes from: a library's error may hold a URL with its password, or a header.
_SIGNS = ("rota_", "whsec_", "://", "bearer", "basic", "password=", "token=")
_SECRETS = re.compile(
    r"""rota_(?!session_)[\w-]{40,}
      | whsec_[\w+/=-]{16,}
      | (?<=://)[^\s:/@"']* : [^\s@/"']+ (?=@)
      | (?<=\bbearer\s)[\w.~+/=-]{8,}
      | (?<=\bbasic\s)[\w+/=-]{8,}
      | (?<=\bpassword=)(?:'[^']*'|[^\s"'&]+)
      | (?<=\btoken=)[^\s"'&]+
      | (?<=_login=)[^\s"';]+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_hiding: list[Callable[[str], str]] = []


@contextmanager
def hiding(redact: Callable[[str], str]) -> Iterator[None]:
    """Within this, every line of this process's log passes through `redact`."""
    _hiding.append(redact)
    try:
        yield
    finally:
        _hiding.remove(redact)


def without_secrets(line: str) -> str:
    for redact in tuple(_hiding):
        line = redact(line)
    lowered = line.lower()
    return _SECRETS.sub(MASK, line) if any(sign in lowered for sign in _SIGNS) else line


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = {name: value for name, value in vars(record).items() if name not in _OWN}
    if "trace_id" not in facts and (trace := trace_id.get()):
        facts["trace_id"] = trace
    return facts


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(line, default=str, ensure_ascii=False))


class Readable(logging.Formatter):
    COLOURS: ClassVar = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        facts = " ".join(f"\x1b[2m{name}=\x1b[0m{value}" for name, value in _facts(record).items())
        colour = self.COLOURS.get(record.levelname, "\x1b[36m")
        line = f"\x1b[2m{time}\x1b[0m {colour}{record.getMessage():<20}\x1b[0m {facts}".rstrip()
        return without_secrets(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


class Kept(WatchedFileHandler):
    """The log in a file. Moved away, as logrotate does, it is made anew. While it cannot be written nobody is harmed:
    the standard error has every line, and says so once."""

    _failure: BaseException | None = None

    def _open(self) -> TextIOWrapper:
        """Make a new file for its owner alone. An existing one keeps its mode."""
        opened = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(opened, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        before, self._failure = self._failure, None
        try:
            super().emit(record)
        except OSError as failure:  # it cannot be made anew
            self._failure = failure
        if self._failure and not before:
            log.warning("log.unwritten", extra={"file": self.baseFilename, "error": str(self._failure)})

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 — its name is logging's
        self._failure = sys.exc_info()[1]
        if not isinstance(self._failure, OSError):
            super().handleError(record)


def _file(path: str) -> logging.Handler:
    try:
        kept = Kept(path, encoding="utf-8", errors="backslashreplace")
    except OSError as failure:
        raise CannotStart(f"Cannot write the log to {path}: {failure.strerror}.", field="ROTA_LOG_FILE") from None
    kept.setFormatter(JsonLines())
    return kept


def set_up(level: str, *, file: str = "", stream: TextIO | None = None) -> None:
    """Send the logs of this process to the standard error, and to a file if one is given."""
    stream = stream or sys.stderr
    console = logging.StreamHandler(stream)
    console.setFormatter(Readable() if stream.isatty() else JsonLines())
    handlers: list[logging.Handler] = [console]
    if file:
        handlers.append(_file(file))
    logging.basicConfig(level=level.upper(), handlers=handlers, force=True)
    for noisy in ("uvicorn", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # who needed the connection tells, in words of its own
