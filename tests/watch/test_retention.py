"""Old runs and the directories of sessions go, with all that belongs to them and nothing that is still needed."""

import asyncio
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.errors import CannotStart
from rota.model.ids import id_at
from rota.scheduler.tick import Scheduler
from rota.settings import read_settings
from rota.watch.directories import REMOVED, PruneDirectories, _remove
from rota.watch.prune import PruneRuns
from rota.watch.tally import Tally
from support import run_state
from support.house import House
from support.live_run_tables import astray
from support.run_state import from_now
from support.waiting import until

KEEP = timedelta(days=100)
NOBODY = 65534
LOCKED = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def id_of_age(days: float) -> UUID:
    """An id as Rota made it so long ago."""
    return UUID(int=id_at(datetime.now(UTC) - timedelta(days=days)).int + uuid4().int % (1 << 64))


class Past:
    """Adds what happened in a workspace long ago."""

    def __init__(self, house: House, automation_id: UUID) -> None:
        self.house, self.automation_id = house, automation_id
        self.today = UUID(int=0)

    async def session(self, days: float = 200, status: str = "done", kind: str = "automation", **columns: Any) -> UUID:
        session_id = id_of_age(days)
        await self.house.execute(
            "INSERT INTO sessions (workspace_id, id, kind, status, origin, automation_id, agent_id, owner_id, has_tasks, updated_at)"
            " SELECT workspace_id, %s, %s, %s, 'schedule', id, agent_id, owner_id, %s, now() - %s FROM automations WHERE id = %s",
            session_id, kind, status, columns.pop("has_tasks", False), timedelta(days=days), self.automation_id,
        )  # fmt: skip
        return session_id

    async def run(self, days: float = 200, *, session_id: UUID | None = None, **columns: Any) -> UUID:
        """A run that ended so long ago; a slot that did not run, if it has no session."""
        skipped = {"status": "skipped", "skip_reason": "missed"} if session_id is None else {"status": "succeeded"}
        ended = from_now(days=-days)
        row = {
            "id": id_of_age(days), "ready_at": None, "queued_at": ended, "finished_at": ended, "session_id": session_id,
            **skipped, **columns,
        }  # fmt: skip
        return UUID(str((await self.house.add_run(self.automation_id, **row))["id"]))

    async def left(self) -> set[UUID]:
        return {run["id"] for run in await self.house.runs()}

    async def sessions(self) -> int:
        return int(await self.house.value("SELECT count(*) FROM sessions"))


@pytest.fixture
async def past(house: House) -> AsyncIterator[Past]:
    """With an automation whose newest run is of today, so that its old ones may go."""
    past = Past(house, await house.automation({"cron": "0 * * * *"}))
    past.today = await past.run(0)
    yield past
    async with house.db.connection() as conn:
        assert await astray(conn) == []


async def prune(db: Database, **options: Any) -> None:
    service = PruneRuns(db, keep=KEEP, **options)
    while await service.once() == 0.0:
        pass


async def test_a_run_that_ended_long_ago_goes_with_its_session_and_all_that_hangs_on_it(
    house: House, db: Database, past: Past
) -> None:
    session_id = await past.session(has_tasks=True)
    run_id = await past.run(session_id=session_id)
    for values in (
        "usage (workspace_id, run_id, attempt, unit, amount, account_id) SELECT workspace_id, %(run)s, 1, 'tokens', 7, account_id FROM grants LIMIT 1",
        "usage_tallies (workspace_id, until) SELECT id, now() FROM workspaces",
        "reservations (workspace_id, run_id, holder_id, unit, month, amount, settled) SELECT id, %(run)s, id, 'tokens', '2020-01-01', 9, 7 FROM workspaces",
        "approvals (workspace_id, id, run_id, session_id, attempt, question, options, expires_at) SELECT id, %(run)s, %(run)s, %(session)s, 1, '?', '[]', now() FROM workspaces",
        "abandonments (workspace_id, run_id, attempt, executor, pool) SELECT id, %(run)s, 1, 'e', 'p' FROM workspaces",
        "held_words (workspace_id, run_id, attempt, form, size, shown, covered) SELECT id, %(run)s, 1, 1, 1, 1, 1 FROM workspaces",
        "checkpoints (workspace_id, session_id, thread, run_id, attempt, data) SELECT id, %(session)s, %(run)s, %(run)s, 1, '' FROM workspaces",
        "session_roles (workspace_id, session_id, name, agent_id, grant_id) SELECT workspace_id, %(session)s, 'planner', agent_id, grant_id FROM automations",
        "tasks (workspace_id, session_id, id, key, role, status, unmet, prompt, timeout, batch, run_id, finished_at) SELECT w.id, %(session)s, n.id, n.id::text, 'planner', 'done', 0, 'p', '1 h', n.id, n.id, now() FROM workspaces w, (VALUES (%(run)s::uuid), (%(session)s::uuid)) n(id)",
        "task_dependencies (workspace_id, session_id, task_id, depends_on) SELECT id, %(session)s, %(run)s, %(session)s FROM workspaces",
    ):  # fmt: skip
        async with house.db.connection() as conn:
            await conn.execute(f"INSERT INTO {values}".encode(), {"run": run_id, "session": session_id})
    await prune(db)
    assert await past.left() == {past.today}
    for table in ("sessions", "usage", "reservations", "approvals", "abandonments", "held_words", "checkpoints",
                  "session_roles", "tasks", "task_dependencies"):  # fmt: skip
        assert await house.value(f"SELECT count(*) FROM {table}") == 0, table


NEEDED: dict[str, Callable[[Past], Any]] = {
    "an event": lambda past: past.house.execute(
        "INSERT INTO events (workspace_id, session_id, seq, kind, data) SELECT workspace_id, id, 1, 'output', '{}' FROM sessions"
    ),
    "an artifact": lambda past: past.house.execute(
        "INSERT INTO artifacts (workspace_id, id, session_id, name, media_type, uri) SELECT workspace_id, id, id, 'n', 't', 'u' FROM sessions"
    ),
}


@pytest.mark.parametrize("what", ["an event", "an artifact"])
async def test_a_session_stays_whole_while_anything_is_in_it(what: str, db: Database, past: Past) -> None:
    run_id = await past.run(session_id=await past.session())
    await NEEDED[what](past)
    await prune(db)
    assert run_id in await past.left()
    assert await past.sessions() == 1


async def test_runs_of_a_session_that_is_over_go_together_and_of_one_that_goes_on_one_by_one(
    house: House, db: Database, past: Past
) -> None:
    over = await past.session()
    followed_up = [await past.run(days, session_id=over) for days in (200, 50)]
    chat = await past.session(kind="interactive", status="active")
    said = [await past.run(days, session_id=chat) for days in (200, 50)]
    goal = await past.session(kind="background", status="active", has_tasks=True)
    done = await past.run(session_id=goal)
    same = await past.session(status="done")
    await house.execute("UPDATE automations SET session = 'same', session_id = %s", same)
    repeated = [await past.run(days, session_id=same) for days in (200, 50)]
    await prune(db)
    kept = {*followed_up, said[1], done, repeated[1], past.today}
    assert await past.left() == kept
    assert await past.sessions() == 4


async def test_a_run_that_lives_or_ended_lately_stays_however_old_its_id_is(
    house: House, db: Database, past: Past
) -> None:
    session_id = await past.session(status="active")
    live = await house.add_run(past.automation_id, id=id_of_age(200), session_id=session_id)
    late = await past.run(session_id=await past.session(), finished_at=from_now(days=-99))
    await prune(db)
    assert {live["id"], late} <= await past.left()


async def test_the_newest_run_of_an_automation_stays(house: House, db: Database, past: Past) -> None:
    other = Past(house, await house.automation(name="Rare"))
    runs = [await other.run(days) for days in (300, 200)]
    await prune(db)
    assert await past.left() == {runs[1], past.today}


async def test_keys_that_name_a_run_go_before_it(house: House, db: Database, past: Past) -> None:
    """Else a request that is repeated after years would find the id of a run that is gone."""
    run_id = await past.run()
    for key, days in (("old", 31), ("new", 29)):
        await house.execute("INSERT INTO start_keys (workspace_id, key, body_hash, run_id, created_at) "
                            "SELECT id, %s, '', %s, now() - %s FROM workspaces", key, run_id, timedelta(days=days))  # fmt: skip
    await prune(db)
    assert await house.value("SELECT array_agg(key) FROM start_keys") == ["new"]


async def test_bites_are_bounded_and_what_stays_holds_up_nothing(house: House, db: Database, past: Past) -> None:
    """The oldest runs stay, more of them than a bite."""
    goal = await past.session(300, status="active", has_tasks=True)
    stay = {await past.run(300, session_id=goal) for _ in range(5)}
    for _ in range(7):
        await past.run()
    service = PruneRuns(db, keep=KEEP, batch=3)
    assert await service.once() == 0.0
    assert len(await past.left()) == 13
    counts = []
    while await service.once() == 0.0:
        counts.append(len(await past.left()))
    assert counts[0] >= 11
    assert await past.left() == stay | {past.today}


async def test_usage_stays_until_it_is_summed_up_and_the_sums_do_not_change(
    house: House, db: Database, past: Past
) -> None:
    run_id = await past.run(session_id=await past.session())
    await house.execute(
        "INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id) "
        "SELECT workspace_id, %s, 1, 'tokens', 7, account_id FROM grants LIMIT 1", run_id,
    )  # fmt: skip
    await prune(db)
    assert run_id in await past.left()
    await Tally(db).once()
    sums = "SELECT array_agg((starts_at, account_id, unit, amount)::text) FROM usage_spans"
    before = await house.value(sums)
    assert before
    await prune(db)
    assert run_id not in await past.left()
    assert await house.value(sums) == before
    await Tally(db).once()
    assert await house.value(sums) == before


async def test_what_was_spent_this_month_stays_for_budgets(house: House, db: Database, past: Past) -> None:
    """A budget that is saved today counts the runs of this month by their usage."""
    days = (datetime.now(UTC) - datetime.now(UTC).replace(day=1, hour=0, minute=0)).total_seconds() / 86400
    run_id = await past.run(days / 2, session_id=await past.session(days / 2))
    await house.execute("INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id) "
                        "SELECT workspace_id, %s, 1, 'tokens', 7, account_id FROM grants LIMIT 1", run_id)  # fmt: skip
    await house.execute("INSERT INTO usage_tallies (workspace_id, until) SELECT id, now() FROM workspaces")
    service = PruneRuns(db, keep=timedelta(seconds=1))
    await service.once()
    assert run_id in await past.left()
    await house.execute("DELETE FROM usage")
    await service.once()
    assert run_id not in await past.left()


async def test_a_slot_whose_run_was_deleted_never_fires_again(house: House, db: Database, wakes: Wakes) -> None:
    automation_id = await house.automation(
        {"every": "1h"}, next_fire_at=datetime.now(UTC) - timedelta(days=200), catch_up="all", catch_up_limit=3
    )
    await Scheduler(db, wakes).once()
    fired = await house.runs()
    await house.set_runs(
        status="cancelled", error_class="cancelled_by_user", ready_at=None, finished_at=from_now(days=-150)
    )
    await house.execute("UPDATE sessions SET status = 'done'")
    await house.execute("DELETE FROM events")
    past = Past(house, automation_id)
    await past.run(0, slot=datetime.now(UTC))
    moved = [(run["id"], id_of_age(150)) for run in fired]
    for old, new in moved:
        await house.set_run(old, id=new)
    await prune(db)
    assert len(await past.left()) == 1
    await Scheduler(db, wakes).once()
    assert len(await past.left()) == 1
    assert await house.value("SELECT next_fire_at > now() FROM triggers")


async def test_a_session_in_which_somebody_goes_on_stays(house: House, db: Database, past: Past) -> None:
    session_id = await past.session()
    run_id = await past.run(session_id=session_id)
    async with house.db.transaction() as conn:
        await conn.execute("UPDATE sessions SET status = 'active' WHERE id = %s", [session_id])
        await prune(db)
    assert run_id in await past.left()


async def test_who_goes_on_in_a_session_while_it_is_deleted_finds_it_gone(
    house: House, db: Database, past: Past
) -> None:
    session_id = await past.session()
    await past.run(session_id=session_id)
    async with house.db.transaction() as conn:
        await run_state.find_runs(conn, "FOR UPDATE", session_id=session_id)
        pruning = asyncio.create_task(prune(db))
        await until(lambda: house.value(LOCKED))
        goes_on = asyncio.create_task(
            house.value("UPDATE sessions SET status = 'active' WHERE id = %s RETURNING id", session_id)
        )
        await until(lambda: house.value(LOCKED.replace("= 1", "= 2")))
    await pruning
    assert await goes_on is None


@pytest.mark.parametrize("value", ["0", "29.9", "-1", "36501", "nan", "x"])
def test_runs_are_kept_for_ever_or_longer_than_the_keys_that_name_them(value: str) -> None:
    with pytest.raises(CannotStart) as refused:
        read_settings({"ROTA_KEEP_RUNS_DAYS": value})
    assert (refused.value.code, refused.value.field) == ("invalid_setting", "ROTA_KEEP_RUNS_DAYS")
    assert read_settings({"ROTA_KEEP_RUNS_DAYS": "30"}).keep_runs_days == timedelta(days=30)
    assert read_settings({}).keep_runs_days is None


# ── Directories ──────────────────────────────────────────────────────────────────────────────────────────────────


class Directories:
    def __init__(self, past: Past, home: Path) -> None:
        self.past, self.home = past, home
        self.place = home / "sessions" / str(past.house.caller.workspace_id)

    def make(self, session_id: UUID) -> Path:
        directory = self.place / str(session_id)
        directory.mkdir(parents=True)
        (directory / "file").write_text("x")
        return directory

    def there(self) -> set[str]:
        return set(os.listdir(self.place))

    async def prune(self, **options: Any) -> None:
        service = PruneDirectories(self.past.house.db, self.home, keep=KEEP, **options)
        while await service.once() == 0.0:
            pass
        assert not (self.home / "sessions" / REMOVED).exists() or os.listdir(self.home / "sessions" / REMOVED) == []


@pytest.fixture
def directories(past: Past, tmp_path: Path) -> Directories:
    return Directories(past, tmp_path / "home")


async def test_directories_go_long_after_the_end_of_their_session(past: Past, directories: Directories) -> None:
    gone = [await past.session(status=status) for status in ("done", "failed", "archived")]
    lately = await past.session(99)
    stay = [await past.session(status=status) for status in ("draft", "active", "paused")]
    live = await past.session()
    await past.house.add_run(past.automation_id, session_id=live)
    ended_lately = await past.session()
    await past.house.execute("UPDATE sessions SET updated_at = now() - interval '99 days' WHERE id = %s", ended_lately)
    same = await past.session()
    await past.house.execute("UPDATE automations SET session = 'same', session_id = %s", same)
    kept = [lately, live, ended_lately, same, *stay]
    for each in (*gone, *kept):
        directories.make(each)
    await directories.prune(batch=2)
    assert directories.there() == {str(each) for each in kept}


async def test_a_directory_without_a_session_goes_and_that_of_another_database_stays(directories: Directories) -> None:
    directories.make(id_of_age(200))
    young = directories.make(id_of_age(99))
    other = directories.home / "sessions" / str(uuid4()) / str(id_of_age(200))
    other.mkdir(parents=True)
    for name in ("notes", str(id_of_age(200)).upper()):
        (directories.place / name).mkdir()
    await directories.prune()
    assert directories.there() == {young.name, "notes"} | {each for each in directories.there() if each.isupper()}
    assert len(directories.there()) == 3
    assert other.exists()


async def test_links_are_not_followed(past: Past, directories: Directories, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    directory = directories.make(await past.session())
    (directory / "to a directory").symlink_to(outside)
    (directory / "to a file").symlink_to(outside / "precious")
    linked = directories.place / str(await past.session())
    linked.symlink_to(outside)
    await directories.prune()
    assert directories.there() == {linked.name}
    assert (outside / "precious").read_text() == "x"


@contextmanager
def as_ordinary_user(directory: str) -> Iterator[None]:
    """Root may write to everything."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(directory, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_directories_that_even_their_owner_may_not_write_to_are_deleted() -> None:
    """As programs leave them that keep what they have downloaded."""
    with tempfile.TemporaryDirectory() as place, as_ordinary_user(place):
        outside, directory = Path(place, "outside"), Path(place, "session")
        outside.mkdir(mode=0o500)
        for name in ("read-only", "closed"):
            (directory / name / "deep").mkdir(parents=True)
            (directory / name / "deep" / "file").write_text("x")
            (directory / name / "deep" / "link").symlink_to(outside)
        (directory / "read-only" / "deep").chmod(0o500)
        (directory / "closed").chmod(0)
        assert _remove(directory)
        assert os.listdir(place) == ["outside"]
        assert stat.S_IMODE(outside.stat().st_mode) == 0o500
        outside.chmod(0o700)


async def test_what_a_killed_process_left_is_deleted(directories: Directories) -> None:
    left = directories.home / "sessions" / REMOVED / "left"
    left.mkdir(parents=True)
    await directories.prune()
    assert not left.exists()


async def test_a_session_that_becomes_active_after_it_was_looked_at_keeps_its_directory(
    past: Past, directories: Directories
) -> None:
    """Somebody holds the session to go on in it: the directory is left alone."""
    session_id = await past.session()
    directories.make(session_id)
    async with past.house.db.transaction() as conn:
        await conn.execute("UPDATE sessions SET status = 'active' WHERE id = %s", [session_id])
        await directories.prune()
    assert directories.there() == {str(session_id)}
    await directories.prune()
    assert directories.there() == {str(session_id)}


async def test_a_session_becomes_active_only_once_its_old_directory_is_gone(
    past: Past, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run then makes a new one, which stays."""
    session_id, going_on = await past.session(), asyncio.Event()
    directories.make(session_id)
    loop = asyncio.get_running_loop()
    rename = PruneDirectories._rename

    async def goes_on() -> None:
        await past.house.execute("UPDATE sessions SET status = 'active' WHERE id = %s", session_id)
        directories.make(session_id)

    async def begin() -> None:
        task = asyncio.create_task(goes_on())
        await until(lambda: past.house.value(LOCKED))
        going_on.set()
        tasks.append(task)

    tasks: list[asyncio.Task[None]] = []

    def rename_late(self: PruneDirectories, session: Any) -> None:
        asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
        rename(self, session)

    monkeypatch.setattr(PruneDirectories, "_rename", rename_late)
    await directories.prune()
    await asyncio.gather(*tasks)
    assert going_on.is_set()
    assert directories.there() == {str(session_id)}
    monkeypatch.undo()
    await directories.prune()
    assert directories.there() == {str(session_id)}
