"""Secrets that stand for a person: only their hash is kept, each is worth what it says and no longer."""

from datetime import timedelta
from typing import Any

import pytest

from rota.access import signing_in
from rota.access.signing_in import (
    LOGIN_LASTS,
    add_token,
    caller_by_login,
    caller_by_token,
    create_link,
    note_use,
    sign_in,
)
from rota.access.tokens import create_as_operator
from rota.db import people
from rota.errors import NotFound, Unauthenticated
from rota.model.caller import Level
from rota.model.ids import UserId, new_id
from rota.roster.first_start import settle_in
from support.house import House


async def token(house: House, workspace: str = "default", **given: Any) -> str:
    async with house.db.transaction() as conn:
        return await create_as_operator(conn, workspace, "test", **given)


async def token_of(house: House, user_id: UserId) -> str:
    async with house.db.transaction() as conn:
        _, secret = await add_token(conn, house.caller.workspace_id, user_id, "test")
        return secret


async def by_token(house: House, secret: str, workspace: str = "default") -> Any:
    async with house.db.transaction() as conn:
        return await caller_by_token(conn, workspace, secret)


async def by_login(house: House, secret: str, workspace: str = "default") -> Any:
    async with house.db.transaction() as conn:
        return await caller_by_login(conn, workspace, secret)


async def person(house: House, level: str) -> UserId:
    user_id = UserId(new_id())
    async with house.db.transaction() as conn:
        await people.add_user(conn, user_id, f"A {level}")
        await people.add_member(conn, house.caller.workspace_id, user_id, level)
    return user_id


async def test_a_token_stands_for_its_user_with_their_level_as_it_is_now(house: House) -> None:
    user_id = await person(house, "member")
    secret = await token_of(house, user_id)
    assert secret.startswith("rota_")
    caller = await by_token(house, secret)
    assert (caller.user_id, caller.level, caller.workspace_slug) == (user_id, Level.MEMBER, "default")
    await house.execute("UPDATE members SET level = 'viewer' WHERE user_id = %s", user_id)
    assert (await by_token(house, secret)).level == Level.VIEWER


async def test_without_a_user_a_token_is_the_first_admins(house: House) -> None:
    await person(house, "admin")
    assert (await by_token(house, await token(house))).user_id == house.caller.user_id


async def test_no_secret_is_kept_but_its_hash(house: House) -> None:
    secrets = [await token(house)]
    async with house.db.transaction() as conn:
        link = await create_link(conn, house.caller.user_id)
        secrets += [link, await sign_in(conn, link), await create_link(conn, house.caller.user_id)]
    for table in ("tokens", "sign_in_links", "logins"):
        text = await house.value(f"SELECT string_agg(t::text, ' ') FROM {table} t")
        assert text
        assert not any(secret in text for secret in secrets)


async def test_a_token_that_was_revoked_or_has_expired_is_worth_nothing(house: House) -> None:
    for end in ("revoked_at = now()", "expires_at = now()", "expires_at = now() - interval '1 day'"):
        secret = await token(house)
        assert await by_token(house, secret)
        await house.execute(f"UPDATE tokens SET {end}")
        with pytest.raises(Unauthenticated):
            await by_token(house, secret)


async def test_a_token_lasts_as_long_as_was_said(house: House) -> None:
    await token(house, lasts=timedelta(hours=1))
    assert await house.value("SELECT expires_at - created_at FROM tokens") == timedelta(hours=1)
    await house.execute("DELETE FROM tokens")
    await token(house)
    assert await house.value("SELECT count(*) FROM tokens WHERE expires_at IS NULL") == 1


@pytest.mark.parametrize(
    "change", ["DELETE FROM members WHERE user_id = %s", "UPDATE users SET disabled_at = now() WHERE id = %s"]
)
async def test_somebody_who_left_is_let_in_no_more(house: House, change: str) -> None:
    user_id = await person(house, "member")
    secret = await token_of(house, user_id)
    async with house.db.transaction() as conn:
        login = await sign_in(conn, await create_link(conn, user_id))
        await conn.execute("ALTER TABLE tokens DROP CONSTRAINT tokens_workspace_id_user_id_fkey")
        await conn.execute(change, [user_id])
    with pytest.raises((NotFound, Unauthenticated)):
        await by_token(house, secret)
    with pytest.raises((NotFound, Unauthenticated)):
        await by_login(house, login)


async def test_another_workspaces_token_and_a_workspace_that_is_not_there_are_told_the_same(house: House) -> None:
    async with house.db.transaction() as conn:
        await settle_in(conn, "other")
    foreign = await token(house, "other")
    told = []
    for workspace in ("default", "nowhere", str(house.caller.workspace_id)):
        with pytest.raises(NotFound) as refused:
            await by_token(house, foreign, workspace)
        told.append((refused.value.message, refused.value.code, refused.value.field))
    assert len(set(told)) == 1


async def test_a_token_is_for_one_workspace_also_where_its_user_belongs_to_several(house: House) -> None:
    async with house.db.transaction() as conn:
        other = (await settle_in(conn, "other")).caller
        await people.add_member(conn, other.workspace_id, house.caller.user_id, "viewer")
    secret = await token(house)
    with pytest.raises(NotFound):
        await by_token(house, secret, "other")
    async with house.db.transaction() as conn:
        login = await sign_in(conn, await create_link(conn, house.caller.user_id))
    assert (await by_login(house, login, "other")).level == Level.VIEWER
    assert (await by_login(house, login)).level == Level.ADMIN


async def test_a_workspace_is_found_by_its_slug_and_by_its_id(house: House) -> None:
    caller = await by_token(house, await token(house), str(house.caller.workspace_id))
    assert caller.workspace_slug == "default"


async def test_a_token_for_a_workspace_that_is_not_there_is_refused(house: House) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        await token(house, "nowhere")


async def test_what_is_no_token_of_ours_is_refused(house: House) -> None:
    for secret in ("", "rota_", "rota_x", "rota_run_", "x" * 10_000, "ü", "rota_run_" + "0" * 32):
        with pytest.raises(Unauthenticated):
            await by_token(house, secret)


async def test_using_a_token_is_noted_once_a_minute(house: House) -> None:
    secret = await token(house)

    async def use() -> None:
        async with house.db.transaction() as conn:
            await note_use(conn, await caller_by_token(conn, "default", secret))

    await use()
    first = await house.value("SELECT last_used_at FROM tokens")
    await use()
    assert await house.value("SELECT last_used_at FROM tokens") == first is not None
    await house.execute("UPDATE tokens SET last_used_at = now() - interval '61 seconds'")
    await use()
    assert await house.value("SELECT last_used_at > %s FROM tokens", first)


async def test_a_request_does_not_wait_for_another_one_that_notes_the_use_of_the_same_token(house: House) -> None:
    secret = await token(house)
    async with house.db.transaction() as slow:
        await note_use(slow, await caller_by_token(slow, "default", secret))
        async with house.db.transaction() as quick:
            await quick.execute("SET LOCAL lock_timeout = '1s'")
            await note_use(quick, await caller_by_token(quick, "default", secret))


# Links and logins ---------------------------------------------------------------------------------------------------


async def test_a_link_works_once(house: House) -> None:
    async with house.db.transaction() as conn:
        link = await create_link(conn, house.caller.user_id)
        login = await sign_in(conn, link)
        assert (await caller_by_login(conn, "default", login)).user_id == house.caller.user_id
        with pytest.raises(Unauthenticated) as refused:
            await sign_in(conn, link)
    assert refused.value.code == "link_used"


async def test_a_new_link_ends_the_one_before_but_no_login(house: House) -> None:
    async with house.db.transaction() as conn:
        login = await sign_in(conn, await create_link(conn, house.caller.user_id))
        earlier = await create_link(conn, house.caller.user_id)
        await create_link(conn, house.caller.user_id)
        with pytest.raises(Unauthenticated):
            await sign_in(conn, earlier)
        assert await caller_by_login(conn, "default", login)


async def test_a_link_that_is_too_old_is_refused(house: House) -> None:
    async with house.db.transaction() as conn:
        link = await create_link(conn, house.caller.user_id)
        await conn.execute("UPDATE sign_in_links SET expires_at = now()")
        with pytest.raises(Unauthenticated):
            await sign_in(conn, link)


async def test_a_login_ends_by_itself_and_by_signing_out(house: House) -> None:
    async with house.db.transaction() as conn:
        login = await sign_in(conn, await create_link(conn, house.caller.user_id))
        row = await (await conn.execute("SELECT expires_at - now() FROM logins")).fetchone()
        assert row == (LOGIN_LASTS,)
        await conn.execute("UPDATE logins SET expires_at = now()")
        with pytest.raises(Unauthenticated):
            await caller_by_login(conn, "default", login)
        again = await sign_in(conn, await create_link(conn, house.caller.user_id))
        await people.end_login(conn, signing_in.hashed(again))
        with pytest.raises(Unauthenticated):
            await caller_by_login(conn, "default", again)


async def test_a_login_of_somebody_who_is_switched_off_is_worth_nothing_also_without_a_workspace(house: House) -> None:
    async with house.db.transaction() as conn:
        login = await sign_in(conn, await create_link(conn, house.caller.user_id))
        assert await signing_in.user_by_login(conn, login) == house.caller.user_id
        await people.switch(conn, house.caller.user_id, off=True)
        with pytest.raises(Unauthenticated):
            await signing_in.user_by_login(conn, login)
