"""Workers that die, freeze or are murdered by their agents: nothing is lost, nothing is done twice, nothing is stuck."""

import signal

import psutil
import pytest

from support.fleet import Fleet
from support.waiting import until

# The first attempt goes on for ever; later ones come to an end. Each leaves its number, and says if it met another. That is
# told by a lock: in a sandbox process numbers mean nothing to others.
LASTING = """
echo "$ROTA_ATTEMPT $ROTA_IDEMPOTENCY_KEY" >> $evidence/begun
exec 9>> $evidence/lock
flock --nonblock 9 || echo met >> $evidence/met
if [ "$ROTA_ATTEMPT" -gt 1 ]; then
    echo "Done by $ROTA_ATTEMPT"; exit
fi
echo $$ > $evidence/pid
while :; do echo "I am attempt $ROTA_ATTEMPT"; sleep 0.05; done
"""


async def test_a_worker_killed_mid_run_takes_its_agent_along_and_the_run_goes_on_elsewhere(fleet: Fleet) -> None:
    run_id = await fleet.run(await fleet.agent("lasting", LASTING))
    worker = fleet.start("worker")
    await fleet.at_work(run_id)
    [agent] = fleet.agents("pid")
    worker.process.kill()
    async with fleet.helping():
        assert await fleet.ended(run_id) == "succeeded"
        await fleet.keeps_its_promises()
    run = await fleet.find_run()
    assert (run["attempt"], run["rescues"], run["tries"]) == (2, 1, 0)
    assert not psutil.pid_exists(agent)
    assert fleet.evidence("met") == []
    assert fleet.evidence("begun") == ["1", str(run_id), "2", str(run_id)]  # with the same idempotency key


@pytest.mark.parametrize(
    ("failpoint", "attempts"),
    [("worker.claimed", 2), ("worker.executed", 2), ("worker.written", 2), ("worker.settled", 1)],
)
async def test_a_worker_killed_between_its_agents_success_and_the_commit_or_beside_it(
    fleet: Fleet, failpoint: str, attempts: int
) -> None:
    run_id = await fleet.run(await fleet.agent("quick", 'echo "$ROTA_ATTEMPT" >> $evidence/begun; echo Done'))
    worker = fleet.start("worker", ROTA_TEST_FAILPOINT=failpoint)
    assert worker.ended() == -signal.SIGKILL
    assert (await fleet.find_run())["status"] == ("succeeded" if attempts == 1 else "running")
    async with fleet.helping():
        assert await fleet.ended(run_id) == "succeeded"
        await fleet.keeps_its_promises()
    run = await fleet.find_run()
    assert (run["attempt"], run["rescues"]) == (attempts, attempts - 1)
    assert fleet.evidence("begun") == {1: ["1"], 2: ["2"] if failpoint == "worker.claimed" else ["1", "2"]}[attempts]


async def test_nothing_of_a_worker_that_was_frozen_past_its_lease_is_accepted(fleet: Fleet) -> None:
    run_id = await fleet.run(await fleet.agent("lasting", LASTING))
    zombie = fleet.start("worker")
    await fleet.at_work(run_id)
    [agent] = fleet.agents("pid")
    zombie.process.send_signal(signal.SIGSTOP)
    async with fleet.helping():
        assert await fleet.ended(run_id) == "succeeded"
    zombie.process.send_signal(signal.SIGCONT)
    zombie.wait_for("run.lost")
    await until(lambda: _gone(agent))
    second = await fleet.run(await fleet.agent("quick", "echo Done"))
    assert await fleet.ended(second) == "succeeded"  # it is a worker like any other again
    assert zombie.stop() == 0  # whatever it still had to say is said now
    await fleet.keeps_its_promises()
    run = await fleet.find_run(run_id)
    assert (run["attempt"], run["rescues"], run["summary"]) == (2, 1, "Done by 2")
    last = "SELECT data ->> 'status' FROM events WHERE run_id = %s ORDER BY seq DESC LIMIT 1"
    assert await fleet.ask(last, run_id) == "succeeded"


async def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


# Above an agent are its launcher, the nursery that forked it, and the worker.
FIND_WORKER = "nursery=$(cut -d ' ' -f 4 /proc/$PPID/stat); worker=$(cut -d ' ' -f 4 /proc/$nursery/stat)"


async def test_an_agent_that_kills_its_worker_every_time_is_not_tried_for_ever(fleet: Fleet) -> None:
    murder = f'{FIND_WORKER}; echo "$ROTA_ATTEMPT" >> $evidence/begun; kill -9 $worker; sleep 60'
    run_id = await fleet.run(await fleet.agent("murderer", murder), max_rescues=1)
    other = await fleet.run(await fleet.agent("quick", "sleep 0.3; echo Done"), max_rescues=10)
    for _ in range(2):
        victim = fleet.start("worker,watch", ROTA_MAX_CONCURRENT="1", ROTA_SANDBOX="off")  # else it could not
        assert victim.ended() == -signal.SIGKILL
    fleet.start("worker,watch", ROTA_MAX_CONCURRENT="1")
    assert await fleet.ended(run_id) == "failed"
    assert await fleet.ended(other) == "succeeded"
    await fleet.keeps_its_promises()
    run = await fleet.find_run(run_id)
    assert (run["attempt"], run["rescues"], run["error_class"]) == (2, 1, "stalled")
    assert fleet.evidence("begun") == ["1", "2"]


async def test_a_cancelled_run_whose_worker_is_dead_ends_cancelled(fleet: Fleet) -> None:
    run_id = await fleet.run(await fleet.agent("lasting", LASTING))
    worker = fleet.start("worker")
    await fleet.at_work(run_id)
    worker.process.kill()
    await fleet.cancel_unheard()
    async with fleet.helping():
        assert await fleet.ended(run_id) == "cancelled"
        await fleet.keeps_its_promises()
    assert fleet.evidence("begun")[::2] == ["1"]


SPY = f"""{FIND_WORKER}
tr "\\0" "\\n" < /proc/$worker/environ > $evidence/environ 2> $evidence/refused
cat /proc/$PPID/environ /proc/$nursery/environ | tr "\\0" "\\n" >> $evidence/environ
tr "\\0" "\\n" < /proc/$worker/cmdline >> $evidence/environ
echo looked
"""


async def test_an_agent_that_looks_into_its_worker_finds_no_database(fleet: Fleet) -> None:
    """Not even without a sandbox. In one it does not see its worker: `process/test_escapes.py`."""
    run_id = await fleet.run(await fleet.agent("spy", SPY))
    fleet.start("worker", ROTA_SANDBOX="off")
    assert await fleet.ended(run_id) == "succeeded"
    found = "\n".join(fleet.evidence("environ"))
    assert "serve" in found  # it did look
    assert "dbname" not in found
    assert fleet.url not in found


async def test_a_second_signal_does_not_wait_for_the_grace_and_hands_back_what_runs(fleet: Fleet) -> None:
    run_id = await fleet.run(await fleet.agent("lasting", LASTING))
    worker = fleet.start("worker", ROTA_GRACE_SECONDS="600")
    await fleet.at_work(run_id)
    worker.process.terminate()
    worker.wait_for("rota.stopping")
    assert (await fleet.find_run())["status"] == "running"  # it may finish
    worker.process.terminate()
    assert worker.ended() == 0
    run = await fleet.find_run()
    assert (run["status"], run["attempt"], run["tries"], run["rescues"]) == ("queued", 1, 0, 0)
    async with fleet.helping():
        assert await fleet.ended(run_id) == "succeeded"
        await fleet.keeps_its_promises()


async def test_what_is_replaced_ends_through_its_executor_while_its_successor_waits_in_the_lane(fleet: Fleet) -> None:
    await fleet.agent(
        "stubborn", "trap 'echo asked >> $evidence/told; sleep 0.3; exit' TERM\n" + LASTING.replace("-gt 1", "-gt 9")
    )
    await fleet.house.automation({"event": "go"}, agent="stubborn", overlap="replace")
    fleet.start("worker")
    first = await fleet.publish("go")
    await fleet.at_work(first)
    second = await fleet.publish("go")
    assert (await fleet.find_run(second))["ready_at"] is None
    assert await fleet.ended(first) == "cancelled"
    replaced = await fleet.find_run(first)
    assert replaced["error_class"] == "replaced"
    await fleet.at_work(second)
    assert fleet.evidence("told") == ["asked"]
    assert replaced["finished_at"] <= (await fleet.find_run(second))["ready_at"]
    third = await fleet.publish("go")
    assert await fleet.ended(second) == "cancelled"
    await fleet.cancel_unheard(id=third)
    assert await fleet.ended(third) == "cancelled"
    await fleet.keeps_its_promises()
