"""deploy/ against the real thing: settings, parts, ports, routes, times and versions. No container engine is needed."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from fnmatch import fnmatch

import pytest
import yaml

import rota
from rota.cli.serve import command as serve
from rota.daemon import PARTS
from rota.http.health import router
from rota.settings import Settings, secret_variables, variable
from support import clusters
from support.deploy_files import (
    CHART,
    COMPOSE,
    DEPLOYMENTS,
    DOCKERFILE,
    EXAMPLE,
    MARGIN,
    ROOT,
    chart_parts,
    compose,
    files,
    instruction,
    only,
    pins,
    seconds,
    services,
    values,
)

PORT = Settings().port


def test_every_setting_that_is_named_exists() -> None:
    named = {name for file in files() for name in re.findall(r"\bROTA_[A-Z_]+\b", file.read_text())}
    assert named - {variable(each.name) for each in fields(Settings)} == set()


def test_every_part_that_is_named_exists_and_every_part_runs_somewhere() -> None:
    for where in (only_of_compose(), only_of_chart()):
        assert {part for parts in where for part in parts} == set(PARTS)


def only_of_compose() -> list[tuple[str, ...]]:
    return [_parts(words) for words in list(only())[: len(services())]]


def only_of_chart() -> list[tuple[str, ...]]:
    return [_parts(words) for words in list(only())[len(services()) :]]


def _parts(words: list[str]) -> tuple[str, ...]:
    found: tuple[str, ...] = serve.make_context("serve", words).params["only"]
    return found


def test_ports_are_where_rota_listens() -> None:
    assert instruction("EXPOSE") == [str(PORT)]
    assert services()["api"]["ports"] == [f"${{PUBLISH:-127.0.0.1:{PORT}}}:{PORT}"]
    assert re.findall(r"containerPort: (\d+)", DEPLOYMENTS.read_text()) == [str(PORT)]
    assert f", {PORT}, timeout" in instruction("HEALTHCHECK")[0]


def test_what_is_asked_for_health_is_answered() -> None:
    asked = re.findall(r"path: (/\w+)", DEPLOYMENTS.read_text()) + re.findall(
        r"'GET', '([^']+)'", DOCKERFILE.read_text()
    )
    assert {"/healthz", "/readyz"} == set(asked)
    assert set(asked) <= {route.path for route in router.routes}  # type: ignore[attr-defined]


def test_who_is_asked_for_health_has_the_api() -> None:
    assert all("api" in parts for parts in [*only_of_compose(), *only_of_chart()])


def test_no_process_shows_the_secrets_of_rota_to_agents() -> None:
    """Whatever is run in a container carries them; so the check cannot be read, and only the API's pods run commands."""
    [check] = instruction("HEALTHCHECK")
    [unseen] = re.findall(r"install -m 711 .* /opt/rota/bin/([\w-]+)", DOCKERFILE.read_text())
    assert json.loads(check[check.index("[") :])[0] == unseen
    assert not any("healthcheck" in service for service in services().values())
    assert re.findall(r'if eq \$part "(\w+)" }}(?:\s+#[^\n]*)?\s+lifecycle:', DEPLOYMENTS.read_text()) == ["api"]
    assert DEPLOYMENTS.read_text().count("exec:") == 1


def test_nothing_stands_between_a_container_and_rota() -> None:
    """A shell would swallow SIGTERM, an init would keep the secrets that Rota wipes."""
    assert json.loads(instruction("ENTRYPOINT")[-1]) == ["rota"]
    assert json.loads(instruction("CMD")[-1]) == ["serve"]
    assert not any({"init", "entrypoint", "pid"} & service.keys() for service in services().values())
    assert "shareProcessNamespace" not in DEPLOYMENTS.read_text()


def test_nobody_is_killed_before_their_time() -> None:
    worker = services()["worker"]
    assert seconds(worker["stop_grace_period"]) >= worker["environment"]["ROTA_GRACE_SECONDS"] + MARGIN
    [margin] = re.findall(r"terminationGracePeriodSeconds: {{ add \$own.graceSeconds (\d+) }}", DEPLOYMENTS.read_text())
    assert int(margin) >= MARGIN
    others = [seconds(each["stop_grace_period"]) for name, each in services().items() if name != "worker"]
    [other] = re.findall(r"terminationGracePeriodSeconds: (\d+)", DEPLOYMENTS.read_text())
    assert min(*others, float(other)) >= MARGIN + 5  # the chart's `preStop`


def test_a_start_may_take_as_long_as_rota_waits_for_its_database() -> None:
    wait = Settings().database_wait_seconds.total_seconds()
    [(every, times)] = re.findall(
        r"startupProbe:.*?periodSeconds: (\d+).*?failureThreshold: (\d+)", DEPLOYMENTS.read_text(), re.DOTALL
    )
    assert int(every) * int(times) > 2 * wait
    [start] = re.findall(r"--start-period=(\w+)", DOCKERFILE.read_text())
    assert seconds(start) > wait


def test_ten_workers_find_connections() -> None:
    [allowed] = re.findall(r"max_connections=(\d+)", COMPOSE.read_text())
    each = Settings().pool_size + 1
    assert int(allowed) - 3 >= 2 * each + 10 * (each + 3)


def test_all_are_of_one_version() -> None:
    chart = (CHART / "Chart.yaml").read_text()
    assert set(re.findall(r'^(?:version|appVersion): "?([^"\n]+)', chart, re.MULTILINE)) == {rota.__version__}
    pages = [*files(), ROOT / "docs" / "deploying.md"]
    assert {tag for page in pages for tag in re.findall(r"\brota:(\d[\w.]*)", page.read_text())} == {rota.__version__}


def test_the_example_names_what_compose_asks_for() -> None:
    asked = set(re.findall(r"\${(\w+)", COMPOSE.read_text()))
    told = dict(re.findall(r"^(\w+)=(.*)$", EXAMPLE.read_text(), re.MULTILINE))
    assert asked | {"COMPOSE_PROJECT_NAME"} == told.keys()
    required = set(re.findall(r"\${(\w+):\?", COMPOSE.read_text()))
    assert required == {"POSTGRES_PASSWORD", "ROTA_VAULT_KEYS"}
    assert [name for name in told if name in required and told[name]] == []


def test_secrets_reach_only_who_hides_them() -> None:
    for name, service in compose()["services"].items():
        given = set(service["environment"])
        assert ("POSTGRES_PASSWORD" in given) == (name == "database")
        assert bool(given & set(secret_variables())) == (name != "database")


def test_what_is_copied_into_the_image_is_there_and_not_ignored() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] not in "#!"]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {each.rstrip("/") for words in instruction("COPY") if "--from" not in words for each in words.split()[:-1]}
    assert "*" in ignored
    assert copied == kept
    assert all((ROOT / each).exists() for each in copied)
    assert not any(fnmatch(each, rule) for each in copied for rule in ignored if rule != "*")


def test_the_image_has_every_extra_as_it_was_tested() -> None:
    shipped, tested = pins(ROOT / "requirements" / "all.txt"), pins(ROOT / "requirements" / "dev.txt")
    assert shipped.items() <= tested.items()
    assert pins(ROOT / "requirements" / "run.txt").items() <= shipped.items()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {re.split(r"[\[<>=]", each)[0] for extra in extras.values() for each in extra}
    assert wanted <= shipped.keys()
    for file in re.findall(r"requirements/\w+\.txt", DOCKERFILE.read_text()):
        assert (ROOT / file).exists()


def test_the_chart_may_do_what_the_kind_kubernetes_needs_and_no_more() -> None:
    text = (CHART / "templates" / "agents.yaml").read_text()
    [rules] = re.findall(r"^rules:\n(.*?)^---$", text, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(rules) == clusters.rules()


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(_described(schema)) - {"global"} == set(_paths(values(), schema))


def _described(schema: dict[str, object], above: str = "") -> Iterator[str]:
    found: dict[str, dict[str, object]] = schema.get("properties", {})  # type: ignore[assignment]
    for name, each in found.items():
        yield above + name
        yield from _described(each, f"{above}{name}.")


def _paths(given: dict[str, object], schema: dict[str, object], above: str = "") -> Iterator[str]:
    """The values by name, as deep as the schema describes them."""
    found: dict[str, dict[str, object]] = schema["properties"]  # type: ignore[assignment]
    for name, each in given.items():
        yield above + name
        if isinstance(each, dict) and "properties" in found.get(name, {}):
            yield from _paths(each, found[name], f"{above}{name}.")


@pytest.mark.parametrize("part", chart_parts())
def test_every_part_of_the_chart_has_values(part: str) -> None:
    assert {"replicas", "resources", "env"} <= values()[part].keys()


def test_variables_of_services_are_not_taken_for_settings() -> None:
    assert "enableServiceLinks: false" in DEPLOYMENTS.read_text()
