"""The description of the API: complete, true to what is refused, and the same as the page that people read."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from rota import service
from rota.db.pool import Database
from rota.errors import STATUS, Refused, RotaError
from rota.http.app import create_app
from rota.http.errors import PATTERNS_IN_WORDS
from support import api_client
from support.api_client import Api, Office, Site
from surface_source import error_codes

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

ROOT = Path(__file__).parents[2]
PREFIX = "/api/v1/workspaces/{workspace}"
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text()


def operations(site: Site) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): told
        for path, methods in site.app.openapi()["paths"].items()
        for method, told in methods.items()
    }


async def test_the_description_is_valid_openapi(site: Site) -> None:
    errors = OpenAPIV31SpecValidator(site.app.openapi()).iter_errors()
    assert [(list(each.absolute_path), each.message) for each in errors] == []


async def test_every_route_is_documented_and_no_other(site: Site) -> None:
    documented = re.findall(r"^\| `([A-Z]+ \S+)` \| \S.* \|$", PAGE, flags=re.MULTILINE)
    offered = [f"{method} {path.removeprefix(PREFIX) or PREFIX}" for method, path in operations(site)]
    assert sorted(documented) == sorted(offered)


def patterns(described: Any) -> set[str]:
    match described:
        case dict():
            own = {described["pattern"]} if isinstance(described.get("pattern"), str) else set()
            return own.union(*map(patterns, described.values()))
        case list():
            return set().union(*map(patterns, described))
        case _:
            return set()


async def test_every_pattern_that_a_field_is_held_to_is_told_in_words(site: Site) -> None:
    assert patterns(site.app.openapi()) == set(PATTERNS_IN_WORDS)


async def test_every_code_is_documented_with_its_statuses_and_no_other() -> None:
    documented = re.findall(r"^\| `([a-z0-9_]+)` \| ([0-9, ]+) \| \S.* \|$", PAGE, flags=re.MULTILINE)
    assert len(documented) == len({code for code, _ in documented})
    assert {code: list(map(int, statuses.split(", "))) for code, statuses in documented} == error_codes()


async def test_every_kind_of_refusal_has_a_status() -> None:
    def below(kind: type[RotaError]) -> list[type[RotaError]]:
        return [kind, *(each for child in kind.__subclasses__() for each in below(child))]

    assert set(below(Refused)) == set(STATUS)


async def test_the_description_can_be_fetched_without_signing_in(api: Api, office: Office) -> None:
    answer = await office.site.client().get("/api/openapi.json")
    assert answer.status_code == 200
    told = answer.json()
    assert told["info"]["title"] == "Rota"
    assert f"{PREFIX}/automations" in told["paths"]


async def test_every_route_says_what_it_does_and_has_a_name_of_its_own(site: Site) -> None:
    told = operations(site)
    assert all(each.get("description") for each in told.values())
    assert len({each["operationId"] for each in told.values()}) == len(told)


async def test_pages_are_no_part_of_it(site: Site) -> None:
    assert {path for _, path in operations(site) if not path.startswith(PREFIX)} == {
        "/healthz", "/readyz", "/metrics", "/hooks/{trigger_id}",
    }  # fmt: skip


async def test_bodies_refuse_unknown_fields_by_their_description_too(site: Site) -> None:
    shapes = site.app.openapi()["components"]["schemas"]
    for told in operations(site).values():
        for content in told.get("requestBody", {}).get("content", {}).values():
            for name in re.findall(r"schemas/(\w+)", str(content["schema"])):
                assert shapes[name]["additionalProperties"] is (name in {"TriggerIn", "TriggerPatch"}), name


# What is public -----------------------------------------------------------------------------------------------------


async def test_the_health_checks_tell_whether_it_lives_and_whether_it_is_ready(site: Site, office: Office) -> None:
    client = site.client()
    alive, ready = await client.get("/healthz"), await client.get("/readyz")
    assert (alive.status_code, alive.text) == (200, "ok\n")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "missing_migrations": []})
    await office.execute("UPDATE migrations SET number = number + 9000")
    try:
        behind = await client.get("/readyz")
    finally:
        await office.execute("UPDATE migrations SET number = number - 9000")
    assert (behind.status_code, behind.json()["ready"]) == (503, False)
    assert behind.json()["missing_migrations"]


async def test_a_part_that_fails_all_the_time_makes_it_not_ready(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        name = "worker"

        async def once(self) -> float:
            raise OSError("no connection is left")

    monkeypatch.setattr(service, "FAILING_SECONDS", 3600.0)
    loop = service.Loop(Worker())
    running = asyncio.create_task(loop.run())
    while loop.failed_since is None:  # noqa: ASYNC110 — its first pass is under way
        await asyncio.sleep(0)
    assert (await site.client().get("/readyz")).status_code == 200  # it may pass
    monkeypatch.setattr(service, "FAILING_SECONDS", 0.0)
    answer = await site.client().get("/readyz")
    loop.stop()
    await running
    assert (answer.status_code, answer.json()["failing"]) == (503, ["worker"])
    assert (await site.client().get("/readyz")).status_code == 200


async def test_without_its_database_it_lives_but_is_not_ready(site: Site) -> None:
    away = replace(site.web, db=Database("postgresql://rota@127.0.0.1:1/rota"))
    client = Site(away, create_app(away), "").client()
    assert (await client.get("/healthz")).status_code == 200
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)


async def test_the_figures_are_for_prometheus(site: Site) -> None:
    answer = await site.client().get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "# TYPE rota_" in answer.text
