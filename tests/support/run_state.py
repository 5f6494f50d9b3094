"""Reads and changes the state of runs. Tests name the tables of runs only here, so that a new layout changes one file.

Conditions are columns with values: `None` means that the column is null, `PRESENT` that it is not, and a list, set or tuple that it
has one of these values. `from_now(hours=1)` is an instant by the database's clock, when the statement runs.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final, TypeAlias
from uuid import UUID

from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

Run: TypeAlias = dict[str, Any]  # a row of the ledger, by column
RUNS: Final = "runs"
COLUMNS_OF_JSON: Final = {"input", "payload", "budget", "refused_tasks"}

# Many more waiting runs like the oldest one, in its session and outside of any lane.
COPY: Final = """
INSERT INTO runs (workspace_id, id, session_id, agent_id, grant_id, revision, status, source, priority, queue, pool, executor,
                  timeout, trace_id, ready_at)
SELECT r.workspace_id, gen_random_uuid(), r.session_id, r.agent_id, r.grant_id, 1, 'queued', 'schedule', 2, r.queue, r.pool,
       r.executor, r.timeout, 't', now() - n * interval '1 millisecond'
  FROM (SELECT * FROM runs ORDER BY id LIMIT 1) r, generate_series(1, %s) n
"""


class Present:
    """The condition that a column has a value."""


class FromNow(timedelta):
    """An instant so long after the database's clock, or before it."""


PRESENT: Final = Present()


def from_now(**span: float) -> FromNow:
    return FromNow(**span)


def running(**changes: Any) -> dict[str, Any]:
    """The columns of a run that worker `w` has claimed for an hour."""
    return {
        "status": "running", "attempt": 1, "worker_id": "w", "started_at": from_now(), "lease_until": from_now(hours=1), **changes
    }  # fmt: skip


def lost(**changes: Any) -> dict[str, Any]:
    """The columns of a run whose worker `gone` has let its lease end."""
    return {"status": "running", "attempt": 1, "worker_id": "gone", "lease_until": from_now(seconds=-1), **changes}


def cancel_requested() -> dict[str, Any]:
    """The columns of a run that a user asked to cancel, of which no worker was notified."""
    return {"cancel_requested_at": from_now(), "cancel_reason": "cancelled_by_user"}


def ended(status: str = "succeeded", **changes: Any) -> dict[str, Any]:
    """The columns that change when a run at work ends."""
    return {"status": status, "finished_at": from_now(), "lease_until": None, **changes}


# Statements


def select(where: Mapping[str, Any], suffix: str = "", *, columns: Sequence[str] = ("*",)) -> tuple[bytes, list[Any]]:
    """The statement that reads these runs, oldest first, and its parameters."""
    condition, values = _condition(where)
    return f"SELECT {', '.join(columns)} FROM {RUNS} WHERE {condition} ORDER BY id {suffix}".encode(), values


def update(where: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
    """The statement that changes these runs and returns them, and its parameters."""
    sets = ", ".join(f"{column} = {_placeholder(value)}" for column, value in changes.items())
    condition, values = _condition(where)
    given = [_adapt(column, value) for column, value in changes.items()]
    return f"UPDATE {RUNS} SET {sets} WHERE {condition} RETURNING *".encode(), [*given, *values]


def insert(columns: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
    values = ", ".join(map(_placeholder, columns.values()))
    given = [_adapt(column, value) for column, value in columns.items()]
    return f"INSERT INTO {RUNS} ({', '.join(columns)}) VALUES ({values}) RETURNING *".encode(), given


def update_each(changes: Mapping[UUID, Mapping[str, Any]]) -> tuple[bytes, list[Any]]:
    """The one statement that changes each of these runs in its own way, and its parameters."""
    sets, values = [], []
    for column in dict.fromkeys(column for each in changes.values() for column in each):
        cases = {run_id: each[column] for run_id, each in changes.items() if column in each}
        whens = " ".join(f"WHEN %s THEN {_placeholder(value)}" for value in cases.values())
        sets.append(f"{column} = CASE id {whens} ELSE {column} END")
        values += [part for run_id, value in cases.items() for part in (run_id, _adapt(column, value))]
    return f"UPDATE {RUNS} SET {', '.join(sets)} WHERE id = ANY(%s)".encode(), [*values, list(changes)]


def _condition(where: Mapping[str, Any]) -> tuple[str, list[Any]]:
    parts, values = ["true"], []
    for column, value in where.items():
        match value:
            case None:
                parts.append(f"{column} IS NULL")
            case Present():
                parts.append(f"{column} IS NOT NULL")
            case list() | set() | tuple() | frozenset():
                parts.append(f"{column} = ANY(%s)")
                values.append(list(value))
            case _:
                parts.append(f"{column} = {_placeholder(value)}")
                values.append(_adapt(column, value))
    return " AND ".join(parts), values


def _placeholder(value: Any) -> str:
    return "clock_timestamp() + %s" if isinstance(value, FromNow) else "%s"


def _adapt(column: str, value: Any) -> Any:
    if isinstance(value, FromNow):
        return timedelta(seconds=value.total_seconds())
    return Jsonb(value) if column in COLUMNS_OF_JSON and value is not None else value


# On a connection


async def find_runs(conn: AsyncConnection[Any], suffix: str = "", /, **where: Any) -> list[Run]:
    """The runs that fit, oldest first. `suffix` ends the statement, such as `FOR UPDATE`."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(*select(where, suffix))
        return await cursor.fetchall()


async def find_columns(conn: AsyncConnection[Any], *columns: str, **where: Any) -> list[Run]:
    """The runs that fit, with only these columns: others may have values that Python cannot read."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(*select(where, columns=columns))
        return await cursor.fetchall()


async def find_run(conn: AsyncConnection[Any], suffix: str = "", /, **where: Any) -> Run:
    """The one run that fits."""
    return only(await find_runs(conn, suffix, **where))


async def change_runs(conn: AsyncConnection[Any], where: Mapping[str, Any], changes: Mapping[str, Any]) -> list[Run]:
    """Change the runs that fit, and return them as they are then, oldest first."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(*update(where, changes))
        return sorted(await cursor.fetchall(), key=itemgetter("id"))


async def add_run(conn: AsyncConnection[Any], columns: Mapping[str, Any]) -> Run:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(*insert(columns))
        return only(await cursor.fetchall())


async def put_off(conn: AsyncConnection[Any], *, first: timedelta, apart: timedelta) -> None:
    """Let the waiting runs become due `apart` from each other, the first one after `first`."""
    for number, run in enumerate(await find_runs(conn, status="queued")):
        seconds = (first + number * apart).total_seconds()
        await change_runs(conn, {"id": run["id"]}, {"ready_at": from_now(seconds=seconds)})


async def copy_run(conn: AsyncConnection[Any], count: int) -> None:
    """Add many waiting runs like the oldest one."""
    await conn.execute(COPY, [count])


async def make_unreadable(conn: AsyncConnection[Any], run_id: UUID) -> None:
    """Store instants in a run that Python cannot read."""
    query = f"UPDATE {RUNS} SET missed_since = 'infinity', slot = '20000-1-1' WHERE id = %s"
    await conn.execute(query.encode(), [run_id])


async def add_trigger(conn: AsyncConnection[Any], function: str, *, summary: str) -> None:
    """Call a trigger function before each update that gives a run this summary."""
    condition = f"FOR EACH ROW WHEN (NEW.summary = '{summary}')"
    await conn.execute(
        f"CREATE TRIGGER {function} BEFORE UPDATE ON {RUNS} {condition} EXECUTE FUNCTION {function}()".encode()
    )


async def count_runs(conn: AsyncConnection[Any], /, **where: Any) -> int:
    condition, values = _condition(where)
    return int(await _value(conn, f"SELECT count(*) FROM {RUNS} WHERE {condition}", values))


async def count_writers(conn: AsyncConnection[Any]) -> int:
    """How many transactions wrote the rows as they are now."""
    return int(await _value(conn, f"SELECT count(DISTINCT xmin::text) FROM {RUNS}"))


async def pages_of_runs(conn: AsyncConnection[Any]) -> list[float]:
    """The page of the table in which each run stands, oldest first."""
    pages: list[float] = await _value(conn, f"SELECT array_agg((ctid::text::point)[0] ORDER BY id) FROM {RUNS}")
    return pages


async def _value(conn: AsyncConnection[Any], query: str, values: Sequence[Any] = ()) -> Any:
    row = await (await conn.execute(query.encode(), values)).fetchone()
    assert row
    return row[0]


async def lock_table(conn: AsyncConnection[Any], mode: str) -> None:
    """Hold a lock on all runs until the transaction ends, such as `SHARE`, which lets nothing be written."""
    await conn.execute(f"LOCK TABLE {RUNS} IN {mode} MODE".encode())


def find_runs_now(conn: Connection[Any], /, **where: Any) -> list[Run]:
    """The same for a test that is no coroutine."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(*select(where)).fetchall()


def only(runs: Sequence[Run]) -> Run:
    assert len(runs) == 1, f"{len(runs)} runs: {runs}"
    return runs[0]


async def change_each_run(conn: AsyncConnection[Any], changes: Mapping[UUID, Mapping[str, Any]]) -> None:
    """Change several runs in one statement, each in its own way."""
    await conn.execute(*update_each(changes))


async def delete_run(conn: AsyncConnection[Any], run_id: UUID) -> None:
    """Delete a run that has no events any more."""
    await conn.execute(f"DELETE FROM {RUNS} WHERE id = %s".encode(), [run_id])


def find_checks(conn: Connection[Any]) -> tuple[str, ...]:
    """The expressions of the table's check constraints."""
    query = "SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
    return tuple(expression for (expression,) in conn.execute(query, [RUNS]))
