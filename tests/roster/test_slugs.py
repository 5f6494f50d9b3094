"""A name that others have gets the first number that is free, however many they are."""

from typing import Any
from unittest.mock import AsyncMock

import psycopg
import pytest

from rota.roster import agents, automations, slugs
from support.house import House

COLUMNS = """
SELECT string_agg(column_name, ', ') FROM information_schema.columns
 WHERE table_schema = current_schema() AND table_name = %s AND column_name NOT IN ('id', 'slug')
"""
NAMESAKES = """
INSERT INTO {table} ({columns}, id, slug)
SELECT {columns}, gen_random_uuid(), 'errand-' || n FROM {table}, generate_series(3, 600) n WHERE slug = 'errand'
"""


async def save(house: House, table: str) -> str:
    """Save one more "Errand"; its slug."""
    async with house.db.transaction() as conn:
        if table == "agents":
            form = {"name": "Errand", "executor": "command", "config": {"argv": ["true"]}}
            agent, _ = await agents.create(conn, house.caller, form)
            return str(agent["slug"])
        given = {"name": "Errand", "agent": "worker-bee", "prompt": "Do it."}
        automation_id = await automations.create(conn, house.caller, given, [])
        return str((await automations.find(conn, house.caller, str(automation_id)))["slug"])


@pytest.mark.parametrize("table", ["agents", "automations"])
async def test_a_name_that_hundreds_have_costs_a_few_statements_more(
    house: House, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = psycopg.AsyncCursor.execute

    async def counted(self: Any, query: Any, *given: Any, **options: Any) -> Any:
        asked.append(query)
        return await real(self, query, *given, **options)

    monkeypatch.setattr("psycopg.AsyncCursor.execute", counted)
    assert await save(house, table) == "errand"
    few = len(asked)
    columns = await house.value(COLUMNS, table)
    await house.execute(NAMESAKES.format(table=table, columns=columns))
    assert await save(house, table) == "errand-2"
    asked.clear()
    assert await save(house, table) == "errand-601"
    assert len(asked) <= few + 6


async def test_the_first_number_that_is_free_is_given(house: House) -> None:
    assert [await save(house, "automations") for _ in range(30)][-1] == "errand-30"
    for gone in ("errand-29", "errand-11", "errand-2", "errand"):
        await house.execute("UPDATE automations SET deleted_at = now() WHERE slug = %s", gone)
        assert await save(house, "automations") == gone


async def test_a_long_name_is_cut_for_its_number() -> None:
    long = "a" * slugs.LONGEST
    taken = {slugs.numbered(long, number) for number in range(1, 100)}
    found = await slugs.free(AsyncMock(side_effect=taken.intersection), None, long, kind="one")
    assert found == "a" * 59 + "-100"
