"""Several statements in one round trip, where the way there and back is most of what they cost.

PostgreSQL takes many statements in one text, but plans each of them anew. So each is prepared once under a name, and the
text only names it: `BEGIN; EXECUTE rota_1(…)`. Behind a pooler the next transaction may be another server's, which does
not know the name: there they are sent one after the other.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import sql
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from rota.db.pool import Connection

Step = str | tuple[str, Mapping[str, Any]]

_PARAMETER = re.compile(r"%\((\w+)\)s|%%")
_names: dict[str, tuple[str, list[str], str]] = {}
_numbers = count(1)
_prepared: WeakKeyDictionary[Connection, set[str] | None] = WeakKeyDictionary()  # None: a pooler stands in between


async def run(conn: Connection, *steps: Step) -> list[list[TupleRow]]:
    """The rows of each. A step is a word like BEGIN, or a statement with the values of its named parameters."""
    if conn not in _prepared:
        _prepared[conn] = set() if await _is_direct(conn) else None
    known = _prepared[conn]
    if known is None or len(steps) == 1:
        return [await _one(conn, step) for step in steps]
    try:
        return await _together(conn, known, steps)
    except InvalidSqlStatementName:  # psycopg forgets all that is prepared, also by others, when it rolls back
        known.clear()
        if steps[0] != "BEGIN":
            raise
        await conn.rollback()
    return await _together(conn, known, steps)


async def _together(conn: Connection, known: set[str], steps: Sequence[Step]) -> list[list[TupleRow]]:
    text = "; ".join([step if isinstance(step, str) else await _named(conn, known, *step) for step in steps])
    cursor = await conn.execute(text.encode(), prepare=False)
    found = []
    for _ in steps:
        found.append(await cursor.fetchall() if cursor.description else [])
        cursor.nextset()
    return found


async def _is_direct(conn: Connection) -> bool:
    """A pooler tells a number of its own for the server's process."""
    if conn.prepare_threshold is None:
        return False
    row = await (await conn.execute("SELECT pg_backend_pid()", prepare=False)).fetchone()
    return row == (conn.info.backend_pid,)


async def _one(conn: Connection, step: Step) -> list[TupleRow]:
    cursor = await (conn.execute(step.encode()) if isinstance(step, str) else conn.execute(step[0].encode(), step[1]))
    return await cursor.fetchall() if cursor.description else []


async def _named(conn: Connection, known: set[str], statement: str, values: Mapping[str, Any]) -> str:
    if statement not in _names:
        _names[statement] = (f"rota_{next(_numbers)}", *_positional(statement))
    name, order, text = _names[statement]
    if name not in known:
        await conn.execute(f"PREPARE {name} AS {text}".encode(), prepare=False)
        known.add(name)
    given = ", ".join(sql.Literal(values[each]).as_string(conn) for each in order)
    return f"EXECUTE {name}({given})"


def _positional(statement: str) -> tuple[list[str], str]:
    """The names of its parameters in order, and the statement with their numbers instead."""
    order = list(dict.fromkeys(found[1] for found in _PARAMETER.finditer(statement) if found[1]))
    return order, _PARAMETER.sub(lambda found: f"${order.index(found[1]) + 1}" if found[1] else "%", statement)


@asynccontextmanager
async def undone_if_it_fails(conn: Connection) -> AsyncIterator[None]:
    """Around steps that begin and end a transaction by themselves."""
    try:
        yield
    except BaseException:
        if conn.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
            await conn.rollback()
        raise
