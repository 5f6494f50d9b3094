"""The first start, which may come after somebody made a token or a link to sign in."""

from rota.db.pool import Connection, Database
from rota.model.caller import Caller
from rota.roster import agents
from rota.roster.first_start import settle_in


async def test_it_is_the_first_start_until_an_agent_was_saved_even_one_that_was_deleted(db: Database) -> None:
    async with db.transaction() as conn:
        made = await settle_in(conn, "default")
        again = await settle_in(conn, "default")
        assert (made.first, again.first) == (True, True)
        assert made.caller == again.caller
        await _save_and_delete_an_agent(conn, made.caller)
        assert not (await settle_in(conn, "default")).first
        assert (await settle_in(conn, "another")).first


async def _save_and_delete_an_agent(conn: Connection, caller: Caller) -> None:
    await agents.create(conn, caller, {"name": "Bee", "executor": "command", "config": {"argv": ["true"]}})
    await agents.delete(conn, caller, "bee")
