"""The second line behind every query's workspace: row-level security, and the role under which the API works.

A tenant's rows are shown to the API's role only if they belong to the workspace that `rota.workspace` names. The owner
of the tables, as whom scheduler, worker and watch work, sees all of them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from rota.db import at_once
from rota.db.at_once import Step
from rota.db.pool import Connection, Database
from rota.model.ids import WorkspaceId

# Roles belong to the whole server. Named after the tables' owner, the API's is shared by the databases of one owner only:
# who may take it on could read them anyway.
HOME = """
SELECT m.relowner, m.relnamespace, left(pg_get_userbyid(m.relowner), 59) || '_api' AS api
  FROM pg_class m WHERE m.oid = to_regclass('migrations')
"""

TENANTS = f"""
SELECT c.oid, c.relowner, a.attname AS key,
       c.relrowsecurity AND c.relforcerowsecurity
       AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'workspace')
       AND EXISTS (SELECT FROM pg_policy p
                    WHERE p.polrelid = c.oid AND p.polname = 'house' AND c.relowner = ANY(p.polroles)) AS protected
  FROM ({HOME}) home
       JOIN pg_class c ON c.relnamespace = home.relnamespace AND c.relkind IN ('r', 'p')
       JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
            AND a.attname = CASE c.relname WHEN 'workspaces' THEN 'id' ELSE 'workspace_id' END
"""  # noqa: S608 — constants of this module, here and below

UNPROTECTED = f"SELECT oid::regclass::text FROM ({TENANTS}) t WHERE NOT protected ORDER BY 1"  # noqa: S608

PROTECT = f"""
DO $protect$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT * FROM ({TENANTS}) each WHERE NOT protected ORDER BY oid LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', t.oid::regclass);
        EXECUTE format('DROP POLICY IF EXISTS workspace ON %s', t.oid::regclass);
        EXECUTE format('DROP POLICY IF EXISTS house ON %s', t.oid::regclass);
        EXECUTE format($policy$
            CREATE POLICY workspace ON %1$s
             USING (%2$I = (SELECT nullif(current_setting('rota.workspace', true), '')::uuid))
        WITH CHECK (%2$I = (SELECT nullif(current_setting('rota.workspace', true), '')::uuid))
        $policy$, t.oid::regclass, t.key);
        EXECUTE format('CREATE POLICY house ON %s TO %s USING (true) WITH CHECK (true)', t.oid::regclass,
                       t.relowner::regrole);
    END LOOP;
END $protect$
"""  # noqa: S608

MAKE_ROLE = f"""
-- Where this user may. Another database of the same owner may do so at this very moment.
DO $role$
DECLARE
    home record;
    allowed boolean;
BEGIN
    SELECT * INTO home FROM ({HOME}) home;
    SELECT rolcreaterole OR rolsuper INTO allowed FROM pg_roles WHERE rolname = current_user;
    IF to_regrole(quote_ident(home.api)) IS NULL AND allowed THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN', home.api);
        EXECUTE format('GRANT %I TO %s', home.api, home.relowner::regrole);
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END $role$
"""  # noqa: S608

# Never the API's, once it works for a workspace: what stands for a person in all of them.
CLOSED = "'logins', 'sign_in_links', 'throttles', 'identities', 'oidc_sign_ins', 'migrations'"

# Of a person, all but what they sign in with.
SHOWN = "attnum > 0 AND NOT attisdropped AND attname NOT LIKE 'password%'"

UNGRANTED = f"""
-- Tables, and columns of people, that came after the last grant.
SELECT c.oid::regclass::text
  FROM ({HOME}) home
       JOIN pg_roles r ON r.rolname = home.api
       JOIN pg_class c ON c.relnamespace = home.relnamespace AND c.relkind IN ('r', 'p')
 WHERE c.relname NOT IN ({CLOSED})
   AND (NOT has_any_column_privilege(r.oid, c.oid, 'SELECT')
        OR c.relname = 'users' AND EXISTS (
               SELECT FROM pg_attribute
                WHERE attrelid = c.oid AND {SHOWN} AND NOT has_column_privilege(r.oid, c.oid, attnum, 'SELECT')))
"""  # noqa: S608

GRANT = f"""
DO $grant$
DECLARE
    home record;
    t record;
    shown text;
BEGIN
    SELECT * INTO home FROM ({HOME}) home;
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', home.relnamespace::regnamespace, home.api);
    SELECT string_agg(quote_ident(attname), ', ') INTO shown FROM pg_attribute
     WHERE attrelid = 'users'::regclass AND {SHOWN};
    FOR t IN SELECT relname, format('%I', relname) AS name FROM pg_class
              WHERE relnamespace = home.relnamespace AND relkind IN ('r', 'p') AND relname NOT IN ({CLOSED}) LOOP
        EXECUTE format(CASE t.relname
            WHEN 'users' THEN 'GRANT INSERT, SELECT (' || shown || ') ON %s TO %I'
            WHEN 'audit' THEN 'GRANT SELECT, INSERT ON %s TO %I'
            WHEN 'workspaces' THEN 'GRANT SELECT, UPDATE ON %s TO %I'
            ELSE 'GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I' END, t.name, home.api);
    END LOOP;
END $grant$
"""  # noqa: S608

ROLE = f"""
-- The API's role, if it is there, is no more than that, and this user may take it on.
SELECT r.rolname
  FROM ({HOME}) home JOIN pg_roles r ON r.rolname = home.api
 WHERE NOT r.rolsuper AND NOT r.rolbypassrls AND NOT pg_has_role(r.oid, home.relowner, 'MEMBER')
   AND CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN pg_has_role(session_user, r.oid, 'SET')
            ELSE pg_has_role(session_user, r.oid, 'MEMBER') END
   AND NOT EXISTS ({UNPROTECTED.removesuffix("ORDER BY 1")})
   AND NOT EXISTS ({UNGRANTED})
"""  # noqa: S608

ADVICE = f"""
SELECT format('CREATE ROLE %1$I NOLOGIN; GRANT %1$I TO %2$I;', api, pg_get_userbyid(relowner)) FROM ({HOME}) home
"""  # noqa: S608

# Both end with the transaction, so that a connection goes back as it came, also to PgBouncer.
CONFINE = "SELECT set_config('role', %(role)s, true), set_config('rota.workspace', %(workspace_id)s, true)"
LIFT = "SET LOCAL role TO DEFAULT"
RESUME = "SELECT set_config('role', %(role)s, true)"


async def protect(conn: AsyncConnection[TupleRow]) -> None:
    """Put every table with a workspace under row-level security, and make the API's role if this user may. Within the
    transaction and lock of who migrates; changes nothing where all is done."""
    if await _any(conn, UNPROTECTED):
        await conn.execute(PROTECT)
    await conn.execute(MAKE_ROLE)
    if await _any(conn, UNGRANTED):
        await conn.execute(GRANT)


async def _any(conn: AsyncConnection[TupleRow], query: str) -> bool:
    return bool(await (await conn.execute(query.encode())).fetchone())


async def role_of(db: Database, conn: Connection) -> str | None:
    """The API's role in this database; None if there is no second line here. Looked up once."""
    if not db.knows_api_role:
        row = await (await conn.execute(ROLE)).fetchone()
        db.api_role, db.knows_api_role = (row[0] if row else None), True
    return db.api_role


async def advice(conn: Connection) -> str:
    """What an administrator of the database would do to get the second line."""
    row = await (await conn.execute(ADVICE)).fetchone()
    assert row, "the database is migrated"
    return str(row[0])


async def confine(db: Database, conn: Connection, workspace_id: WorkspaceId) -> str | None:
    """From here to the end of its transaction this connection sees and touches one workspace only. The role it works
    under; None where there is no second line."""
    role = await role_of(db, conn)
    if role:
        await conn.execute(CONFINE, {"role": role, "workspace_id": str(workspace_id)})
    return role


async def confinement(db: Database, conn: Connection, workspace_id: WorkspaceId) -> list[Step]:
    """The same as a step of others, to be taken in one go with what follows; none where there is no second line."""
    role = await role_of(db, conn)
    return [(CONFINE, {"role": role, "workspace_id": str(workspace_id)})] if role else []


def told_workspace(role: str | None) -> list[Step]:
    """The same behind a step that has told the transaction its workspace, as those of who signs in do."""
    return [(RESUME, {"role": role})] if role else []


@asynccontextmanager
async def in_workspace(db: Database, workspace_id: WorkspaceId) -> AsyncIterator[Connection]:
    """A transaction that sees and touches one workspace only, from the round trip on with which it begins."""
    async with db.connection() as conn:
        confined = await confinement(db, conn, workspace_id)
        async with at_once.transaction(conn, *confined):
            yield conn


@asynccontextmanager
async def lifted(conn: Connection, role: str | None) -> AsyncIterator[None]:
    """For the few looks beyond the workspace: where else a person is a member, and what they sign in with."""
    if role:
        await conn.execute(LIFT)
    yield
    if role:
        await conn.execute(RESUME, {"role": role})
