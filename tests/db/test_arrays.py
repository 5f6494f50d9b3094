"""Arrays as PostgreSQL writes them arrive as what they are."""

from typing import Any
from uuid import UUID

import pytest

from rota.db.arrays import Integers, Texts, Uuids
from rota.db.pool import Database

LEAST, MOST = UUID(int=0), UUID(int=2**128 - 1)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("kind", "array", "values"),
    [
        ("uuid", Uuids, [LEAST, MOST, UUID("01999999-0000-7000-8000-000000000001")]),
        ("integer", Integers, [0, -1, 2**31 - 1, -(2**31)]),
        ("text", Texts, ["", None, "it's “so”, {100 %}\n", "zwölf 🙂", "NULL"]),
    ],
)
async def test_all_of_them_arrive(db: Database, kind: str, array: Any, values: list[Any], binary: bool) -> None:
    async with db.connection() as conn:
        for given in (values, [], values[:1]):
            cursor = await conn.execute(f"SELECT %(a)s::{kind}[]".encode(), {"a": array.of(given)}, binary=binary)
            assert await cursor.fetchone() == (given,)
