"""A fleet on a database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.house import House


@pytest.fixture
async def fleet(database_url: str, house: House, tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(database_url, house, tmp_path)
    yield made
    made.close()
    await made.dismiss_judge()
