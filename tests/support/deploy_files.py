"""What stands in deploy/, as data."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE, COMPOSE, EXAMPLE = DEPLOY / "Dockerfile", DEPLOY / "compose.yaml", DEPLOY / ".env.example"
CHART = DEPLOY / "helm" / "rota"
DEPLOYMENTS = CHART / "templates" / "deployments.yaml"

# Beyond ROTA_GRACE_SECONDS: to stop what still runs, hand it back, and end (docs/operating.md says ten).
MARGIN = 20


def files() -> list[Path]:
    """All but what an operator fills in."""
    return [each for each in sorted(DEPLOY.rglob("*")) if each.is_file() and each.name != ".env"]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def services() -> dict[str, dict[str, Any]]:
    """Those of Rota, by name."""
    return {name: each for name, each in compose()["services"].items() if name != "database"}


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def instruction(name: str) -> list[str]:
    """What follows a word of the Dockerfile, in each place; lines that go on are one."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", text, re.MULTILINE)


def pins(requirements: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9_.-]+)==([^ ;\\]+)", requirements.read_text(), re.MULTILINE))


def seconds(span: str) -> float:
    """`90s`, `1m` or `1m30s`."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", span)
    assert found, span
    return int(found[1] or 0) * 60 + int(found[2] or 0)


def only() -> Iterator[list[str]]:
    """What follows `serve` wherever Rota is started: in the Compose file, then in the chart."""
    for service in services().values():
        assert service["command"][0] == "serve"
        yield service["command"][1:]
    for parts in chart_parts().values():
        yield ["--only", parts]


def chart_parts() -> dict[str, str]:
    [line] = re.findall(r"\$parts := dict (.*) }}", DEPLOYMENTS.read_text())
    words = re.findall(r'"([^"]*)"', line)
    return dict(zip(words[::2], words[1::2], strict=True))
