"""What kinds that run programs on the worker's machine share: limits, words, functions, and what is not there."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rota.errors import Invalid
from rota.model.acp_presets import installing
from rota.model.config_fields import Fields, read_count, read_name, read_size, read_text

Which = Callable[[str], str | None]
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process may use. Sizes are in bytes."""

    memory: int | None = None
    cpu_seconds: int | None = None
    open_files: int | None = None
    file_size: int | None = None
    processes: int | None = None  # of the whole run; needs the sandbox


def read_limits(value: object, at: str) -> Limits:
    fields = Fields(value, "memory cpu_seconds open_files file_size processes", at)
    return Limits(
        memory=fields.read("memory", read_size),
        cpu_seconds=fields.read("cpu_seconds", read_count),
        open_files=fields.read("open_files", read_count),
        file_size=fields.read("file_size", read_size),
        processes=fields.read("processes", read_count),
    )


def read_words(value: object, at: str) -> tuple[str, ...]:
    try:
        words = shlex.split(read_text(value, at))
    except ValueError as mistake:
        raise Invalid(f"cannot be split into words: {mistake}", field=at) from mistake
    if not words or not words[0].strip():
        raise Invalid("names no program", field=at)
    return tuple(words)


def read_function(value: object, at: str, like: str = "function") -> str:
    text = read_name(value, at)
    module, _, name = text.partition(":")
    if not _DOTTED.fullmatch(module) or not _DOTTED.fullmatch(name):
        raise Invalid(f"must look like module:{like}", field=at)
    return text


def missing_program(
    argv: Sequence[str], env: Mapping[str, str], which: Which | None, *, named: str = "argv"
) -> list[str]:
    program = argv[0]
    in_the_session = "/" in program and not PurePath(program).is_absolute()
    if which is None or in_the_session or "PATH" in env or which(program):
        return []
    return [f"config.{named}: the program {program!r} was not found on this machine{how_to_install(program)}"]


def how_to_install(program: str) -> str:
    """The end of a sentence about a program that is not there."""
    install = installing(program)
    return f"; to install it: {install}" if install else ""
