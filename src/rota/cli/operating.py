"""What commands for the operator share: they work at the database itself, whether or not a Rota is running."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click
import psycopg

from rota.cli import options
from rota.daemon import address, database
from rota.db.pool import Connection
from rota.errors import Broken
from rota.settings import Settings

# Without a handler Python prints the bare name of a log event among the output of a command.
logging.getLogger("rota").addHandler(logging.NullHandler())

T = TypeVar("T")


def in_transaction(settings: Settings, do: Callable[[Connection], Awaitable[T]]) -> T:
    async def done() -> T:
        async with database(settings) as (db, _), db.transaction() as conn:
            return await do(conn)

    with refused_by_database("nothing was changed"):
        return asyncio.run(done())


@contextmanager
def refused_by_database(outcome: str) -> Iterator[None]:
    """Turn an error of the database into a line for people, which also says what was done."""
    try:
        yield
    except psycopg.Error as failure:
        raise Broken(f"The database did not do it, and {outcome}: {reason(failure)}") from failure


@contextmanager
def stoppable() -> Iterator[None]:
    """Have SIGTERM end a long command as Ctrl-C does, so that it removes what is incomplete."""
    if threading.current_thread() is not threading.main_thread():  # only tests run a command elsewhere
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def as_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on the standard error; the function moves it on."""
    with click.progressbar(label=label, length=total, file=sys.stderr) as bar:
        yield bar.update


def link(settings: Settings, secret: str, *, chosen: bool) -> str:
    """A link to sign in with, to where the `rota up` of this home answers unless an address was chosen: at the usual
    one, somebody else's program would be given the secret."""
    up = None if chosen or settings.url else options.up_at(settings.home)
    return f"{up or address(settings, None)}/sign-in?token={secret}"


def reason(failure: psycopg.Error) -> str:
    """What the database says, in one line."""
    return " ".join(str(failure).split()) or type(failure).__name__
