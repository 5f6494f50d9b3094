"""Whom the end of runs concerns, found for a whole batch at once."""

from typing import Any
from uuid import UUID

import pytest

from rota.db import aftermath
from rota.db.aftermath import Concerned
from rota.model.ids import WorkspaceId, new_id
from support.house import House
from support.run_state import from_now

NOBODY: dict[str, Any] = {
    "waited_for": None,
    "failing": None,
    "deleted": None,
    "awaited": None,
    "with_tasks": None,
    "has_room": None,
}


@pytest.fixture
async def ids(house: House) -> list[UUID]:
    """Of ended runs: an automation, which is their lane too, and a session."""
    automation_id = await house.automation()
    return [automation_id, (await house.queue_run(automation_id))["session_id"]]


async def concerned(house: House, ids: list[UUID]) -> list[Concerned]:
    """Asked together with another workspace, where the same ids mean nothing."""
    given = {house.caller.workspace_id: ids, WorkspaceId(new_id()): ids}
    async with house.db.connection() as conn:
        return await aftermath.concerned(conn, aftermath.ask(given))


async def test_an_end_concerns_who_waits_and_what_failed_or_is_deleted_or_awaited_or_has_tasks(
    house: House, ids: list[UUID]
) -> None:
    automation_id, session_id = ids
    assert await concerned(house, ids) == []

    async def assert_concerned(**expected: Any) -> None:
        of_house = Concerned(**{"workspace_id": house.caller.workspace_id, **NOBODY, **expected})
        assert await concerned(house, ids) == [of_house]

    async def concerns(change: str, undo: str, **expected: Any) -> None:
        await house.execute(change)
        await assert_concerned(**expected)
        await house.execute(undo)

    for lane in (automation_id, session_id):
        await house.set_run(ready_at=None, lane=lane)
        await assert_concerned(waited_for=True)
        await house.set_run(ready_at=from_now())
    await concerns("UPDATE automations SET failures = 1", "UPDATE automations SET failures = 0", failing=True)
    await concerns(
        "UPDATE automations SET deleted_at = now()", "UPDATE automations SET deleted_at = NULL",
        failing=False, deleted=[automation_id],
    )  # fmt: skip
    await concerns(
        "UPDATE sessions SET has_tasks = true", "UPDATE sessions SET has_tasks = false", with_tasks=[session_id]
    )
    await concerns(
        "UPDATE workspaces SET max_concurrent = 1", "UPDATE workspaces SET max_concurrent = NULL", has_room=True
    )
    await house.automation({"after": "errand"}, name="Next")
    await concerns("SELECT", "DELETE FROM triggers", awaited=True)
    assert await concerned(house, ids) == []
