"""Promises 1 and 2: every slot becomes exactly one run, skip or recorded miss."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import DataError

from rota.db import automations as rows
from rota.db import triggers
from rota.db.listener import Wakes
from rota.db.pool import Connection, Database
from rota.model.ids import WorkerId
from rota.model.run import SkipReason
from rota.roster import agents, automations
from rota.runs import claiming, passing, starting
from rota.scheduler import tick
from rota.scheduler.inbound import publish_event
from rota.scheduler.tick import Scheduler
from rota.worker.queues import Queues
from support.house import NOON, Clock, House
from support.run_state import running
from support.waiting import until

HOURLY = {"cron": "0 * * * *", "timezone": "UTC"}
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
MINUTELY = {"cron": "* * * * *", "timezone": "UTC"}


@pytest.fixture
def scheduler(db: Database, wakes: Wakes, clock: Clock) -> Scheduler:
    return Scheduler(db, wakes, clock=clock)


async def test_a_due_trigger_fires_once_and_is_due_again_at_its_next_slot(house: House, scheduler: Scheduler) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    await scheduler.once()
    await scheduler.once()
    [run] = await house.ledger()
    assert (run["slot"], run["status"], run["source"], run["missed"]) == (NOON, "queued", "schedule", None)
    assert await house.value(
        "SELECT next_fire_at FROM triggers WHERE automation_id = %s", automation
    ) == NOON + timedelta(hours=1)


async def test_a_pass_says_how_long_until_the_next_trigger_is_due(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    assert await scheduler.once() == 30.0
    await house.automation(HOURLY, next_fire_at=NOON + timedelta(seconds=7))
    assert await scheduler.once() == 7.0
    clock.advance(seconds=7)
    assert await scheduler.once() == 30.0


async def test_a_stream_that_fails_takes_the_other_with_it_and_is_told_as_it_failed(
    house: House, db: Database, wakes: Wakes, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    begun, left = asyncio.Event(), asyncio.Event()

    class FailsInAStream(Scheduler):
        batches = 0

        async def fire_batch(self, conn: Connection) -> int:
            self.batches += 1
            match self.batches:
                case 1:
                    return await super().fire_batch(conn)
                case 2:
                    return await self.go_on()
            await begun.wait()
            raise OSError("the line is dead")

        async def go_on(self) -> int:
            try:
                begun.set()
                return await asyncio.Event().wait()
            finally:
                left.set()

    with pytest.raises(OSError, match="the line is dead"):
        await FailsInAStream(db, wakes, batch=1, clock=clock).once()
    assert left.is_set()


async def test_a_fresh_run_has_its_session_and_its_first_event(house: House, scheduler: Scheduler) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, prompt="Water the plants.")
    await scheduler.once()
    [run] = await house.ledger()
    data = await house.value("SELECT data FROM events WHERE session_id = %s AND seq = 1", run["session_id"])
    assert data == {
        "status": "queued",
        "source": "schedule",
        "slot": "2026-06-01T12:00:00+00:00",
        "prompt": "Water the plants.",
    }
    assert await house.value("SELECT origin FROM sessions WHERE id = %s", run["session_id"]) == "schedule"


async def test_a_schedule_that_slept_through_three_fires_runs_once_and_says_so(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    clock.advance(hours=3, minutes=30)
    await scheduler.once()
    await scheduler.once()
    [run] = await house.ledger()
    assert run["slot"] == NOON + timedelta(hours=3)
    assert run["missed"] == {"count": 3, "since": "2026-06-01T12:00:00+00:00"}


async def test_three_days_missed_of_an_every_minute_schedule_are_one_row(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(MINUTELY, next_fire_at=NOON)
    clock.advance(days=3)
    await scheduler.once()
    [run] = await house.ledger()
    assert run["missed"]["count"] == 3 * 24 * 60


async def test_catch_up_skip_records_a_late_slot_as_missed(house: House, scheduler: Scheduler, clock: Clock) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, catch_up="skip")
    clock.advance(hours=2, minutes=30)
    await scheduler.once()
    [run] = await house.ledger()
    assert (run["status"], run["skip_reason"], run["missed"]["count"]) == ("skipped", "missed", 2)
    clock.advance(minutes=30, seconds=59)
    await scheduler.once()
    assert (await house.ledger())[-1]["status"] == "queued"


async def test_catch_up_all_runs_the_latest_so_many_oldest_first(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, catch_up="all", catch_up_limit=3)
    clock.advance(hours=5, minutes=1)
    await scheduler.once()
    ledger = await house.ledger()
    assert [run["slot"].hour for run in ledger] == [15, 16, 17]
    assert [run["missed"] and run["missed"]["count"] for run in ledger] == [3, None, None]
    assert [run["ready_at"] is not None for run in ledger] == [True, False, False]  # they wait for each other


async def test_catch_up_all_runs_as_many_however_often_the_trigger_has_fired_before(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, catch_up="all", catch_up_limit=10)
    await house.execute("UPDATE triggers SET fires = 1000")
    clock.advance(hours=3, minutes=1)
    await scheduler.once()
    assert [(run["slot"].hour, run["missed"]) for run in await house.ledger()] == [(h, None) for h in (12, 13, 14, 15)]


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["running", *["prior_in_flight"] * 3]),
        ("queue_one", ["running", "waits", "waits", "waits"]),
        ("queue_all", ["running", "waits", "waits", "waits"]),
        ("allow", ["running", "ready", "ready", "ready"]),
        ("replace", ["running", "waits", "waits", "waits"]),
    ],
)
async def test_overlap_decides_between_a_run_in_flight_and_the_slots_that_are_caught_up_together(
    house: House, scheduler: Scheduler, clock: Clock, overlap: str, expected: list[str]
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, overlap=overlap, catch_up="all", catch_up_limit=10)
    await scheduler.once()
    await house.set_runs(**running())
    clock.advance(hours=3, minutes=1)
    await scheduler.once()
    ledger = await house.ledger()
    assert [_standing(run) for run in ledger] == expected
    assert (ledger[0]["cancel_requested_at"] is not None) == (overlap == "replace")


async def test_a_slot_that_comes_due_while_the_run_before_is_in_flight_is_skipped_and_the_schedule_goes_on(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await scheduler.once()
    clock.advance(hours=1)
    await scheduler.once()
    first, second = await house.ledger()
    assert (second["status"], second["skip_reason"], second["session_id"]) == ("skipped", "prior_in_flight", None)
    assert first["status"] == "queued"
    assert await house.value("SELECT next_fire_at FROM triggers") == NOON + timedelta(hours=2)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["ready", "prior_in_flight", "prior_in_flight"]),
        ("queue_one", ["ready", "prior_in_flight", "prior_in_flight"]),  # the first still waits to start
        ("queue_all", ["ready", "waits", "waits"]),
        ("allow", ["ready", "ready", "ready"]),
    ],
)
async def test_overlap_decides_what_becomes_of_later_slots(
    house: House, scheduler: Scheduler, clock: Clock, overlap: str, expected: list[str]
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, overlap=overlap)
    for _ in range(3):
        await scheduler.once()
        clock.advance(hours=1)
    assert [_standing(run) for run in await house.ledger()] == expected


async def test_queue_one_keeps_one_run_waiting_behind_the_one_that_runs(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, overlap="queue_one")
    await scheduler.once()
    await house.set_runs(**running())
    for _ in range(2):
        clock.advance(hours=1)
        await scheduler.once()
    assert [_standing(run) for run in await house.ledger()] == ["running", "waits", "prior_in_flight"]


async def test_queue_one_sees_who_waits_also_beside_a_trigger_that_skips(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(triggers=[{**HOURLY, "overlap": each} for each in ("skip", "queue_one")], next_fire_at=NOON)
    await scheduler.once()
    await house.set_runs({"status": "queued"}, **running())
    for _ in range(2):
        clock.advance(hours=1)
        await house.execute(
            "UPDATE triggers SET next_fire_at = next_fire_at - interval '1 minute' WHERE overlap = 'skip'"
        )
        await scheduler.once()
    assert [_standing(run) for run in await house.ledger()].count("waits") == 1


async def test_a_slot_that_has_its_run_replaces_nothing_when_its_trigger_is_set_back(
    house: House, scheduler: Scheduler
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, overlap="replace")
    await scheduler.once()
    await house.execute("UPDATE triggers SET next_fire_at = %s", NOON)
    await scheduler.once()
    [run] = await house.ledger()
    assert _standing(run) == "ready"


async def test_replace_cancels_what_waits_and_asks_what_runs_to_stop(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON, overlap="replace")
    await scheduler.once()
    await house.set_runs(**running())
    for _ in range(2):
        clock.advance(hours=1)
        await scheduler.once()
    first, second, third = await house.ledger()
    assert (first["status"], first["cancel_requested_at"] is not None) == ("running", True)
    assert (second["status"], second["error_class"]) == ("cancelled", "replaced")
    assert _standing(third) == "waits"


async def test_of_two_triggers_that_replace_and_are_due_together_one_run_stays(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(triggers=[HOURLY, MINUTELY], next_fire_at=NOON, overlap="replace")
    await scheduler.once()
    await house.set_runs({"status": "queued"}, **running())
    clock.advance(hours=1)
    await scheduler.once()
    assert sorted(str(_standing(run)) for run in await house.ledger()) == ["cancelled", "cancelled", "running", "waits"]


def _standing(run: dict[str, object]) -> object:
    if run["status"] == "queued":
        return "ready" if run["ready_at"] else "waits"
    return run["skip_reason"] or run["status"]


async def test_two_triggers_of_one_automation_due_together_fill_one_lane(house: House, scheduler: Scheduler) -> None:
    await house.automation(triggers=[HOURLY, MINUTELY], next_fire_at=NOON)
    await scheduler.once()
    assert sorted(str(_standing(run)) for run in await house.ledger()) == ["prior_in_flight", "ready"]


async def test_a_trigger_that_cannot_be_evaluated_is_parked_with_its_error_and_the_others_fire(
    house: House, scheduler: Scheduler
) -> None:
    broken = await house.automation(HOURLY, next_fire_at=NOON)
    await house.execute("UPDATE triggers SET timezone = 'Mars/Olympus' WHERE automation_id = %s", broken)
    whole = await house.automation(HOURLY, next_fire_at=NOON)
    await scheduler.once()
    assert [run["automation_id"] for run in await house.ledger()] == [whole]
    assert "Mars/Olympus" in await house.value("SELECT parked_error FROM triggers WHERE automation_id = %s", broken)
    assert await house.value("SELECT next_fire_at FROM triggers WHERE automation_id = %s", broken) is None


@pytest.mark.parametrize("corruption", ["anchor_at = '-infinity'", "ends_at = 'infinity'", "jitter = '4000000 years'"])
async def test_a_row_that_cannot_even_be_read_is_parked_and_the_others_fire(
    house: House, scheduler: Scheduler, corruption: str
) -> None:
    broken = await house.automation(HOURLY, next_fire_at=NOON)
    await house.execute(f"UPDATE triggers SET {corruption} WHERE automation_id = %s", broken)
    whole = await house.automation(HOURLY, next_fire_at=NOON)
    await scheduler.once()
    assert [run["automation_id"] for run in await house.ledger()] == [whole]
    assert await house.value("SELECT parked_error FROM triggers WHERE automation_id = %s", broken)


async def test_what_cannot_be_written_and_is_no_triggers_fault_is_told_and_not_tried_again_at_once(
    house: House, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(conn: Connection, starts: Any) -> set[Any]:
        raise DataError("numeric field overflow")

    monkeypatch.setattr(starting, "start", start)
    await house.automation(HOURLY, next_fire_at=NOON)
    with pytest.raises(DataError, match="overflow"):
        await scheduler.once()
    assert await house.value("SELECT next_fire_at FROM triggers") == NOON


async def test_max_fires_counts_runs_and_then_the_trigger_rests(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(triggers=[{**HOURLY, "max_fires": 2}], next_fire_at=NOON, overlap="allow")
    for _ in range(4):
        await scheduler.once()
        clock.advance(hours=1)
    assert len(await house.ledger()) == 2
    assert await house.value("SELECT next_fire_at FROM triggers") is None


@pytest.mark.parametrize("why", ["agent_paused", "paused", "deleted", "grant_revoked", "grant_expired"])
async def test_a_run_that_is_skipped_after_it_was_fired_gives_its_fire_back(
    house: House, scheduler: Scheduler, why: str
) -> None:
    """Also one that is found so as it is claimed, by its grant."""
    given = [{**HOURLY, "max_fires": 1}, {"event": "go", "max_fires": 1}]
    automation = await house.automation(triggers=given, next_fire_at=NOON, overlap="allow")
    await house.execute("UPDATE triggers SET next_fire_at = NULL WHERE kind = 'event'")
    await scheduler.once()
    async with house.db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, None)
    assert await house.value("SELECT array_agg(fires) FROM triggers WHERE next_fire_at IS NULL") == [1, 1]
    async with house.db.transaction() as conn:
        match why:
            case "agent_paused":
                await agents.change(conn, house.caller, "worker-bee", {"status": "paused"})
            case "paused":
                await automations.pause(conn, house.caller, str(automation))
            case "deleted":
                await automations.delete(conn, house.caller, str(automation))
            case _:
                await conn.execute(
                    "UPDATE grants SET revoked_at = CASE WHEN %s THEN now() END, expires_at = now()",
                    [why == "grant_revoked"],
                )
                await _claim(conn)
    assert [run["skip_reason"] for run in await house.ledger()] == [why, why]
    if why == "paused":
        async with house.db.transaction() as conn:
            await automations.resume(conn, house.caller, str(automation))
    if why == "deleted":
        async with house.db.transaction() as conn:
            await automations.restore(conn, house.caller, str(automation))
    assert await house.value("SELECT array_agg(fires) FROM triggers") == [0, 0]
    assert await house.value("SELECT next_fire_at > now() FROM triggers WHERE kind = 'cron'")


async def _claim(conn: Connection) -> None:
    queues = Queues(["default"], ["command"])
    await queues.look(conn)
    ready = await queues.to_read(conn, 9)
    await claiming.claim(conn, WorkerId("w"), queues=ready, places=9, lease=timedelta(minutes=1))


async def test_a_fire_that_is_given_back_as_its_automation_is_paused_makes_nothing_due(
    house: House, scheduler: Scheduler
) -> None:
    """Provoked: the automation is paused, but that is not committed, when a worker refuses the run."""
    automation = await house.automation(triggers=[{**HOURLY, "max_fires": 1}], next_fire_at=NOON)
    await scheduler.once()
    await house.execute("UPDATE grants SET expires_at = now()")

    async def refuse() -> None:
        async with house.db.transaction() as conn:
            await _claim(conn)

    async with house.db.transaction() as pausing:
        await rows.set_status(pausing, house.caller.workspace_id, automation, "paused")
        await triggers.rest(pausing, house.caller.workspace_id, automation)
        refusing = asyncio.create_task(refuse())
        await until(lambda: house.value(WAITS))
    await refusing
    assert await house.value("SELECT fires FROM triggers WHERE next_fire_at IS NULL") == 0


async def test_a_slot_that_has_its_run_is_not_counted_again_when_its_trigger_is_set_back(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(triggers=[{**HOURLY, "max_fires": 2}], next_fire_at=NOON, overlap="allow")
    await scheduler.once()
    await house.execute("UPDATE triggers SET next_fire_at = %s", NOON)
    for _ in range(3):
        await scheduler.once()
        clock.advance(hours=1)
    assert [run["slot"] for run in await house.ledger()] == [NOON, NOON + timedelta(hours=1)]


AT_NINE = datetime(2026, 6, 1, 7, tzinfo=UTC)  # in Berlin, by the rules of today


@pytest.mark.parametrize(
    "schedule",
    [
        {"cron": "0 9 * * *"},
        {"cron": "0 9,15 * * 1-5"},
        {"every": "1d", "time": "09:00"},
    ],
)
@pytest.mark.parametrize(
    ("stored", "looked", "slots"),
    [
        pytest.param(-1, [-1, -0.5, 0], [0], id="it comes later now"),
        pytest.param(-1, [0.5], [0], id="it comes later now, and nobody looked in time"),
        pytest.param(1, [0, 1], [1], id="it comes earlier now"),
        pytest.param(0, [0], [0], id="it stays"),
    ],
)
async def test_a_slot_that_was_stored_before_its_zone_got_other_rules_fires_once(
    house: House, scheduler: Scheduler, clock: Clock, schedule: dict[str, Any],
    stored: int, looked: list[float], slots: list[int],
) -> None:  # fmt: skip
    await house.automation({**schedule, "timezone": "Europe/Berlin"}, next_fire_at=AT_NINE + timedelta(hours=stored))
    for hours in looked:
        clock.now = AT_NINE + timedelta(hours=hours)
        await scheduler.once()
    assert [(run["slot"], run["missed"]) for run in await house.ledger()] == [
        (AT_NINE + timedelta(hours=hours), None) for hours in slots
    ]
    assert await house.value("SELECT next_fire_at FROM triggers") > AT_NINE + timedelta(hours=2)


async def test_a_slot_that_comes_later_by_the_rules_of_today_is_not_passed_over_before(house: House) -> None:
    automation = await house.automation(
        {"cron": "0 9 * * *", "timezone": "Europe/Berlin"}, next_fire_at=AT_NINE - timedelta(hours=1)
    )
    until = AT_NINE - timedelta(minutes=30)
    async with house.db.transaction() as conn:
        await passing.record(conn, house.caller.workspace_id, automation, SkipReason.MISSED, until=until)
    assert await house.ledger() == []


async def test_nothing_fires_after_ends_at(house: House, scheduler: Scheduler, clock: Clock) -> None:
    ends = NOON.replace(year=2099) + timedelta(minutes=30)
    await house.automation(triggers=[{**HOURLY, "ends_at": ends}], next_fire_at=ends - timedelta(minutes=30))
    clock.now = ends + timedelta(hours=5)
    await scheduler.once()
    [run] = await house.ledger()
    assert (run["slot"], run["missed"]) == (ends - timedelta(minutes=30), None)


async def test_a_run_that_follows_its_agents_pause_is_skipped_and_says_why(house: House, scheduler: Scheduler) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await house.execute("UPDATE agents SET status = 'paused'")
    await scheduler.once()
    assert [_standing(run) for run in await house.ledger()] == ["agent_paused"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("revoked_at = now(), expires_at = now() - interval '1 day'", "grant_revoked"),
        ("expires_at = now() - interval '1 day'", "grant_expired"),
        ("scopes = '{agent:run:another}'", "grant_scope"),
    ],
)
async def test_a_grant_that_no_longer_holds_skips_the_slot_with_the_reason(
    house: House, scheduler: Scheduler, change: str, reason: str
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await house.execute(f"UPDATE grants SET {change}")
    await scheduler.once()
    assert [_standing(run) for run in await house.ledger()] == [reason]


async def test_after_an_outage_many_late_runs_start_over_a_span_of_time_with_their_slots_unchanged(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    for _ in range(10):
        await house.automation(HOURLY, next_fire_at=NOON)
    clock.advance(minutes=10)
    await scheduler.once()
    ledger = await house.ledger()
    starts = [(run["ready_at"] - clock.now).total_seconds() for run in ledger]
    assert {run["slot"] for run in ledger} == {NOON}
    assert all(0 <= start <= 30 for start in starts)
    assert max(starts) - min(starts) > 5


async def test_after_an_outage_a_triggers_own_jitter_is_not_cut_short(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    from rota.model.firing import jitter

    span = timedelta(hours=5)
    for _ in range(10):
        await house.automation(triggers=[{**HOURLY, "jitter": span}], next_fire_at=NOON)
    clock.advance(minutes=10)
    await scheduler.once()
    for run in await house.ledger():
        assert run["ready_at"] >= NOON + jitter(run["trigger_id"], NOON, span)


async def test_after_an_outage_schedules_of_seconds_are_spread_too(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    """Their latest slot is always recent, so that the first one that is due tells of the outage."""
    for _ in range(10):
        await house.automation({"every": "40s"}, next_fire_at=NOON)
    clock.advance(seconds=85)
    await scheduler.once()
    ledger = await house.ledger()
    assert {(clock.now - run["slot"]).total_seconds() for run in ledger} == {5}
    assert len({run["ready_at"] for run in ledger}) == 10
    assert all(clock.now <= run["ready_at"] <= clock.now + timedelta(seconds=30) for run in ledger)


async def test_runs_that_are_due_together_and_on_time_are_not_spread(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    for _ in range(10):
        await house.automation({"every": "40s"}, next_fire_at=NOON)
    clock.advance(seconds=4)
    await scheduler.once()
    assert {run["ready_at"] for run in await house.ledger()} == {clock.now}


async def test_the_log_names_each_fire_of_a_batch(
    house: House, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(tick, "FIRES_IN_A_LINE", 2)
    for _ in range(3):
        await house.automation(HOURLY, next_fire_at=NOON)
    await house.execute("UPDATE agents SET status = 'paused'")
    await scheduler.once()
    lines = [vars(record) for record in caplog.records if record.getMessage() == "trigger.fired"]
    fires = [fire for line in lines for fire in line["fires"]]
    ledger = await house.ledger()
    assert [len(line["fires"]) for line in lines] == [2, 1]
    assert {(line["triggers"], line["runs"], line["skipped"]) for line in lines} == {(3, 3, 3)}
    for fire, run in zip(sorted(fires, key=lambda fire: fire["run_id"]), ledger, strict=True):
        assert {name: fire[name] for name in ("trigger_id", "automation_id", "slot", "trace_id")} == {
            name: run[name] for name in ("trigger_id", "automation_id", "slot", "trace_id")
        }
        assert (fire["run_id"], fire["skipped"]) == (run["id"], "agent_paused")


async def test_a_few_late_runs_start_at_once(house: House, scheduler: Scheduler, clock: Clock) -> None:
    for _ in range(3):
        await house.automation(HOURLY, next_fire_at=NOON)
    clock.advance(minutes=10)
    await scheduler.once()
    assert {run["ready_at"] for run in await house.ledger()} == {clock.now}


async def test_jitter_moves_the_start_and_not_the_slot_and_is_the_same_for_every_replica(
    house: House, scheduler: Scheduler
) -> None:
    from rota.model.firing import jitter

    await house.automation(triggers=[{**HOURLY, "jitter": timedelta(minutes=5)}], next_fire_at=NOON)
    await scheduler.once()
    [run] = await house.ledger()
    assert run["ready_at"] == NOON + jitter(run["trigger_id"], NOON, timedelta(minutes=5))
    assert run["slot"] == NOON
    assert NOON < run["ready_at"] < NOON + timedelta(minutes=5)


async def test_a_clock_that_steps_back_around_a_slot_fires_it_once(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    for step in (0, -90, 30, -1, 0.5, 60):
        clock.now = NOON + timedelta(seconds=step)
        await scheduler.once()
    assert len(await house.ledger()) == 1


async def test_a_slot_that_has_its_run_gets_no_second_one_when_its_trigger_is_set_back(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    """The UNIQUE alone: the row lock cannot help when a trigger is set back by hand."""
    await house.automation(HOURLY, next_fire_at=NOON, overlap="allow")
    await scheduler.once()
    await house.execute("UPDATE triggers SET next_fire_at = %s", NOON)
    await scheduler.once()
    assert len(await house.ledger()) == 1
    assert await house.value("SELECT count(*) FROM sessions") == 1
    assert await house.value("SELECT count(*) FROM events") == 1
    assert await house.value("SELECT next_fire_at FROM triggers") == NOON + timedelta(hours=1)
