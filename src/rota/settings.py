"""What an operator may set: one frozen value, read once from `ROTA_…` and the command line."""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rota.errors import CannotStart
from rota.timeouts import Timeouts

PREFIX = "ROTA_"
# Names that stand in the environment of agents and of the test suite; Rota itself doesn't read them here.
FOREIGN = (
    *("ROTA_RUN_ID", "ROTA_SESSION_ID", "ROTA_TOKEN", "ROTA_ATTEMPT", "ROTA_IDEMPOTENCY_KEY"),
    *("ROTA_TOKEN_FILE", "ROTA_PROMPT_FILE", "ROTA_ASSIGNMENT_FILE"),
)
FOREIGN_PREFIX = "ROTA_TEST_"
MOST = 1_000_000_000


def _text(value: str) -> str:
    return value


def _path(value: str) -> Path:
    return Path(value).expanduser().absolute()


def _slug(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", value):
        raise ValueError
    return value


def _label(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        raise ValueError
    return value


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError
    return value


def _whole(value: str) -> int:
    number = int(value)
    if not 0 <= number <= MOST:
        raise ValueError
    return number


def _count(value: str) -> int:
    number = _whole(value)
    if number == 0:
        raise ValueError
    return number


def _seconds(value: str) -> timedelta:
    number = float(value)
    if not 0.001 <= number <= MOST:
        raise ValueError
    return timedelta(seconds=number)


def _days(value: str) -> timedelta:
    number = float(value)
    if not 0 < number < 36500:
        raise ValueError
    return timedelta(days=number)


def _port(value: str) -> int:
    number = int(value)
    if not 0 <= number <= 65535:
        raise ValueError
    return number


def _level(value: str) -> str:
    if value not in {"debug", "info", "warning", "error"}:
        raise ValueError
    return value


def _standing(value: str) -> str:
    if value not in {"viewer", "member", "admin"}:
        raise ValueError
    return value


def _switch(value: str) -> bool:
    return {
        "1": True,
        "true": True,
        "on": True,
        "yes": True,
        "0": False,
        "false": False,
        "off": False,
        "no": False,
    }[value.strip().lower()]


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name for part in value.split(",") if (name := part.strip()))
    if not names:
        raise ValueError
    return names


def _setting(default: Any, read: Callable[[str], Any], wants: str, about: str, *, secret: bool = False) -> Any:
    """`secret`: never shown, and wiped from the environment of the process once it is read."""
    facts = {"read": read, "wants": wants, "about": about, "secret": secret}
    return field(default=default, repr=not secret, metadata=facts)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every field is also an environment variable: `ROTA_` and its name in capitals."""

    home: Path = _setting(Path("~/.rota").expanduser(), _path, "a directory", "Where Rota keeps its files")
    host: str = _setting("127.0.0.1", _text, "an address", "Address the web server listens on")
    port: int = _setting(7682, _port, "a number from 0 to 65535", "Port the web server listens on; 0 picks a free one")
    url: str = _setting("", _url, "a URL", "How browsers and agents reach this server, when it stands behind a proxy")
    database_url: str = _setting(
        "", _text, "a PostgreSQL URL", "PostgreSQL 14 or newer; without it Rota runs its own", secret=True
    )
    listen_url: str = _setting(
        "", _text, "a PostgreSQL URL", "For LISTEN, when the database is behind PgBouncer", secret=True
    )
    database_wait_seconds: timedelta = _setting(
        timedelta(minutes=1), _seconds, "seconds", "How long a start waits for a database that does not answer"
    )
    pool_size: int = _setting(10, _count, "a whole number from 1", "Most database connections of this process")
    prepared_statements: bool = _setting(True, _switch, "on or off", "Off for a PgBouncer older than 1.22")
    require_rls: bool = _setting(False, _switch, "on or off", "Refuse to start the API without row-level security")
    vault_keys: str = _setting(
        "", _text, "keys like id:base64, with commas", "Keys of the vault; else in the home", secret=True
    )
    login_days: timedelta = _setting(timedelta(days=30), _days, "days", "How long a browser stays signed in")
    login_idle_days: timedelta = _setting(timedelta(days=7), _days, "days", "How long, while it is not used")
    oidc_issuer: str = _setting("", _url, "a URL", "Identity provider that people may sign in with")
    oidc_client_id: str = _setting("", _text, "a text", "As whom it knows this server")
    oidc_client_secret: str = _setting("", _text, "a secret", "What this server proves that with", secret=True)
    oidc_domains: tuple[str, ...] = _setting(
        (), _names, "domains with commas", "Domains whose e-mail addresses are let in; all if none is named"
    )
    oidc_level: str = _setting(
        "",
        _standing,
        "viewer, member or admin",
        "What somebody whom nobody invited becomes in ROTA_WORKSPACE; else nothing",
    )
    workspace: str = _setting("default", _slug, "a slug", "Workspace made at the first start")
    tick_seconds: timedelta = _setting(timedelta(seconds=30), _seconds, "seconds", "Longest sleep of the scheduler")
    jitter_threshold: int = _setting(3, _whole, "a whole number", "Late runs that may start together after an outage")
    max_jitter: timedelta = _setting(timedelta(seconds=30), _seconds, "seconds", "Span over which late runs are spread")
    max_concurrent: int = _setting(5, _count, "a whole number from 1", "Places of one worker")
    pools: tuple[str, ...] = _setting(("default",), _names, "names with commas", "Pools that this worker serves")
    http_allow: tuple[str, ...] = _setting(
        (), _names, "hosts, addresses or networks, with or without :port", "Private targets for agents of kind http"
    )
    local_agents: bool = _setting(True, _switch, "on or off", "Whether agents may be programs on this server")
    kubernetes_config: str = _setting(
        "", _text, "a path", "Kubeconfig for agents of kind kubernetes; else the cluster around, or ~/.kube/config"
    )
    kubernetes_context: str = _setting("", _text, "a name", "Context of that file; else its current one")
    kubernetes_namespace: str = _setting(
        "", _label, "a name of Kubernetes", "Where Jobs of agents are made; else where the context or this pod is"
    )
    kubernetes_url: str = _setting("", _url, "a URL", "How pods reach the API, if not by ROTA_URL")
    rate_limit: int = _setting(
        50, _whole, "a whole number", "Requests a second of one token or login; 0 for any number"
    )
    workspace_rate_limit: int = _setting(500, _whole, "a whole number", "Requests a second of one workspace; 0 for any")
    notify_allow: tuple[str, ...] = _setting(
        (), _names, "hosts, addresses or networks, with or without :port", "Private targets for notifications"
    )
    notify_schemes: tuple[str, ...] = _setting(
        (), _names, "names with commas", "Schemes that targets of notifications may have; else all but local ones"
    )
    poll_seconds: timedelta = _setting(timedelta(seconds=5), _seconds, "seconds", "Longest sleep of a worker")
    lease_seconds: timedelta = _setting(timedelta(seconds=60), _seconds, "seconds", "How long a claim lasts unrenewed")
    heartbeat_seconds: timedelta = _setting(timedelta(seconds=10), _seconds, "seconds", "How often leases are renewed")
    rescue_seconds: timedelta = _setting(
        timedelta(seconds=15), _seconds, "seconds", "How often lost runs are looked for"
    )
    grace_seconds: timedelta = _setting(
        timedelta(seconds=10), _seconds, "seconds", "How long runs may go on after SIGTERM"
    )
    dead_after: int = _setting(
        2, _count, "a whole number from 1", "Missed heartbeats after which a worker counts as dead"
    )
    snapshot_seconds: timedelta = _setting(timedelta(seconds=60), _seconds, "seconds", "How often the house is counted")
    keep_events_days: timedelta = _setting(
        timedelta(days=90), _days, "days", "How long events and transcripts are kept"
    )
    keep_snapshots_days: timedelta = _setting(timedelta(days=7), _days, "days", "How long snapshots are kept")
    keep_audit_days: timedelta = _setting(timedelta(days=400), _days, "days", "How long the audit log is kept")
    keep_notifications_days: timedelta = _setting(timedelta(days=90), _days, "days", "How long notifications are kept")
    max_body_bytes: int = _setting(1_048_576, _count, "a number of bytes", "Largest request body")
    max_artifact_bytes: int = _setting(104_857_600, _count, "a number of bytes", "Largest content of an artifact")
    artifacts_url: str = _setting("", _text, "a URL for fsspec", "Where artifacts are kept; else in the home")
    keep_artifacts_days: timedelta = _setting(timedelta(days=90), _days, "days", "How long artifacts are kept")
    log_level: str = _setting("info", _level, "debug, info, warning or error", "How much is logged")
    log_file: str = _setting("", _text, "a path", "Where JSON logs go besides the standard error")

    def __post_init__(self) -> None:
        self.timeouts.check()

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(self.lease_seconds, self.heartbeat_seconds, self.rescue_seconds, self.dead_after)

    def with_options(self, **options: Any) -> "Settings":
        """The settings with what was said on the command line, which wins over the environment."""
        return replace(self, **{name: value for name, value in options.items() if value is not None})


def variable(name: str) -> str:
    return PREFIX + name.upper()


def secret_variables() -> list[str]:
    """The variables that no agent may find in the environment of its worker."""
    return [variable(each.name) for each in fields(Settings) if each.metadata["secret"]]


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read `ROTA_…`; a name or a value that makes no sense stops the start and says what was meant."""
    environment = os.environ if environment is None else environment
    given = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    known = {variable(each.name): each for each in fields(Settings)}
    values = {}
    for name, value in given.items():
        if name in known and value != "":
            values[known[name].name] = _read(name, value, known[name].metadata)
        elif name not in known and name not in FOREIGN and not name.startswith(FOREIGN_PREFIX):
            raise CannotStart(_unknown(name, list(known)), code="unknown_setting", field=name)
    return Settings(**values)


def _read(name: str, value: str, about: Mapping[str, Any]) -> Any:
    try:
        return about["read"](value)
    except (ValueError, KeyError, OverflowError, RuntimeError):
        raise CannotStart(
            f"{name} is {value!r}; it must be {about['wants']}.", code="invalid_setting", field=name
        ) from None


def _unknown(name: str, known: list[str]) -> str:
    words = {each.removeprefix(PREFIX): each for each in known}  # with the prefix every name looks like every other
    near = difflib.get_close_matches(name.removeprefix(PREFIX).upper(), words, n=1)
    return f"There is no setting {name}." + (
        f" Did you mean {words[near[0]]}?" if near else " `docs/reference/settings.md` lists them all."
    )
