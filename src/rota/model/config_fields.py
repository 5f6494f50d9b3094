"""How the fields of a configuration are read: each refusal names the field, what was wrong and what would be right."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, TypeVar

from rota.errors import Invalid
from rota.model.duration import parse_duration

OUTPUT_LIMIT = 10_000_000
LARGEST = 2**50
LONGEST_WAIT = timedelta(hours=1)
BLANK = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

T = TypeVar("T")

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|AUTHORIZATION|COOKIE", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that nobody knows."""
    known = list(known)
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def open_secrets(values: Mapping[str, str], at: str = "env") -> list[str]:
    open_ones = [name for name, text in values.items() if _SECRET_NAME.search(name) and not BLANK.search(text)]
    named = [f"config.{at}.{name}" for name in open_ones]
    return [f"{name} can be read by everyone who sees the agent; keep it as a credential" for name in named]


class Fields:
    """Reads the fields of one object, and names the field in every refusal."""

    def __init__(self, values: object, known: str, at: str = "config") -> None:
        self._at = at
        self._values = read_object(values, at)
        for name in self._values:
            if name not in known.split():
                raise Invalid(f"{name!r} is unknown{did_you_mean(name, known.split())}", field=f"{at}.{name}")

    def read(self, name: str, reader: Callable[[Any, str], T]) -> T | None:
        value = self._values.get(name)
        return None if value is None else reader(value, f"{self._at}.{name}")

    def exactly_one(self, *names: str) -> None:
        given = [name for name in names if self._values.get(name) is not None]
        if len(given) != 1:
            raise Invalid(f"give either {' or '.join(names)}", field=f"{self._at}.{(given or names)[-1]}")

    def none_of(self, *names: str, because: str) -> None:
        for name in names:
            if self._values.get(name) is not None:
                raise Invalid(because, field=f"{self._at}.{name}")


def otherwise(value: T | None, default: T) -> T:
    return default if value is None else value


def read_object(value: object, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid("must be an object", field=at)
    return value


def read_text(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise Invalid("must be text", field=at)
    if "\0" in value or not _encodable(value):
        raise Invalid("holds a character that no program can be given", field=at)
    return value


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_name(value: object, at: str) -> str:
    text = read_text(value, at).strip()
    if not text:
        raise Invalid("must not be empty", field=at)
    return text


def read_argv(value: object, at: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise Invalid("must be a list: a program and its arguments", field=at)
    argv = tuple(read_text(word, f"{at}[{number}]") for number, word in enumerate(value))
    read_name(argv[0], f"{at}[0]")
    return argv


def read_env(value: object, at: str) -> dict[str, str]:
    return {env_name(name, at): read_text(text, f"{at}.{name}") for name, text in read_object(value, at).items()}


def env_name(name: str, at: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise Invalid(f"{name!r} is not the name of a variable", field=at)
    if name.startswith("ROTA_"):
        raise Invalid("names that begin with ROTA_ belong to Rota", field=f"{at}.{name}")
    return name


def read_count(value: object, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise Invalid("must be a whole number of at least 1", field=at)
    return value


def read_size(value: object, at: str) -> int:
    """Bytes, from a number or from `512MB` (thousands) or `512MiB` (1024s)."""
    if not isinstance(value, str):
        return read_count(value, at)
    match = _SIZE.fullmatch(value.strip()[:40])
    if match is None:
        raise Invalid("must be a size such as 512MB", field=at)
    number, unit, binary = match.groups()
    size = float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " ")
    return read_count(math.floor(size), at)


def read_exit_codes(value: object, at: str) -> frozenset[int]:
    if not isinstance(value, list | tuple) or not value or not all(_is_exit_code(code) for code in value):
        raise Invalid("must be a list of exit codes between 0 and 255", field=at)
    return frozenset(value)


def _is_exit_code(code: object) -> bool:
    return isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= 255


def read_absolute(value: object, at: str) -> str:
    if not PurePath(text := read_name(value, at)).is_absolute():
        raise Invalid("must be an absolute path", field=at)
    return text


def read_texts(value: object, at: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise Invalid("must be a list of texts", field=at)
    return tuple(read_text(each, f"{at}[{number}]") for number, each in enumerate(value))


def read_wait(value: object, at: str) -> timedelta:
    """Seconds, or a text such as 30s."""
    seconds = isinstance(value, int | float) and not isinstance(value, bool)
    wait = parse_duration(f"{value}s" if seconds else str(value), field=at)
    if wait > LONGEST_WAIT:
        raise Invalid("must be at most an hour", field=at)
    return wait
