"""Reads and changes the state of runs. Tests name the tables of runs only here, so that a new layout changes one file.

Conditions are columns with values: `None` means that the column is null, `PRESENT` that it is not, and a list, set or tuple that it
has one of these values. `from_now(hours=1)` is an instant by the database's clock, when the statement runs.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final, TypeAlias

from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

Run: TypeAlias = dict[str, Any]  # a row of the ledger, by column
RUNS: Final = "runs"
COLUMNS_OF_JSON: Final = {"input", "payload", "budget", "refused_tasks"}


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


def ended(status: str = "succeeded", **changes: Any) -> dict[str, Any]:
    """The columns that change when a run at work ends."""
    return {"status": status, "finished_at": from_now(), "lease_until": None, **changes}


# Statements


def select(where: Mapping[str, Any], suffix: str = "") -> tuple[bytes, list[Any]]:
    """The statement that reads these runs, oldest first, and its parameters."""
    condition, values = _condition(where)
    return f"SELECT * FROM {RUNS} WHERE {condition} ORDER BY id {suffix}".encode(), values


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
