"""What a first start finds, with and without the libraries of the kinds that need some."""

import pytest

from rota import starters
from support.house import House

KINDS = "SELECT string_agg(DISTINCT executor, ' ' ORDER BY executor) FROM agents"


@pytest.mark.parametrize(
    ("found", "kinds", "automations"), [(None, "command python", 4), (object(), "acp command langgraph python", 6)]
)
async def test_a_kind_has_its_starter_where_its_library_is(
    house: House, monkeypatch: pytest.MonkeyPatch, found: object, kinds: str, automations: int
) -> None:
    await house.execute("DELETE FROM agents")
    monkeypatch.setattr(starters, "find_spec", lambda _: found)
    async with house.db.transaction() as conn:
        await starters.install(conn, house.caller)
    assert await house.value(KINDS) == kinds
    assert await house.value("SELECT count(*) FROM automations") == automations
