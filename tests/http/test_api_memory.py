"""Memory of an automation: kept from run to run, for a time or for good."""

from typing import Any

import pytest
import pytest_asyncio

from rota.model.memory import LARGEST_VALUE, MOST_KEYS
from rota.watch.prune import Prune
from support import api_client
from support.api_client import HOUR, UNKNOWN, Api, Office, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api


@pytest_asyncio.fixture(loop_scope="module")
async def path(api: Api) -> str:
    automation = assert_ok(await api.post("/automations", example()))
    return f"/automations/{automation['id']}/memory"


async def put(api: Api, path: str, key: str, **body: Any) -> dict[str, Any]:
    return assert_ok(await api.send("PUT", f"{path}/{key}", json=body), 200)


async def test_a_value_is_kept_replaced_and_forgotten(api: Api, path: str) -> None:
    first = await put(api, path, "last:result", value={"seen": [1]}, confidence=0.5)
    assert (first["value"], first["confidence"], first["expires_at"], first["run_id"]) == (
        {"seen": [1]},
        0.5,
        None,
        None,
    )
    second = await put(api, path, "last:result", value=None)
    assert (second["value"], second["confidence"], second["created_at"]) == (None, None, first["created_at"])
    assert assert_ok(await api.get(f"{path}/last:result"), 200) == second
    assert (await api.delete(f"{path}/last:result")).status_code == 204
    for answer in (await api.get(f"{path}/last:result"), await api.delete(f"{path}/last:result")):
        assert_refused(answer, 404, "not_found")


async def test_the_list_is_by_key_in_pages(api: Api, path: str) -> None:
    for key in ("b", "a", "c.1"):
        await put(api, path, key, value=key)
    assert [each["key"] for each in await api.pages(path, 2)] == ["a", "b", "c.1"]


async def test_what_has_expired_is_not_there_and_is_pruned(office: Office, api: Api, path: str) -> None:
    await put(api, path, "fleeting", value=1, ttl="1h")
    await put(api, path, "lasting", value=1)
    await office.execute("UPDATE memory SET expires_at = now() - interval '1 second' WHERE key = 'fleeting'")
    assert [each["key"] for each in (await api.get(path)).json()["items"]] == ["lasting"]
    for answer in (await api.get(f"{path}/fleeting"), await api.delete(f"{path}/fleeting")):
        assert_refused(answer, 404, "not_found")
    await put(api, path, "fleeting", value=2, ttl="1h")
    await office.execute("UPDATE memory SET expires_at = now() - interval '1 second' WHERE key = 'fleeting'")
    await Prune(office.db, keep_events=HOUR, keep_snapshots=HOUR).once()
    assert await office.value("SELECT count(*) FROM memory WHERE key = 'fleeting'") == 0
    assert await office.value("SELECT count(*) FROM memory WHERE key = 'lasting'") == 1


async def test_an_automation_remembers_so_many_things_and_no_more(office: Office, api: Api, path: str) -> None:
    await office.execute(
        "INSERT INTO memory (workspace_id, automation_id, key, value) "
        "SELECT workspace_id, id, 'k' || n, '1' FROM automations, generate_series(1, %s) n WHERE id = %s",
        MOST_KEYS, path.split("/")[2],
    )  # fmt: skip
    assert_refused(await api.send("PUT", f"{path}/one-more", json={"value": 1}), 409, "memory_full", "key")
    await put(api, path, "k1", value="another value for a key that is there")


@pytest.mark.parametrize(
    ("key", "body", "status", "code", "field"),
    [
        ("k", {}, 422, "invalid", "value"),
        ("k", {"value": 1, "when": 2}, 422, "invalid", "when"),
        ("k", {"value": 1, "confidence": 1.1}, 422, "invalid", "confidence"),
        ("k", {"value": 1, "ttl": "soon"}, 422, "invalid", "ttl"),
        ("k", {"value": 1, "ttl": "-1h"}, 422, "invalid", "ttl"),
        ("k", {"value": "x" * LARGEST_VALUE}, 413, "memory_too_large", "value"),
        ("..", {"value": 1}, 422, "invalid_memory_key", "key"),
        ("%20", {"value": 1}, 422, "invalid_memory_key", "key"),
        ("k" * 201, {"value": 1}, 422, "invalid_memory_key", "key"),
    ],
)
async def test_what_cannot_be_remembered_is_refused(
    api: Api, path: str, key: str, body: Any, status: int, code: str, field: str
) -> None:
    if key == "..":
        key = "%2e%2e"
    assert_refused(await api.send("PUT", f"{path}/{key}", json=body), status, code, field)
    assert (await api.get(path)).json()["items"] == []


async def test_a_cursor_of_another_list_and_an_automation_that_is_not_there_are_refused(api: Api, path: str) -> None:
    assert_refused(await api.get(path, cursor="IyE"), 422, "invalid_cursor", "cursor")
    assert_refused(await api.get(f"/automations/{UNKNOWN}/memory"), 404, "not_found")
