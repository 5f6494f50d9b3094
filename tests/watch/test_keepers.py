"""The house keepers: what is old goes, what must stay stays, and the house is counted."""

import asyncio
import inspect
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from rota.db import artifacts, memory, pruning
from rota.db.listener import ANSWERS, CANCELS, RUNS, Listener, Wakes
from rota.db.pool import Database
from rota.model.approval import Question
from rota.model.ids import AutomationId
from rota.model.memory import Remembered
from rota.roster import running
from rota.sessions import approvals as asking
from rota.watch import prune
from rota.watch.prune import Prune
from rota.watch.rescue import Rescue
from rota.watch.snapshot import Snapshot
from support import run_state
from support.house import House
from support.run_state import from_now
from support.waiting import until

WAITING = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
EVENTS = """
INSERT INTO events (workspace_id, session_id, seq, kind, data, created_at)
SELECT w.id, w.id, n, 'output', '{}', now() - %s FROM workspaces w, generate_series(%s::integer, %s::integer) n
"""


def keeper(db: Database) -> Prune:
    return Prune(db, keep_events=timedelta(days=90), keep_snapshots=timedelta(days=7))


async def test_events_older_than_they_are_kept_go_and_the_others_stay(house: House, db: Database) -> None:
    await house.execute(EVENTS, timedelta(days=91), 1, 3)
    await house.execute(EVENTS, timedelta(days=89), 4, 5)
    await keeper(db).once()
    assert await house.value("SELECT array_agg(seq ORDER BY seq) FROM events") == [4, 5]


async def test_pruning_takes_a_bounded_bite_and_comes_back_at_once_for_the_rest(house: House, db: Database) -> None:
    await house.execute(EVENTS, timedelta(days=91), 1, prune.BATCH + 1)
    assert await keeper(db).once() == 0.0
    assert await house.value("SELECT count(*) FROM events") == 1
    assert await keeper(db).once() > 0


async def test_old_snapshots_workers_and_keys_go_and_runs_never_do(house: House, db: Database) -> None:
    automation = await house.automation({"cron": "0 * * * *"}, next_fire_at=None)
    await house.execute(
        """INSERT INTO snapshots (id, taken_at, host, workers, sessions, running, queued)
           VALUES (gen_random_uuid(), now() - interval '8 days', 'h', 1, 1, 1, 1)"""
    )
    await house.execute("INSERT INTO workers (id, host, pid, places, kinds, pools, last_seen_at) "
                        "VALUES ('old', 'h', 1, 1, '{}', '{}', now() - interval '8 days')")  # fmt: skip
    await house.execute("INSERT INTO start_keys (workspace_id, key, body_hash, run_id, created_at) "
                        "SELECT id, 'k', '', id, now() - interval '31 days' FROM workspaces")  # fmt: skip
    ended_at = from_now(days=-9 * 365)
    await house.add_run(automation, status="skipped", skip_reason="missed", queued_at=ended_at, finished_at=ended_at)
    await keeper(db).once()
    for table in ("snapshots", "workers", "start_keys"):
        assert await house.value(f"SELECT count(*) FROM {table}") == 0
    assert await house.has_runs(1)


async def test_two_processes_of_one_machine_take_one_snapshot(house: House, db: Database) -> None:
    for _ in range(2):
        await Snapshot(db, every=timedelta(minutes=1), dead_after=timedelta(seconds=30)).once()
    assert await house.value("SELECT count(*) FROM snapshots") == 1
    assert await house.value("SELECT memory_mb > 1 AND running = 0 AND queued = 0 FROM snapshots")


async def test_a_snapshot_counts_the_triggers_that_are_overdue(house: House, db: Database) -> None:
    now = await house.value("SELECT now()")
    for late in (50, 70, 80):
        await house.automation({"every": "1h"}, next_fire_at=now - timedelta(seconds=late))
    await Snapshot(db, every=timedelta(minutes=1), dead_after=timedelta(seconds=30)).once()
    assert REGISTRY.get_sample_value("rota_triggers_overdue") == 2


@pytest.mark.parametrize(("days", "left"), [(91, 0), (89, 1)])
async def test_approvals_and_lost_attempts_go_with_the_transcript_and_secrets_that_ran_out_soon_after(
    house: House, db: Database, days: int, left: int
) -> None:
    await house.automation({"webhook": {}})
    run = await house.add_run(status="skipped", skip_reason="missed", finished_at=from_now(days=-days))
    workspace_id, run_id = run["workspace_id"], run["id"]
    await house.execute("INSERT INTO abandonments (workspace_id, run_id, attempt, executor, pool, created_at) "
                        "VALUES (%s, %s, 1, 'e', 'p', now() - %s)", workspace_id, run_id, timedelta(days=days))  # fmt: skip
    await house.execute(
        "INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, created_at, expires_at)"
        " VALUES (%s, %s, %s, %s, 1, '?', '[]', now() - %s, now())", workspace_id, run_id, run_id, run_id, timedelta(days=days),
    )  # fmt: skip
    await house.execute("INSERT INTO webhook_secrets (workspace_id, trigger_id, id, sealed, expires_at) "
                        "SELECT workspace_id, id, id, decode(repeat('00', 64), 'hex'), now() - %s FROM triggers", timedelta(days=days - 60))  # fmt: skip
    await keeper(db).once()
    for table in ("approvals", "abandonments", "webhook_secrets"):
        assert await house.value(f"SELECT count(*) FROM {table}") == left, table


async def test_however_old_what_a_run_still_needs_stays_until_it_has_ended_for_as_long(
    house: House, db: Database
) -> None:
    await house.queue_runs(1)
    run = await house.run()
    workspace_id, run_id, session_id = run["workspace_id"], run["id"], run["session_id"]
    await house.execute(
        "INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, created_at, expires_at)"
        " VALUES (%s, %s, %s, %s, 1, '?', '[]', now() - interval '91 days', now())",
        workspace_id, run_id, run_id, session_id,
    )  # fmt: skip
    await house.execute(
        "INSERT INTO checkpoints (workspace_id, session_id, thread, run_id, attempt, data, stored_at)"
        " VALUES (%s, %s, %s, %s, 1, '', now() - interval '91 days')",
        workspace_id, session_id, session_id, run_id,
    )  # fmt: skip
    left = "SELECT (SELECT count(*) FROM approvals) || ' ' || (SELECT count(*) FROM checkpoints)"
    await keeper(db).once()
    assert await house.value(left) == "1 1", "it goes on"
    await house.set_run(status="cancelled", error_class="cancelled_by_user", ready_at=None, finished_at=from_now())
    await keeper(db).once()
    assert await house.value(left) == "1 0", "the question is part of what was said lately"


GROWING = {
    "abandonments", "approvals", "artifacts", "audit", "checkpoints", "contents", "deliveries", "events",
    "former_credentials", "held_words", "logins", "memory",
    "notifications", "oidc_sign_ins", "rate_buckets", "reservations", "runs", "session_roles", "sessions", "sign_in_links",
    "snapshots", "start_keys", "task_dependencies", "tasks", "throttles", "usage", "webhook_secrets", "workers", "write_keys",
}  # fmt: skip
KEPT = {  # what people saved, sums of what was spent, and what a trigger keeps
    "accounts", "agents", "automations", "credentials", "grants", "identities", "imported_parts", "live_runs", "members",
    "migrations",
    "notification_choices", "notification_outbox", "notification_targets", "pauses", "ready_runs", "revisions",
    "spending", "taken_runs", "tokens", "triggers", "usage_spans", "usage_tallies", "users",
    "workspaces",
}  # fmt: skip


async def test_every_table_is_either_pruned_or_kept_on_purpose(house: House) -> None:
    found = await house.value("SELECT array_agg(tablename::text) FROM pg_tables WHERE schemaname = 'public'")
    assert set(found) == GROWING | KEPT
    source = inspect.getsource(pruning) + inspect.getsource(artifacts)
    assert [table for table in GROWING if f"DELETE FROM {table}" not in source] == []


async def test_what_is_renewed_while_it_is_pruned_stays(house: House, db: Database) -> None:
    """The pruning waits for who renews it, and then looks at it anew."""
    automation_id = AutomationId(await house.automation())
    where = house.caller.workspace_id, automation_id
    async with house.db.transaction() as conn:
        await memory.put(conn, *where, Remembered("seen", 1, ttl=timedelta(hours=1)))
    await house.execute("UPDATE memory SET expires_at = now() - interval '1 day'")
    async with house.db.transaction() as conn:
        await memory.put(conn, *where, Remembered("seen", 2, ttl=timedelta(hours=1)))
        pruning = asyncio.create_task(keeper(db).once())
        await until(lambda: house.value(WAITING))
    await pruning
    assert await house.value("SELECT value FROM memory") == 2


async def test_rescue_takes_a_bounded_bite_and_wakes_those_whom_it_concerns(
    house: House, db: Database, wakes: Wakes, listener: Listener
) -> None:
    async with db.transaction() as conn:
        started = [await running.run_now(conn, house.caller, await house.automation()) for _ in range(2)]
    await house.set_runs(**run_state.lost())
    woken: list[tuple[str, str]] = []
    for channel in (RUNS, CANCELS, ANSWERS):
        listener.on(channel, lambda about, channel=channel: woken.append((channel, about)))  # type: ignore[misc]

    async def all_listen() -> bool:
        return {channel for channel, _ in woken} == {RUNS, CANCELS, ANSWERS}

    await until(all_listen)
    woken.clear()
    keeper = Rescue(db, wakes, every=timedelta(seconds=15), batch=1)
    assert [await keeper.once() for _ in range(3)] == [0.0, 0.0, 15.0]
    assert await house.has_runs(2, status="queued", rescues=1)
    assert (RUNS, "") in woken
    woken.clear()
    await house.set_run(started[0], **run_state.running(status="awaiting_approval"))
    async with db.transaction() as conn:
        asked = await asking.ask(
            conn, house.caller.workspace_id, started[0], 1, Question("Send it?"), keeps_process=True
        )
    await house.execute("UPDATE approvals SET expires_at = now()")
    assert await keeper.once() == 0.0
    assert {(CANCELS, str(started[0])), (RUNS, ""), (ANSWERS, str(asked.id))} <= set(woken)


UNREAD = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'ClientWrite'"


async def test_a_process_that_froze_while_it_was_answered_keeps_nothing_locked(
    house: House, db: Database, wakes: Wakes
) -> None:
    """Its socket is full. PostgreSQL ends an idle transaction, but not one whose answer it cannot send."""
    await house.automation()
    frozen = await db.reserve()
    many = b"SELECT repeat('x', 1000) FROM generate_series(1, 100000)"
    frozen.pgconn.send_query(b"BEGIN; SELECT FROM automations FOR UPDATE; " + many)
    frozen.pgconn.flush()
    await until(lambda: house.value(f"SELECT ({UNREAD}) = 1"))
    await Rescue(db, wakes).once()
    assert await house.value(f"SELECT ({UNREAD}) = 1"), "it may still read"
    impatient = Database(db.url, answer=timedelta(milliseconds=100))
    await impatient.open()
    await until(lambda: house.value(f"SELECT ({UNREAD} AND query_start < clock_timestamp() - interval '100 ms') = 1"))
    await Rescue(impatient, wakes).once()
    await until(lambda: house.value(f"SELECT ({UNREAD}) = 0"))
    async with db.transaction() as conn:
        await conn.execute("SELECT FROM automations FOR UPDATE NOWAIT")
    await impatient.close()
    frozen.pgconn.finish()
