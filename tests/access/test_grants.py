"""Grants: narrow, held by one person, and over when they say so."""

from datetime import timedelta

from house import House

from rota.access import grants
from rota.model.ids import AgentId, new_id


async def test_a_grant_is_for_one_agent_and_lasts_as_long_as_was_said(house: House) -> None:
    agent_id = AgentId(new_id())
    async with house.db.transaction() as conn:
        workspace_id, user_id = house.caller.workspace_id, house.caller.user_id
        lasting = await grants.make(conn, workspace_id, user_id, agent_id)
        short = await grants.make(conn, workspace_id, user_id, agent_id, lasts=grants.SHORT)
    assert await house.value("SELECT scopes FROM grants WHERE id = %s", lasting) == [f"agent:run:{agent_id}"]
    assert await house.value("SELECT expires_at FROM grants WHERE id = %s", lasting) is None
    assert await house.value("SELECT expires_at - created_at FROM grants WHERE id = %s", short) == timedelta(hours=24)


async def test_a_grant_has_a_holder_until_it_is_revoked_or_expires_and_is_revoked_once(house: House) -> None:
    workspace_id, user_id = house.caller.workspace_id, house.caller.user_id
    async with house.db.transaction() as conn:
        revoked, expired = [await grants.make(conn, workspace_id, user_id, AgentId(new_id())) for _ in range(2)]
        assert await grants.holder(conn, workspace_id, revoked) == user_id
        await grants.revoke(conn, workspace_id, revoked)
        await conn.execute("UPDATE grants SET revoked_at = revoked_at - interval '1 day' WHERE id = %s", [revoked])
        await grants.revoke(conn, workspace_id, revoked)
        await conn.execute("UPDATE grants SET expires_at = now() WHERE id = %s", [expired])
        assert await grants.holder(conn, workspace_id, revoked) is None
        assert await grants.holder(conn, workspace_id, expired) is None
    assert await house.value("SELECT now() - revoked_at > interval '1 hour' FROM grants WHERE id = %s", revoked)
