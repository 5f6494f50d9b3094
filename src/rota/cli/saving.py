"""What is written to a file: never over another one, and never left half."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from rota.errors import Invalid

STANDARD_OUTPUT = Path("-")


def output(told: str) -> Callable[..., click.Command]:
    """The option that says where to."""
    kind = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
    return click.option("-o", "--output", type=kind, help=f"A file, which must not exist yet; `-`: stdout [{told}]")


@contextmanager
def saved_to(file: Path) -> Iterator[BinaryIO]:
    """A new file, or the standard output for `-`. What breaks off on the way takes the file along."""
    if file == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        return
    try:
        with _new(file) as written:
            try:
                yield written
            except BaseException:
                file.unlink(missing_ok=True)
                raise
    except OSError as failure:
        raise Invalid(f"{file} cannot be written: {failure.strerror}.", field="-o") from None


def _new(file: Path) -> BinaryIO:
    try:
        return file.open("xb")
    except FileExistsError:
        raise Invalid(f"{file} is there already, and is not written over. Name another with -o.", field="-o") from None
