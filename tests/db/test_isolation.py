"""Row-level security: no table with a workspace is open, the API's role sees one workspace, and the house sees all."""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from rota.access.vault import Vault
from rota.daemon import Ready, check_row_level_security
from rota.db import isolation, people
from rota.db import migrate as chain
from rota.db.listener import Listener, Wakes
from rota.db.migrate import Migration, migrate
from rota.db.pool import Connection, Database
from rota.errors import CannotStart
from rota.model.ids import UserId, WorkspaceId, new_id
from rota.roster.first_start import settle_in
from rota.settings import Settings
from support.databases import owned_database
from support.house import House

WITH_A_WORKSPACE = """
SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'workspace_id'
"""

GUARDED = """
SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity, p.cmd, p.qual, p.with_check
  FROM pg_class c LEFT JOIN pg_policies p ON p.tablename = c.relname AND p.policyname = 'workspace'
 WHERE c.relname = ANY(%s) AND c.relnamespace = 'public'::regnamespace
"""

OURS = (
    "(workspace_id = ( SELECT (NULLIF(current_setting('rota.workspace'::text, true), ''::text))::uuid AS \"nullif\"))"
)


async def tables(conn: AsyncConnection) -> list[str]:
    return sorted(name for (name,) in await (await conn.execute(WITH_A_WORKSPACE)).fetchall())


async def neighbours(db: Database) -> WorkspaceId:
    """Another workspace with an admin of its own."""
    async with db.transaction() as conn:
        return (await settle_in(conn, "neighbours")).caller.workspace_id


async def test_every_table_with_a_workspace_is_guarded_whoever_made_it(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new table needs nothing but its column."""
    before = chain.migrations()
    script = "CREATE TABLE odds (workspace_id uuid, id uuid, PRIMARY KEY (workspace_id, id));"
    monkeypatch.setattr(chain, "migrations", lambda: [*before, Migration(before[-1].number + 1, "add_odds", script)])
    await migrate(empty_database_url)
    async with await AsyncConnection.connect(empty_database_url) as conn:
        names = await tables(conn)
        found = await (await conn.execute(GUARDED, [names])).fetchall()
        [role] = await (await conn.execute(isolation.ROLE)).fetchone() or [None]
        granted = await conn.execute("SELECT has_table_privilege(%s, 'odds', 'SELECT, INSERT, UPDATE, DELETE')", [role])
        assert await granted.fetchone() == (True,)
    assert "odds" in names
    assert sorted(found) == [(name, True, "ALL", OURS, OURS) for name in names]


async def test_a_column_that_an_upgrade_adds_to_people_is_shown_and_a_secret_is_not(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People are granted by column, so a table that was granted before is not all."""
    before = chain.migrations()
    script = "ALTER TABLE users ADD COLUMN nickname text, ADD COLUMN password_hint text;"
    monkeypatch.setattr(chain, "migrations", lambda: [*before, Migration(before[-1].number + 1, "add_names", script)])
    await migrate(database_url)
    readable = "SELECT has_column_privilege(%(role)s, 'users', %(column)s, 'SELECT')"
    async with await AsyncConnection.connect(database_url) as conn:
        [role] = await (await conn.execute(isolation.ROLE)).fetchone() or [None]
        for column, shown in (("nickname", True), ("password_hint", False)):
            assert await (await conn.execute(readable, {"role": role, "column": column})).fetchone() == (shown,), column


async def test_who_is_confined_sees_and_touches_one_workspace_whatever_is_asked(house: House) -> None:
    theirs = await neighbours(house.db)
    ours = house.caller.workspace_id
    async with isolation.in_workspace(house.db, ours) as conn:
        for name in await tables(conn):
            seen = await conn.execute(f"SELECT count(*) FROM {name} WHERE workspace_id IS DISTINCT FROM %s", [ours])
            assert await seen.fetchone() == (0,), name
        assert await (await conn.execute("SELECT id FROM workspaces")).fetchall() == [(ours,)]
        assert (
            await conn.execute("UPDATE members SET level = 'viewer' WHERE workspace_id = %s", [theirs])
        ).rowcount == 0
        assert (await conn.execute("DELETE FROM accounts WHERE workspace_id = %s", [theirs])).rowcount == 0
    assert await house.value("SELECT count(DISTINCT workspace_id) FROM members WHERE level = 'admin'") == 2


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO accounts (workspace_id, id, name) VALUES (%(theirs)s, gen_random_uuid(), 'Mine')",
        "UPDATE accounts SET workspace_id = %(theirs)s",
        "UPDATE workspaces SET id = %(theirs)s",
    ],
)
async def test_nothing_can_be_put_into_another_workspace(house: House, change: str) -> None:
    theirs = await neighbours(house.db)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        async with isolation.in_workspace(house.db, house.caller.workspace_id) as conn:
            await conn.execute(change, {"theirs": theirs})


@pytest.mark.parametrize(
    "secret", ["SELECT * FROM logins", "SELECT * FROM sign_in_links", "SELECT password_hash FROM users", "TABLE users"]
)
async def test_who_is_confined_reads_no_secret_of_a_person(house: House, secret: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
        async with isolation.in_workspace(house.db, house.caller.workspace_id) as conn:
            await conn.execute(secret)


async def test_without_a_workspace_the_role_sees_nothing(house: House) -> None:
    async with house.db.transaction() as conn:
        role = await isolation.role_of(house.db, conn)
        await conn.execute(isolation.RESUME, {"role": role})
        assert await (await conn.execute("SELECT * FROM members")).fetchall() == []
        assert await (await conn.execute("SELECT * FROM workspaces")).fetchall() == []


async def test_the_confinement_ends_with_its_transaction_so_that_poolers_may_share_connections(house: House) -> None:
    db = Database(house.db.url, size=2)
    await db.open()
    state = "SELECT current_user, current_setting('rota.workspace', true)"
    async with db.connection() as conn:
        before = await (await conn.execute(state)).fetchone()
        async with conn.transaction():
            role = await isolation.confine(db, conn, house.caller.workspace_id)
            assert await (await conn.execute(state)).fetchone() == (role, str(house.caller.workspace_id))
        after = await (await conn.execute(state)).fetchone()
    await db.close()
    assert before
    assert after == (before[0], ""), "an empty setting is no workspace"
    assert role not in {None, before[0]}


async def test_to_be_confined_takes_no_round_trip_of_its_own(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    trips, wait = 0, Connection.wait

    async def counted(conn: Connection, *args: Any, **options: Any) -> Any:
        nonlocal trips
        trips += 1
        return await wait(conn, *args, **options)

    monkeypatch.setattr(Connection, "wait", counted)
    for _ in range(6):  # a connection's first finds out what is there
        trips = 0
        async with isolation.in_workspace(house.db, house.caller.workspace_id) as conn:
            assert await (await conn.execute("SELECT id FROM workspaces")).fetchall() == [(house.caller.workspace_id,)]
    assert trips == 3  # to begin and be confined, to look, to end


async def test_what_fails_within_a_workspace_is_undone_and_wakes_nobody(house: House) -> None:
    woken: list[str] = []
    house.db.waker = lambda topic, _: woken.append(topic)
    for fails in (True, False):
        with contextlib.suppress(KeyError):
            async with isolation.in_workspace(house.db, house.caller.workspace_id) as conn:
                await conn.execute("UPDATE workspaces SET name = name || '!'")
                conn.wake("news")
                if fails:
                    raise KeyError
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert await house.value("SELECT count(*) FROM workspaces WHERE name LIKE '%%!' AND name NOT LIKE '%%!!'") == 1
    assert woken == ["news"]


async def test_a_look_beyond_the_workspace_is_only_as_long_as_it_says(house: House) -> None:
    await neighbours(house.db)
    count = "SELECT count(*) FROM workspaces"
    async with house.db.transaction() as conn:
        role = await isolation.confine(house.db, conn, house.caller.workspace_id)
        async with isolation.lifted(conn, role):
            assert await (await conn.execute(count)).fetchone() == (2,)
        assert await (await conn.execute(count)).fetchone() == (1,)


# Owners that are no superusers --------------------------------------------------------------------------------------


@pytest.fixture
def owned(server_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database of an owner with these rights and no others."""
    yield from owned_database(server_url, request.param)


async def opened(url: str) -> Database:
    await migrate(url)
    db = Database(url, size=2)
    await db.open()
    return db


@pytest.mark.parametrize("owned", ["CREATEROLE"], indirect=True)
async def test_an_owner_who_may_create_roles_gets_the_second_line_by_itself(owned: str) -> None:
    db = await opened(owned)
    house = await House.build(db)
    await neighbours(db)
    assert await house.value("SELECT count(*) FROM members") == 2, "the house itself sees every workspace"
    async with isolation.in_workspace(db, house.caller.workspace_id) as conn:
        assert await (await conn.execute("SELECT count(*) FROM members")).fetchone() == (1,)
    await db.close()


@pytest.mark.parametrize("owned", ["NOCREATEROLE"], indirect=True)
async def test_an_owner_who_may_not_works_on_without_it_unless_it_is_required(owned: str, server_url: str) -> None:
    db = await opened(owned)
    house = await House.build(db)
    listener = Listener(owned)
    await look_for_role(db)
    ready = Ready(Settings(), db, listener, Wakes(db, listener), Vault({"k1": bytes(32)}), "")
    check_row_level_security(ready)
    async with isolation.in_workspace(db, house.caller.workspace_id) as conn:
        assert await (await conn.execute("SELECT count(*) FROM members")).fetchone() == (1,)
    required = Ready(Settings(require_rls=True), db, listener, ready.wakes, ready.vault, "")
    with pytest.raises(CannotStart) as refused:
        check_row_level_security(required)
    assert (refused.value.code, refused.value.field) == ("rls_required", "ROTA_REQUIRE_RLS")
    async with db.connection() as conn:
        advice = await isolation.advice(conn)
    await db.close()
    with psycopg.connect(server_url, autocommit=True) as administrator:
        administrator.execute(advice)
    db = await opened(owned)
    await look_for_role(db)
    check_row_level_security(Ready(Settings(require_rls=True), db, listener, ready.wakes, ready.vault, ""))
    await db.close()


@pytest.mark.parametrize("owned", ["CREATEROLE"], indirect=True)
async def test_a_database_that_was_restored_under_another_owner_is_guarded_anew(owned: str, server_url: str) -> None:
    await (await opened(owned)).close()
    heir = f"rota_heir_{secrets.token_hex(4)}"
    with psycopg.connect(make_conninfo(server_url, dbname=conninfo(owned)["dbname"]), autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {heir} LOGIN CREATEROLE PASSWORD 'x'")
        try:
            conn.execute(f"REASSIGN OWNED BY {conninfo(owned)['user']} TO {heir}")
            conn.execute(f"GRANT ALL ON SCHEMA public TO {heir}")
            db = await opened(make_conninfo(owned, user=heir, password="x"))
            house = await House.build(db)
            async with isolation.in_workspace(db, house.caller.workspace_id) as confined:
                role = await (await confined.execute("SELECT current_user")).fetchone()
            assert role == (f"{heir}_api",)
            await db.close()
        finally:
            conn.execute(f"REASSIGN OWNED BY {heir} TO {conninfo(owned)['user']}")
            conn.execute(f"DROP OWNED BY {heir}, {heir}_api; DROP ROLE {heir}, {heir}_api")


async def look_for_role(db: Database) -> None:
    """As a start does, before anything is served."""
    async with db.connection() as conn:
        await isolation.role_of(db, conn)


def conninfo(url: str) -> dict[str, Any]:
    return psycopg.conninfo.conninfo_to_dict(url)


async def test_databases_that_are_made_together_share_their_owners_role(server_url: str) -> None:
    names = [f"rota_twin_{secrets.token_hex(4)}" for _ in range(2)]
    with psycopg.connect(server_url, autocommit=True) as conn:
        for name in names:
            conn.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            await asyncio.gather(*(migrate(make_conninfo(server_url, dbname=name)) for name in names))
        finally:
            for name in names:
                conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_person_can_be_added_from_within_a_workspace(house: House) -> None:
    user_id = UserId(new_id())
    async with isolation.in_workspace(house.db, house.caller.workspace_id) as conn:
        await people.add_user(conn, user_id, "Ida")
        await people.add_member(conn, house.caller.workspace_id, user_id, "viewer")
    assert await house.value("SELECT name FROM users WHERE id = %s", user_id) == "Ida"


def test_only_those_who_must_look_beyond_a_workspace_take_a_connection_as_the_owner() -> None:
    """Everything else over HTTP goes through a unit or `isolation.in_workspace`."""
    http = Path(chain.__file__).parents[1] / "http"
    found = {
        str(file.relative_to(http))
        for file in http.rglob("*.py")
        if re.search(r"\bdb\.(connection|transaction|reserve)\(", file.read_text())
    }
    who_asks = {"context.py", "redacting.py", "ui/rendering.py"}  # the last for a problem outside of any unit
    is_it_ready, signing_in = {"health.py"}, {"ui/signing.py"}
    assert found == who_asks | is_it_ready | signing_in
