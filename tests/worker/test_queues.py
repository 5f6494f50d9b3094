"""Who is claimed next: fair between workspaces, within caps, in order of priority, only what this worker serves."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from rota.db.listener import RUNS, Wakes
from rota.db.pool import Connection, Database
from rota.model.executor import Assignment, Desk
from rota.model.ids import WorkerId
from rota.model.outcome import Succeeded
from rota.roster import agents, running
from rota.runs import claiming
from rota.sessions import chat
from rota.worker.queues import Queues
from rota.worker.turns import MOST_AT_ONCE
from support import live_run_tables
from support.house import House
from support.run_state import from_now
from support.waiting import until

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def run_agent(house: House, agent: str = "worker-bee") -> Any:
    async with house.db.transaction() as conn:
        return await running.run_agent(conn, house.caller, agent, {"prompt": "go"})


async def second_house(house: House, slug: str = "other") -> House:
    """Another workspace with its own agent."""
    from rota.roster.first_start import settle_in

    async with house.db.transaction() as conn:
        other = House(house.db, (await settle_in(conn, slug)).caller)
        await agents.create(conn, other.caller, {"name": "Other", "executor": "command", "config": {"argv": ["true"]}})
    return other


async def claim(conn: Connection, places: int = 5, *, queues: Queues | None = None) -> list[Any]:
    queues = Queues(["default"], ["command", "python"]) if queues is None else queues
    await queues.look(conn)
    to_read = await queues.to_read(conn, places)
    return await claiming.claim(conn, WorkerId("w"), queues=to_read, places=places, lease=timedelta(minutes=1))


async def test_a_long_queue_of_one_workspace_does_not_delay_anothers_single_run(house: House, db: Database) -> None:
    await run_agent(house)
    await house.copy_run(3000)
    other = await second_house(house)
    single = await run_agent(other, "other")
    await house.set_runs(priority=2)  # none is more urgent than the other
    async with db.transaction() as conn:
        claimed = await claim(conn, places=2)
    assert single in [run.id for run in claimed]


async def test_what_people_wait_for_comes_before_what_a_schedule_started(house: House, db: Database) -> None:
    await run_agent(house)
    await house.copy_run(20)
    chat = await run_agent(house)
    await house.set_run(chat, priority=0)
    async with db.transaction() as conn:
        claimed = await claim(conn, places=3)
    assert [run.priority for run in sorted(claimed, key=lambda run: run.priority)] == [0, 1, 2]


async def test_what_people_wait_for_also_comes_before_what_another_workspace_has_waited_with_for_longer(
    house: House, db: Database
) -> None:
    other = await second_house(house)
    for _ in range(2):
        await run_agent(house)
    await house.set_runs(priority=2)
    chats = [await run_agent(other, "other") for _ in range(2)]
    async with db.transaction() as conn:
        claimed = await claim(conn, places=3)
    assert {run.id for run in claimed} >= set(chats)


async def test_what_is_to_begin_later_is_not_claimed_whatever_its_mirror_says(house: House, db: Database) -> None:
    """As a claim sees it that began before the run was taken, failed, and was put off."""
    await run_agent(house)
    await house.set_run(ready_at=from_now(hours=1))
    async with db.connection() as conn:
        await live_run_tables.make_ready(conn)
    async with db.transaction() as conn:
        assert await claim(conn) == []


async def test_an_agent_runs_no_more_at_once_than_its_cap(house: House, db: Database) -> None:
    async with db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 2})
    for _ in range(5):
        await run_agent(house)
    async with db.transaction() as conn:
        assert len(await claim(conn, places=10)) == 2
    async with db.transaction() as conn:
        assert len(await claim(conn, places=10)) == 0


async def test_who_is_parked_does_not_make_its_agent_look_full(house: House, db: Database) -> None:
    async with db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
    parked, ready = [await run_agent(house) for _ in range(2)]
    await house.set_run(parked, status="awaiting_approval", attempt=1)
    async with db.transaction() as conn:
        assert [run.id for run in await claim(conn)] == [ready]


async def test_two_workers_at_once_do_not_fill_one_gap_twice(house: House, db: Database) -> None:
    """Provoked: the second claims while the first has claimed but not committed."""
    async with db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
    for _ in range(2):
        await run_agent(house)
    async with db.transaction() as first:
        assert len(await claim(first)) == 1
        async with db.transaction() as second:
            assert len(await claim(second)) == 0


CAPPED = {"agents": "UPDATE agents SET max_concurrent = 2", "workspaces": "UPDATE workspaces SET max_concurrent = 2"}


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Whether a worker has found that there is nothing for it."""
    looked, exhausted = asyncio.Event(), Queues.exhausted

    def look(queues: Queues) -> None:
        exhausted(queues)
        looked.set()

    monkeypatch.setattr(Queues, "exhausted", look)
    return looked


@pytest.fixture
async def late(shift: Any, looked: asyncio.Event) -> Any:
    """A worker that comes while another claims: it gets nothing until that is done, and then begins."""

    @asynccontextmanager
    async def come(other: AbstractAsyncContextManager[Connection]) -> AsyncIterator[Connection]:
        begun = asyncio.Event()

        async def begin(assignment: Assignment, desk: Desk) -> Succeeded:
            begun.set()
            return Succeeded("Done.")

        async with AsyncExitStack() as stack:
            async with other as conn:
                yield conn
                await stack.enter_async_context(shift(begin, poll=3600.0))
                await looked.wait()
                assert not begun.is_set()
            async with asyncio.timeout(10):
                await begun.wait()

    return come


@pytest.mark.parametrize("capped", CAPPED)
async def test_who_found_another_worker_claiming_for_what_is_capped_looks_again_soon(
    house: House, db: Database, late: Any, capped: str
) -> None:
    """Provoked: the other holds what is capped, and leaves the run to those who have a place."""
    await house.execute(CAPPED[capped])
    await run_agent(house)
    async with late(db.transaction()) as other:
        await other.execute(f"SELECT FROM {capped} FOR NO KEY UPDATE".encode())


async def test_who_found_all_that_waits_chosen_from_by_another_worker_looks_again_soon(
    house: House, db: Database, late: Any
) -> None:
    """Provoked: the other has two places, has chosen from two runs of each workspace, and has not committed yet."""
    second = await second_house(house)
    for _ in range(2):
        await run_agent(house)
        await run_agent(second, "other")
    async with late(db.transaction()) as other:
        assert len(await claim(other, places=2)) == 2


@pytest.mark.parametrize("queues", [1, 2])
async def test_a_workspace_runs_no_more_at_once_than_its_cap(house: House, db: Database, queues: int) -> None:
    for number in range(6):
        await house.set_run(await run_agent(house), priority=number % queues)
    await house.execute("UPDATE workspaces SET max_concurrent = 3")
    async with db.transaction() as conn:
        assert len(await claim(conn, places=10)) == 3


@pytest.mark.parametrize("queues", [1, 2])
async def test_who_has_not_seen_that_a_workspace_was_capped_claims_nothing_there(
    house: House, db: Database, queues: int
) -> None:
    for number in range(2):
        await house.set_run(await run_agent(house), priority=number % queues)
    known = Queues(["default"], ["command"])
    async with db.transaction() as conn:
        await known.look(conn)
        await house.execute("UPDATE workspaces SET max_concurrent = 1")
        to_read = await known.to_read(conn, 5)
        assert len(to_read) == queues
        assert await claiming.claim(conn, WorkerId("w"), queues=to_read, places=5, lease=timedelta(minutes=1)) == []


async def test_a_capped_agents_backlog_does_not_hide_the_runs_of_others(house: House, db: Database) -> None:
    async with db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
        await agents.create(conn, house.caller, {"name": "Free", "executor": "command", "config": {"argv": ["true"]}})
    await run_agent(house)
    await house.copy_run(500)
    free = await run_agent(house, "free")
    async with db.transaction() as conn:
        claimed = await claim(conn, places=5)
    assert len(claimed) == 2
    assert free in [run.id for run in claimed]


async def test_a_cap_that_is_set_later_holds_for_what_already_waits(house: House, db: Database) -> None:
    for _ in range(3):
        await run_agent(house)
    async with db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
    async with db.transaction() as conn:
        assert len(await claim(conn)) == 1


async def test_a_turn_that_is_written_as_its_agent_is_capped_is_held_to_the_cap(house: House, db: Database) -> None:
    """Provoked: it is written but not committed when the agent is capped."""
    async with db.transaction() as conn:
        await running.run_agent(conn, house.caller, "worker-bee", {"prompt": "go"})
    session_id = (await house.run())["session_id"]

    async def cap() -> None:
        async with db.transaction() as conn:
            await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})

    async with db.transaction() as coming:
        run_id = await chat.turn(coming, house.caller, session_id, prompt="And then?")
        capping = asyncio.create_task(cap())
        await until(lambda: house.value(WAITS))
    await capping
    run = await house.run(run_id)
    assert run["queue"] == run["agent_id"]


async def test_what_waits_for_an_agent_that_was_capped_while_it_ran_begins_when_it_has_room(
    house: House, db: Database, shift: Any, wakes: Wakes
) -> None:
    """Not only when somebody looks everywhere again: what runs came from another queue."""
    gate = asyncio.Event()

    async def work(assignment: Assignment, desk: Desk) -> Succeeded:
        await gate.wait()
        return Succeeded("Done.")

    async with shift(work, poll=3600.0) as at_work:
        await run_agent(house)
        wakes.send(RUNS)
        await until(lambda: house.has_runs(1, status="running"))
        async with db.transaction() as conn:
            await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
        await run_agent(house)
        wakes.send(RUNS, [house.caller.workspace_id])
        await until(lambda: house.value("SELECT full_at IS NOT NULL FROM agents"))  # it was seen, and has no room
        gate.set()
        await until(lambda: house.has_runs(2, status="succeeded"))
        assert at_work.worker.busy == 0


async def test_a_run_that_comes_as_its_agent_is_no_longer_capped_is_claimed(house: House, db: Database) -> None:
    """Provoked: it is written but not committed when the cap is taken away, and what waits goes to the other queue."""
    async with db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
    async with db.transaction() as coming:
        for _ in range(3):
            await running.run_agent(coming, house.caller, "worker-bee", {"prompt": "go"})
        async with db.transaction() as conn:
            await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": None})
    async with db.transaction() as conn:
        assert len(await claim(conn)) == 3


async def test_only_the_pools_and_kinds_that_a_worker_serves_are_claimed(house: House, db: Database) -> None:
    await run_agent(house)
    async with db.transaction() as conn:
        assert await claim(conn, queues=Queues(["gpu"], ["command"])) == []
        assert await claim(conn, queues=Queues(["default"], ["python"])) == []
        assert len(await claim(conn, queues=Queues(["default"], ["command"]))) == 1


async def test_two_workers_never_claim_the_same_run(house: House, db: Database) -> None:
    await run_agent(house)
    await house.copy_run(199)

    async def take() -> list[Any]:
        taken = []
        while True:
            async with db.transaction() as conn:
                claimed = await claim(conn, places=7)
            taken += [run.id for run in claimed]
            if not claimed:
                return taken

    taken = [run for each in await asyncio.gather(*(take() for _ in range(4))) for run in each]
    assert len(taken) == len(set(taken)) == 200


async def test_a_run_that_was_committed_late_behind_the_place_of_reading_is_still_found(
    house: House, db: Database
) -> None:
    queues = Queues(["default"], ["command"])
    await run_agent(house)
    async with db.transaction() as conn:
        queues.claimed(await claim(conn, queues=queues))
    late = await run_agent(house)
    await house.set_run(late, ready_at=(await house.run(late))["ready_at"] - timedelta(seconds=4))
    queues.hint(house.caller.workspace_id)
    async with db.transaction() as conn:
        await queues.follow_hints(conn)
        to_read = await queues.to_read(conn, 5)
        assert to_read[0]["since"] != "-infinity"
        claimed = await claiming.claim(conn, WorkerId("w"), queues=to_read, places=5, lease=timedelta(minutes=1))
    assert [run.id for run in claimed] == [late]


async def test_an_old_backlog_behind_the_place_of_reading_is_found_by_the_next_full_look(
    house: House, db: Database
) -> None:
    queues = Queues(["default"], ["command"])
    await run_agent(house)
    async with db.transaction() as conn:
        queues.claimed(await claim(conn, queues=queues))
    old = await run_agent(house)
    await house.set_run(old, ready_at=from_now(hours=-1))
    async with db.transaction() as conn:
        assert [run.id for run in await claim(conn, queues=queues)] == [old]


async def street(house: House, runs: int) -> list[House]:
    """Four workspaces in which this many runs wait."""
    houses = [await second_house(house, f"house-{number}") for number in range(4)]
    for _ in range(runs):
        for each in houses:
            await run_agent(each, "other")
    return houses


async def take(conn: Connection, queues: Queues, places: int) -> tuple[list[dict[str, Any]], list[Any]]:
    """What one claim read, and what it took."""
    async with conn.transaction():
        to_read = await queues.to_read(conn, places)
        claimed = await claiming.claim(conn, WorkerId("w"), queues=to_read, places=places, lease=timedelta(minutes=1))
    queues.claimed(claimed)
    return to_read, claimed


async def take_turn(conn: Connection, queues: Queues, places: int) -> list[Any]:
    read, claimed = await take(conn, queues, places)
    assert len({row["workspace_id"] for row in read}) <= places
    return [run.workspace_id for run in claimed]


async def test_where_more_workspaces_wait_than_there_are_places_nobody_comes_twice_before_all_came(
    house: House, db: Database
) -> None:
    houses = {each.caller.workspace_id for each in await street(house, runs=3)}
    queues = Queues(["default"], ["command"])
    async with db.connection() as conn:
        await queues.look(conn)
        assert {*await take_turn(conn, queues, 2), *await take_turn(conn, queues, 2)} == houses
        first = await take_turn(conn, queues, 2)
        await queues.look(conn)  # who waits for a turn keeps it
        assert {*first, *await take_turn(conn, queues, 2)} == houses


async def test_who_has_given_all_is_not_asked_again_and_who_has_more_is(house: House, db: Database) -> None:
    long, *short = await street(house, runs=1)
    for _ in range(4):
        await run_agent(long, "other")
    queues = Queues(["default"], ["command"])
    async with db.connection() as conn:
        await queues.look(conn)
        assert sorted(await take_turn(conn, queues, 4)) == sorted(each.caller.workspace_id for each in (long, *short))
        assert await take_turn(conn, queues, 3) == [long.caller.workspace_id] * 3
        assert queues
        assert await take_turn(conn, queues, 3) == [long.caller.workspace_id]
    assert not queues


async def capped_agents(house: House, count: int, *, runs: int, cap: int = 1) -> None:
    """Each with this many runs that wait."""
    async with house.db.transaction() as conn:
        for number in range(count):
            body = {
                "name": f"Agent {number}",
                "executor": "command",
                "config": {"argv": ["true"]},
                "max_concurrent": cap,
            }
            await agents.create(conn, house.caller, body)
            for _ in range(runs):
                await running.run_agent(conn, house.caller, f"agent-{number}", {"prompt": "go"})


async def take_from_agents(conn: Connection, queues: Queues, places: int) -> list[Any]:
    read, claimed = await take(conn, queues, places)
    assert len(read) <= MOST_AT_ONCE
    return [run.agent_id for run in claimed]


async def test_of_many_capped_agents_all_are_claimed_from_though_each_claim_reads_a_few(
    house: House, db: Database
) -> None:
    await capped_agents(house, MOST_AT_ONCE * 2, runs=2, cap=2)
    queues = Queues(["default"], ["command"])
    async with db.connection() as conn:
        await queues.look(conn)
        taken = Counter([agent for _ in range(8) for agent in await take_from_agents(conn, queues, 8)])
    assert list(taken.values()) == [2] * 32


async def test_capped_agents_take_turns_and_those_that_share_a_queue_come_with_every_claim(
    house: House, db: Database
) -> None:
    await run_agent(house)
    await capped_agents(house, MOST_AT_ONCE * 2, runs=1)
    queues, shared = Queues(["default"], ["command"]), house.caller.workspace_id
    async with db.connection() as conn:
        await queues.look(conn)
        turns = []
        for _ in range(3):
            async with conn.transaction():
                turns.append({row["queue"] for row in await queues.to_read(conn, 2)})
            queues.claimed([])
    assert turns[0] & turns[1] == {shared}
    assert turns[0] == turns[2]


async def test_an_agent_that_is_full_is_not_read_again_before_it_has_room(house: House, db: Database) -> None:
    await capped_agents(house, 1, runs=2)
    queues = Queues(["default"], ["command"])
    async with db.connection() as conn:
        await queues.look(conn)
        assert len(await take_from_agents(conn, queues, 1)) == 1
        assert not queues
        await queues.look(conn)
        assert not queues
        assert await house.value("SELECT full_at > now() - interval '1 minute' FROM agents WHERE slug = 'agent-0'")
        await house.set_runs({"status": "running"}, status="succeeded", finished_at=from_now())
        queues.hint(house.caller.workspace_id)
        await queues.guess(conn)
        assert len(await take_from_agents(conn, queues, 5)) == 1


async def test_a_hint_of_a_workspace_with_many_capped_agents_looks_there_at_once_but_not_all_the_time(
    house: House, db: Database
) -> None:
    await capped_agents(house, MOST_AT_ONCE + 1, runs=1)
    queues = Queues(["default"], ["command"])
    async with db.connection() as conn:
        await queues.look(conn)
        while await take_from_agents(conn, queues, 5):
            pass
        await run_agent(house)
        queues.hint(house.caller.workspace_id)
        await queues.guess(conn)
        assert (bool(queues), queues.hinted) == (True, False)
        queues.hint(house.caller.workspace_id)
        await queues.guess(conn)
        assert queues.hinted  # it is looked at when there is a place left, or a little later
        await queues.follow_hints(conn)
        assert not queues.hinted


async def test_a_capped_workspace_that_is_full_is_not_read_again_and_one_that_is_not_is(
    house: House, db: Database
) -> None:
    for _ in range(5):
        await run_agent(house)
    await house.execute("UPDATE workspaces SET max_concurrent = 4")
    queues = Queues(["default"], ["command"])
    async with db.connection() as conn:
        await queues.look(conn)
        assert len(await take_from_agents(conn, queues, 2)) == 2
        assert queues
        assert len(await take_from_agents(conn, queues, 3)) == 2
    assert not queues


@pytest.mark.parametrize("ready", [0, 1], ids=["all later", "one at once"])
async def test_runs_that_are_queued_for_later_begin_when_it_is_their_time(
    house: House, wakes: Wakes, shift: Any, ready: int
) -> None:
    """Not at the next look around, which is a minute away."""
    apart = timedelta(milliseconds=300)
    async with shift(doing_nothing, poll=60.0):
        await house.queue_runs(4, first=(1 - ready) * apart, apart=apart)
        wakes.send("rota_runs", [house.caller.workspace_id])
        await until(lambda: house.has_runs(4, status="succeeded"))
    late = max(run["started_at"] - run["ready_at"] for run in await house.runs())
    assert late < timedelta(seconds=10)


async def test_a_run_whose_time_comes_during_a_pass_is_not_left_until_the_next_look(
    house: House, shift: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shift(doing_nothing, poll=60.0) as at_work:
        monkeypatch.setattr(Queues, "seconds_until_ready", lambda _: 0.0)
        assert await at_work.worker.once() < 0.1


async def doing_nothing(_assignment: Assignment, _desk: Desk) -> Succeeded:
    return Succeeded("Done.")


@pytest.mark.parametrize(("places", "queued", "seconds"), [(5, 1000, 0.0), (5, 1000, 0.005), (250, 3000, 0.0)])
@pytest.mark.parametrize("newcomer", ["of another workspace", "more urgent"])
async def test_who_comes_while_many_short_runs_wait_is_heard_long_before_the_last_of_them(
    house: House, shift: Any, wakes: Wakes, newcomer: str, places: int, queued: int, seconds: float
) -> None:
    """There is always a free place, or never one: either way somebody looks who came."""
    await house.queue_runs(queued)
    other = await second_house(house) if newcomer == "of another workspace" else house
    begun: list[Any] = []
    busy = asyncio.Event()

    async def work(assignment: Assignment, desk: Desk) -> Succeeded:
        begun.append(assignment.run_id)
        if len(begun) == 50:
            busy.set()
        if seconds:
            await asyncio.sleep(seconds)
        return Succeeded("Done.")

    async with shift(work, places=places):
        await busy.wait()
        run_id = await run_agent(other, "worker-bee" if other is house else "other")
        wakes.send("rota_runs", [other.caller.workspace_id])
        before = len(begun)
        await until(lambda: asyncio.sleep(0, run_id in begun))
    assert begun.index(run_id) - before < queued / 2
