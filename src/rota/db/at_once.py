"""Several statements in one round trip, where the way there and back is most of what they cost.

They are sent one behind the other before the first answer is read, as libpq's pipeline mode allows; psycopg's own goes
through the event loop for each of them. Each is prepared once under a name. Behind a pooler the next transaction may be
another server's, which does not know the name: there they are sent one after the other.
"""

import re
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import Error, InvalidSqlStatementName, OperationalError, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow
from psycopg.waiting import Ready, Wait

from rota.db.arrays import Array
from rota.db.pool import Connection

Step = str | tuple[str, Mapping[str, Any]]
Send = Callable[[], None]

_PARAMETER = re.compile(r"%\((\w+)\)s|%%")
_numbers = count(1)
_ANSWERS = {TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR}
_prepared: WeakKeyDictionary[Connection, "Names | None"] = WeakKeyDictionary()  # None: a pooler stands in between


class Names(dict[str, str]):
    """Of statements that are prepared; none once psycopg has rolled back, which forgets also those of others."""

    rollbacks = 0


async def run(conn: Connection, *steps: Step) -> list[list[TupleRow]]:
    """The rows of each. A step is a word like BEGIN, or a statement with the values of its named parameters."""
    if conn not in _prepared:
        _prepared[conn] = Names() if await conn.is_direct() else None
    known = _prepared[conn]
    if known is None or len(steps) == 1:
        return [await _one(conn, step) for step in steps]
    if known.rollbacks != conn.rollbacks:
        known.clear()
        known.rollbacks = conn.rollbacks
    try:
        return await _together(conn, known, steps)
    except InvalidSqlStatementName:  # somebody forgot them in another way
        known.clear()
        if steps[0] != "BEGIN":
            raise
        await conn.rollback()
    return await _together(conn, known, steps)


async def _together(conn: Connection, known: Names, steps: Sequence[Step]) -> list[list[TupleRow]]:
    new = Names()
    sends = [send for step in steps for send in _sends(conn, ChainMap(new, known), step)]
    async with conn.lock:
        results = await conn.wait(_exchange(conn.pgconn, [send for _, send in sends]))
    if failed := next((each for each in results if each.status == ExecStatus.FATAL_ERROR), None):
        raise conn.note(error_from_result(failed, encoding=conn.info.encoding))
    known |= new
    return [_rows(conn, result) for (shows, _), result in zip(sends, results, strict=True) if shows]


def _sends(conn: Connection, known: MutableMapping[str, str], step: Step) -> Iterator[tuple[bool, Send]]:
    """Sends the statement, and before it its preparation where that is new: which of them shows rows. Parameters have the
    types that the statement says they have: so values go as text, but for arrays, which are written as PostgreSQL does."""
    if isinstance(step, str):
        yield True, partial(conn.pgconn.send_query_params, step.encode(), None)
        return
    statement, values = step
    order, text = _positional(statement)
    if statement not in known:
        known[statement] = f"rota_{next(_numbers)}"  # never the same: one whose answer was lost may be there already
        yield False, partial(conn.pgconn.send_prepare, known[statement].encode(), text.encode())
    given = [values[each] for each in order]
    formats = [PyFormat.BINARY if isinstance(each, Array) else PyFormat.TEXT for each in given]
    dumped, sent_as = Transformer(conn).dump_sequence(given, formats), [PyFormat.as_pq(each) for each in formats]
    yield True, partial(conn.pgconn.send_query_prepared, known[statement].encode(), dumped, sent_as)


def _rows(conn: Connection, result: PGresult) -> list[TupleRow]:
    transformer = Transformer(conn)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


def _exchange(pgconn: PGconn, sends: Sequence[Send]) -> PQGen[list[PGresult]]:
    """Send all, then read all. psycopg waits where this yields, and drives it to its end also when it is cancelled."""
    pgconn.enter_pipeline_mode()
    for send in sends:
        send()
    pgconn.pipeline_sync()
    while pgconn.flush():
        ready = yield Wait.RW
        if ready is None or ready & Ready.R:  # the server may wait for us to read before it reads on
            pgconn.consume_input()
    results: list[PGresult] = []
    while not results or results[-1].status != ExecStatus.PIPELINE_SYNC:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        if result := pgconn.get_result():  # None stands between two, and where nothing more comes
            results.append(result)
        elif pgconn.status == ConnStatus.BAD:
            raise _lost(results)
    pgconn.exit_pipeline_mode()
    return results[:-1]


def _lost(results: Sequence[PGresult]) -> Error:
    """The server may have said why, before it hung up."""
    told = next((each for each in results if each.status == ExecStatus.FATAL_ERROR), None)
    return error_from_result(told) if told else OperationalError("the connection is lost")


async def _one(conn: Connection, step: Step) -> list[TupleRow]:
    cursor = await (conn.execute(step.encode()) if isinstance(step, str) else conn.execute(step[0].encode(), step[1]))
    if step == "BEGIN":
        await conn.limit_transaction()
    return await cursor.fetchall() if cursor.description else []


@cache
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
        if conn.info.transaction_status in _ANSWERS:
            await conn.rollback()  # also where its end failed: nobody is to be woken by it later
        raise


@asynccontextmanager
async def transaction(conn: Connection, *steps: Step) -> AsyncIterator[list[list[TupleRow]]]:
    """One that begins with these, in one round trip; their rows. It may have been ended by `commit`."""
    async with undone_if_it_fails(conn):
        _, *found = await run(conn, "BEGIN", *steps)
        yield found
        if conn.info.transaction_status != TransactionStatus.IDLE:
            await conn.commit()


async def commit(conn: Connection, *steps: Step) -> None:
    """End it with these, in one round trip, and wake who is to be woken."""
    await run(conn, *steps, "COMMIT")
    await conn.tell()
