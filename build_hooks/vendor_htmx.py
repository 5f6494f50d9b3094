"""Copies htmx out of the django-htmx wheel while Rota is built, so that no JavaScript of others is committed."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPTS = {"htmx-4.min.js": "htmx.js", "ext/hx-sse-4.min.js": "htmx-sse.js"}
TARGET = Path("src/rota/http/ui/static/vendor")


class VendorHtmx(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = files("django_htmx") / "static" / "django_htmx"
        target = Path(self.root) / TARGET
        target.mkdir(parents=True, exist_ok=True)
        for name, copied in SCRIPTS.items():
            (target / copied).write_bytes((source / name).read_bytes())
            build_data.setdefault("artifacts", []).append(str(TARGET / copied))
