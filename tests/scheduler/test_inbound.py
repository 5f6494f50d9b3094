"""Webhooks, events and the ends of other runs fire their triggers, each message once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest

from rota.access.vault import open_vault
from rota.db import triggers as trigger_rows
from rota.db.listener import RUNS, Listener, Wakes
from rota.errors import Broken, Invalid, NotFound, Unauthenticated
from rota.model.ids import RunId
from rota.model.webhook import sign
from rota.roster import automations, triggers
from rota.runs import cancelling
from rota.scheduler.inbound import publish_event, receive_webhook
from support.house import House
from support.run_state import running
from support.waiting import until


async def publish(
    house: House, event: str, data: Any = None, key: str | None = None
) -> Mapping[tuple[UUID, str], RunId]:
    async with house.db.transaction() as conn:
        return await publish_event(conn, house.caller, event, data, key)


async def end_all(house: House) -> None:
    """Cancel whatever is queued."""
    for run in await house.ledger():
        if run["status"] == "queued":
            async with house.db.transaction() as conn:
                await cancelling.cancel(conn, house.caller.workspace_id, run["id"])


async def test_an_event_fires_every_trigger_that_waits_for_it_with_its_data(house: House) -> None:
    first = await house.automation({"event": "invoice.paid"})
    second = await house.automation({"event": "invoice.paid"})
    await house.automation({"event": "invoice.lost"})
    await publish(house, "invoice.paid", {"amount": 12})
    ledger = await house.ledger()
    assert {run["automation_id"] for run in ledger} == {first, second}
    assert {run["source"] for run in ledger} == {"event"}
    assert ledger[0]["payload"] == {"event": "invoice.paid", "data": {"amount": 12}}
    assert ledger[0]["slot"] is None


async def test_an_event_with_the_key_of_an_earlier_one_is_the_same_event(house: House) -> None:
    await house.automation({"event": "ping"})
    first = await publish(house, "ping", key="k1")
    assert await publish(house, "ping", key="k1") == first
    await publish(house, "ping", key="k2")
    assert len(await house.ledger()) == 2


async def test_of_two_triggers_that_replace_and_hear_the_same_event_one_run_stays(house: House) -> None:
    await house.automation(triggers=[{"event": "ping"}, {"event": "ping", "max_fires": 9}], overlap="replace")
    await publish(house, "ping")
    await house.set_runs({"status": "queued"}, **running())
    await publish(house, "ping")
    assert sorted(run["status"] for run in await house.ledger()) == ["cancelled", "cancelled", "queued", "running"]


async def test_two_requests_with_one_key_at_the_same_time_make_one_run(house: House) -> None:
    """Provoked: the second waits on the automation's lock until the first commits, then finds its run."""
    await house.automation({"event": "ping"})
    async with house.db.transaction() as conn:
        first = await publish_event(conn, house.caller, "ping", None, "k")
        second = asyncio.create_task(publish(house, "ping", key="k"))
        await _until_somebody_waits_for_a_lock(house)
    assert await second == first
    assert len(await house.ledger()) == 1


@pytest.mark.parametrize(
    ("change", "started"),
    [
        ("triggers SET enabled = false", []),
        ("automations SET deleted_at = now()", []),
        ("automations SET status = 'paused'", ["paused"]),
    ],
)
async def test_an_event_that_waited_for_a_change_of_its_automation_heeds_it(
    house: House, change: str, started: list[str]
) -> None:
    """Provoked: who waits for the event was looked up before the change was committed."""
    await house.automation({"event": "ping"})
    async with house.db.transaction() as conn:
        await conn.execute("SELECT FROM automations FOR NO KEY UPDATE")
        arriving = asyncio.create_task(publish(house, "ping"))
        await _until_somebody_waits_for_a_lock(house)
        await conn.execute(f"UPDATE {change}".encode())
    await arriving
    assert [run["skip_reason"] for run in await house.ledger()] == started


async def _until_somebody_waits_for_a_lock(house: House) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: house.value(query))


async def test_events_queue_behind_each_other_by_default_and_none_is_lost(house: House) -> None:
    await house.automation({"event": "ping"})
    for number in range(5):
        await publish(house, "ping", number)
    ledger = await house.ledger()
    assert [run["status"] for run in ledger] == ["queued"] * 5
    assert [run["ready_at"] is not None for run in ledger] == [True, False, False, False, False]


async def test_a_triggers_own_overlap_wins_over_its_automations(house: House) -> None:
    await house.automation(triggers=[{"event": "ping", "overlap": "skip"}], overlap="queue_all")
    await publish(house, "ping")
    await publish(house, "ping")
    assert [run["skip_reason"] for run in await house.ledger()] == [None, "prior_in_flight"]


async def test_an_event_for_a_paused_automation_is_in_the_ledger_as_skipped(house: House) -> None:
    automation = await house.automation({"event": "ping"})
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, str(automation))
    await publish(house, "ping")
    assert [run["skip_reason"] for run in await house.ledger()] == ["paused"]


@pytest.mark.parametrize(("limit", "fired"), [("starts_at", [0, 1]), ("ends_at", [1, 1])])
async def test_an_event_fires_only_between_the_limits_of_its_trigger(
    house: House, limit: str, fired: list[int]
) -> None:
    await house.automation({"event": "ping"})
    for hours, count in zip(("1 hour", "-1 hour"), fired, strict=True):
        await house.execute(f"UPDATE triggers SET {limit} = now() + %s::interval", hours)
        await publish(house, "ping")
        assert len(await house.ledger()) == count


async def test_an_event_with_a_bad_name_is_refused(house: House) -> None:
    with pytest.raises(Invalid) as refused:
        await publish(house, "no spaces please")
    assert (refused.value.code, refused.value.field) == ("invalid_event", "event")


async def _hook(house: House, tmp_path: Path) -> tuple[Any, Any, str]:
    vault = open_vault(tmp_path)
    automation = await house.automation({"webhook": {}})
    async with house.db.transaction() as conn:
        [row] = await trigger_rows.of_automations(conn, house.caller.workspace_id, [automation])
        secret = await triggers.new_secret(conn, vault, house.caller.workspace_id, row["id"])
    return vault, row["id"], secret


async def call(
    house: House,
    vault: Any,
    trigger_id: Any,
    secret: str,
    message_id: str = "msg_1",
    body: bytes = b'{"hello": "world"}',
) -> Any:
    timestamp = str(int(time.time()))
    headers: dict[str, str | None] = {
        "message_id": message_id,
        "timestamp": timestamp,
        "signatures": sign(secret, message_id, timestamp, body),
    }
    return await receive_webhook(house.db, vault, trigger_id, headers=headers, body=body, payload=orjson.loads(body))


async def test_a_signed_webhook_starts_a_run_with_its_body_and_a_repeat_is_the_same_run(
    house: House, tmp_path: Path
) -> None:
    vault, trigger_id, secret = await _hook(house, tmp_path)
    run_id = await call(house, vault, trigger_id, secret)
    assert await call(house, vault, trigger_id, secret) == run_id
    [run] = await house.ledger()
    assert (run["source"], run["payload"]) == ("webhook", {"hello": "world"})


async def test_a_webhook_with_the_id_of_an_earlier_one_and_another_body_is_refused(
    house: House, tmp_path: Path
) -> None:
    vault, trigger_id, secret = await _hook(house, tmp_path)
    await call(house, vault, trigger_id, secret, "msg_1", b'{"a": 1, "b": [1.50, null]}')
    await call(house, vault, trigger_id, secret, "msg_1", b'{"b": [1.5, null], "a": 1}')  # the same, written otherwise
    await call(house, vault, trigger_id, secret, "msg_2", b"null")
    await call(house, vault, trigger_id, secret, "msg_2", b"null")
    for message_id, body in (("msg_1", b'{"a": 2}'), ("msg_1", b"null"), ("msg_2", b"0")):
        with pytest.raises(Invalid, match="came before with another body") as refused:
            await call(house, vault, trigger_id, secret, message_id, body)
        assert (refused.value.code, refused.value.field) == ("key_reused", "webhook-id")
    assert len(await house.ledger()) == 2


async def test_a_webhook_wakes_workers_for_its_workspace_only(
    house: House, wakes: Wakes, listener: Listener, tmp_path: Path
) -> None:
    """Who is told of no workspace looks into all of them."""
    vault, trigger_id, secret = await _hook(house, tmp_path)
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener.on(RUNS, heard.put_nowait)
    async with asyncio.timeout(10):
        assert await heard.get() == ""  # that it listens from now on
        await call(house, vault, trigger_id, secret)
        assert await heard.get() == str(house.caller.workspace_id)


async def test_while_a_secret_is_rotated_both_are_good_and_then_only_the_new_one(house: House, tmp_path: Path) -> None:
    vault, trigger_id, old = await _hook(house, tmp_path)
    async with house.db.transaction() as conn:
        new = await triggers.new_secret(conn, vault, house.caller.workspace_id, trigger_id)
    await call(house, vault, trigger_id, old, "msg_1")
    await call(house, vault, trigger_id, new, "msg_2")
    await house.execute("UPDATE webhook_secrets SET expires_at = now() WHERE expires_at IS NOT NULL")
    await call(house, vault, trigger_id, new, "msg_3")
    with pytest.raises(Unauthenticated):
        await call(house, vault, trigger_id, old, "msg_4")


async def test_secrets_are_sealed_and_do_not_open_in_another_triggers_row(house: House, tmp_path: Path) -> None:
    vault, first, secret = await _hook(house, tmp_path)
    _, second, _ = await _hook(house, tmp_path)
    stored = await house.value("SELECT string_agg(encode(sealed, 'escape'), '') FROM webhook_secrets")
    assert secret.removeprefix("whsec_") not in stored
    await house.execute(
        "UPDATE webhook_secrets SET sealed = (SELECT sealed FROM webhook_secrets WHERE trigger_id = %s) WHERE trigger_id = %s",
        first, second,
    )  # fmt: skip
    with pytest.raises(Broken) as broken:
        await call(house, vault, second, secret)
    assert broken.value.code == "vault_tampered"


async def test_a_secret_sealed_with_a_lost_key_does_not_shut_out_its_successor(house: House, tmp_path: Path) -> None:
    vault, trigger_id, _ = await _hook(house, tmp_path)
    await house.execute("UPDATE webhook_secrets SET sealed = overlay(sealed PLACING 'xx' FROM 2)")
    async with house.db.transaction() as conn:
        new = await triggers.new_secret(conn, vault, house.caller.workspace_id, trigger_id)
    assert await call(house, vault, trigger_id, new)


@pytest.mark.parametrize("change", ["triggers SET enabled = false", "automations SET deleted_at = now()"])
async def test_a_webhook_that_is_disabled_or_was_deleted_is_not_found(
    house: House, tmp_path: Path, change: str
) -> None:
    vault, trigger_id, secret = await _hook(house, tmp_path)
    await house.execute(f"UPDATE {change}")
    with pytest.raises(NotFound):
        await call(house, vault, trigger_id, secret)


async def test_an_automation_runs_after_another_ended_as_it_wants_and_is_told_about_it(house: House) -> None:
    first = await house.automation({"event": "go"}, name="First")
    second = await house.automation({"after": "first", "on": ["cancelled", "failed"]}, name="Second")
    await house.automation({"after": "first"}, name="Only after success")
    await publish(house, "go")
    await end_all(house)
    ended, after = await house.ledger()
    assert (ended["automation_id"], after["automation_id"]) == (first, second)
    assert (after["source"], after["status"]) == ("after", "queued")
    assert after["payload"] == {"run_id": str(ended["id"]), "status": "cancelled", "summary": None}


async def test_a_slot_that_was_skipped_as_it_came_due_fires_what_waits_for_skips(house: House) -> None:
    await house.automation(triggers=[{"event": "go", "overlap": "skip"}], name="First")
    second = await house.automation({"after": "first", "on": ["skipped"]}, name="Second")
    await publish(house, "go")
    await publish(house, "go")
    skipped, after = (await house.ledger())[-2:]
    assert (skipped["skip_reason"], after["automation_id"]) == ("prior_in_flight", second)
    assert after["payload"] == {"run_id": str(skipped["id"]), "status": "skipped", "summary": None}


async def test_max_fires_holds_within_one_batch_too(house: House) -> None:
    await house.automation({"event": "go"}, name="First", overlap="allow")
    await house.automation(triggers=[{"after": "first", "on": ["failed"], "max_fires": 1}], name="Second")
    for _ in range(3):
        await publish(house, "go")
    await fail_all(house)
    assert [run["status"] for run in await house.ledger()][:3] == ["failed"] * 3
    assert sum(run["source"] == "after" for run in await house.ledger()) == 1


async def test_automations_cannot_run_after_each_other_in_a_circle(house: House) -> None:
    await house.automation({"event": "go"}, name="A")
    await house.automation({"after": "a"}, name="B")
    await house.automation({"after": "b"}, name="C")
    with pytest.raises(Invalid, match="a → c → b → a") as refused:
        async with house.db.transaction() as conn:
            await automations.add_trigger(conn, house.caller, "a", {"after": "c"})
    assert (refused.value.code, refused.value.facts) == ("after_cycle", {"path": ["a", "c", "b", "a"]})
    with pytest.raises(Invalid) as refused:
        async with house.db.transaction() as conn:
            await automations.add_trigger(conn, house.caller, "a", {"after": "a"})
    assert (refused.value.code, refused.value.facts) == ("after_cycle", {"path": ["a", "a"]})


async def test_a_circle_is_found_where_ways_part_and_meet_again(house: House) -> None:
    """Thirty pairs, each after both of the pair before, are a thousand million ways and 120 steps."""
    pair = [str(await house.automation(name="First"))] * 2
    first = pair[0]
    for number in range(30):
        after = [{"after": each} for each in dict.fromkeys(pair)]
        pair = [str(await house.automation(name=f"{side}{number}", triggers=after)) for side in "ab"]
    with pytest.raises(Invalid) as refused:
        async with house.db.transaction() as conn:
            await automations.add_trigger(conn, house.caller, first, {"after": pair[0]})
    path = refused.value.facts["path"]
    assert [path[0], *(each[1:] for each in path[1:-1]), path[-1]] == ["first", *map(str, range(29, -1, -1)), "first"]


async def test_two_changes_at_once_cannot_close_a_circle_between_them(house: House) -> None:
    await house.automation({"event": "go"}, name="A")
    await house.automation({"event": "go"}, name="B")
    async with house.db.transaction() as conn:
        await automations.add_trigger(conn, house.caller, "a", {"after": "b"})

        async def the_other_way() -> None:
            async with house.db.transaction() as other:
                await automations.add_trigger(other, house.caller, "b", {"after": "a"})

        other = asyncio.create_task(the_other_way())
        await _until_somebody_waits_for_a_lock(house)
    with pytest.raises(Invalid) as refused:
        await other
    assert refused.value.code == "after_cycle"


async def test_after_so_many_failures_in_a_row_an_automation_pauses_and_says_why(house: House) -> None:
    automation = await house.automation({"event": "go"}, pause_after_failures=2, overlap="allow")
    for _ in range(2):
        await publish(house, "go")
        await fail_all(house)
    assert await house.value("SELECT status FROM automations WHERE id = %s", automation) == "paused"
    assert await house.value("SELECT paused_reason FROM automations") == "It failed 2 times in a row."
    once = await house.automation({"event": "once"}, pause_after_failures=1)
    await publish(house, "once")
    await fail_all(house)
    assert await house.value("SELECT paused_reason FROM automations WHERE id = %s", once) == "It failed."
    await publish(house, "go")
    assert (await house.ledger())[-1]["skip_reason"] == "paused"


async def test_a_deleted_automation_whose_last_run_fails_is_not_paused_nor_is_anybody_told_so(house: House) -> None:
    automation = await house.automation({"event": "go"}, pause_after_failures=1)
    await publish(house, "go")
    await _settle_all(house, "failed", meanwhile=lambda: _delete(house, automation))
    assert await house.value("SELECT status || failures FROM automations WHERE id = %s", automation) == "active1"
    assert await house.value("SELECT array_agg(kind) FROM notifications") == ["run_failed"]


async def test_one_that_somebody_paused_meanwhile_is_not_paused_for_its_failures_too(house: House) -> None:
    automation = await house.automation({"event": "go"}, pause_after_failures=1)
    await publish(house, "go")

    async def pause() -> None:
        async with house.db.transaction() as conn:
            await automations.pause(conn, house.caller, str(automation))

    await _settle_all(house, "failed", meanwhile=pause)
    assert await house.value("SELECT paused_reason FROM automations") is None
    assert await house.value("SELECT array_agg(kind) FROM notifications") == ["run_failed"]


async def _delete(house: House, automation: Any) -> None:
    async with house.db.transaction() as conn:
        await automations.delete(conn, house.caller, str(automation))


async def test_a_success_starts_the_count_of_failures_anew(house: House) -> None:
    await house.automation({"event": "go"}, pause_after_failures=2, overlap="allow")
    for ending in (fail_all, succeed_all, fail_all):
        await publish(house, "go")
        await ending(house)
    assert await house.value("SELECT status FROM automations") == "active"
    assert await house.value("SELECT failures FROM automations") == 1


async def fail_all(house: House) -> None:
    await _settle_all(house, "failed")


async def succeed_all(house: House) -> None:
    await _settle_all(house, "succeeded")


async def _settle_all(house: House, how: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    from datetime import timedelta

    from rota.model.ids import WorkerId
    from rota.model.outcome import ErrorClass, Failed, Succeeded
    from rota.runs import claiming, settling
    from rota.worker.queues import Queues

    async with house.db.transaction() as conn:
        queues = Queues(["default"], ["command"])
        await queues.look(conn)
        ready = await queues.to_read(conn, 100)
        claimed = await claiming.claim(conn, WorkerId("w"), queues=ready, places=100, lease=timedelta(minutes=1))
    if meanwhile:
        await meanwhile()
    async with house.db.transaction() as conn:
        outcome = Succeeded() if how == "succeeded" else Failed(ErrorClass.AGENT_ERROR, "no")
        await settling.settle(conn, [settling.Result(run, outcome) for run in claimed])
    assert claimed


async def test_the_key_alone_guards_against_a_second_run(house: House) -> None:
    """The UNIQUE by itself: whoever forgot the lock is still refused."""
    await house.automation({"event": "ping"}, overlap="allow")
    await publish(house, "ping", key="k")
    run = await house.run()
    same = {name: run[name] for name in ("trigger_id", "source", "session_id", "idempotency_key")}
    with pytest.raises(psycopg.errors.UniqueViolation, match="runs_one_per_key"):
        await house.add_run(**same)
