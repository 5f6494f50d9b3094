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
URL = "a URL that begins with http:// or https://, without blanks, a user name or a password"
STORE_URL = "a URL for fsspec, such as s3://bucket/path or file:///srv/rota"
HOSTS = "host names with commas, without ports, or *"
ANY_HOST = "*"
SLUG = "a slug: up to 63 lower-case letters, digits and hyphens, which begins with no hyphen"
LABEL = "a name of Kubernetes: up to 63 lower-case letters, digits and hyphens, which begins and ends with no hyphen"


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
    parts = urlsplit(_without_blanks(value))
    right = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0  # a port beyond 65535 raises
    if not right or "@" in parts.netloc or "\\" in value:
        raise ValueError
    return value


def _store_url(value: str) -> str:
    """Anything else fsspec takes for a path below the directory that Rota was started in."""
    if not re.match(r"/|[a-z][a-z0-9+.-]*(::|://)", _without_blanks(value), re.IGNORECASE):
        raise ValueError
    return value


def _without_blanks(value: str) -> str:
    if not value.isprintable() or " " in value:
        raise ValueError
    return value


@dataclass(frozen=True, slots=True)
class Number:
    """Reads a number within its range, and says which that is."""

    least: float
    most: float
    of: str = ""
    whole: bool = False
    unit: timedelta | None = None

    def __call__(self, value: str) -> Any:
        number = int(value) if self.whole else float(value)
        if not self.least <= number <= self.most:
            raise ValueError
        return number if self.unit is None else self.unit * number

    @property
    def wants(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        of = f" of {self.of}" if self.of else ""
        return f"{kind}{of} from {_written(self.least)} to {_written(self.most)}"


def _written(number: float) -> str:
    return f"{number:,}" if number >= 100_000 else str(number)


WHOLE = Number(0, MOST, whole=True)
COUNT = Number(1, MOST, whole=True)
FEW = Number(1, 1000, whole=True)
BYTES = Number(1, MOST, "bytes", whole=True)
PORT = Number(0, 65535, whole=True)
SECONDS = Number(0.001, MOST, "seconds", unit=timedelta(seconds=1))
DAYS = Number(0.001, 36500, "days", unit=timedelta(days=1))
DAYS_OF_RUNS = Number(30, 36500, "days", unit=timedelta(days=1))  # as long as the keys that name runs, or longer


def _level(value: str) -> str:
    if value not in {"debug", "info", "warning", "error"}:
        raise ValueError
    return value


def _standing(value: str) -> str:
    if value not in {"viewer", "member", "admin"}:
        raise ValueError
    return value


def _sandbox(value: str) -> str:
    if value not in {"guard", "off"}:
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


def _hosts(value: str) -> tuple[str, ...]:
    names = _names(value)
    if not all(name == ANY_HOST or re.fullmatch(r"[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*\.?", name) for name in names):
        raise ValueError
    return names


def _setting(default: Any, read: Callable[[str], Any], wants: str, about: str, *, secret: bool = False) -> Any:
    """`secret`: never shown, and wiped from the environment of the process once it is read."""
    facts = {"read": read, "wants": wants, "about": about, "secret": secret}
    return field(default=default, repr=not secret, metadata=facts)


def _number(default: Any, read: Number, about: str) -> Any:
    return _setting(default, read, read.wants, about)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every field is also an environment variable: `ROTA_` and its name in capitals."""

    home: Path = _setting(Path("~/.rota").expanduser(), _path, "a directory", "Where Rota keeps its files")
    host: str = _setting("127.0.0.1", _text, "an address", "Address the web server listens on")
    port: int = _number(7682, PORT, "Port the web server listens on; 0 picks a free one")
    url: str = _setting("", _url, URL, "How browsers and agents reach this server, when it stands behind a proxy")
    allowed_hosts: tuple[str, ...] = _setting(
        (), _hosts, HOSTS, "Names this server may be reached by, besides that of ROTA_URL; * for any"
    )
    database_url: str = _setting(
        "", _text, "a PostgreSQL URL", "PostgreSQL 14 or newer; without it Rota runs its own", secret=True
    )
    listen_url: str = _setting(
        "", _text, "a PostgreSQL URL", "For LISTEN, when the database is behind PgBouncer", secret=True
    )
    database_wait_seconds: timedelta = _number(
        timedelta(minutes=1), SECONDS, "How long a start waits for a database that does not answer"
    )
    pool_size: int = _number(10, COUNT, "Most database connections of this process")
    prepared_statements: bool = _setting(True, _switch, "on or off", "Off for a PgBouncer older than 1.22")
    require_rls: bool = _setting(False, _switch, "on or off", "Refuse to start the API without row-level security")
    vault_keys: str = _setting(
        "", _text, "keys like id:base64, with commas", "Keys of the vault; else in the home", secret=True
    )
    login_days: timedelta = _number(timedelta(days=30), DAYS, "How long a browser stays signed in")
    login_idle_days: timedelta = _number(timedelta(days=7), DAYS, "How long, while it is not used")
    oidc_issuer: str = _setting("", _url, URL, "Identity provider that people may sign in with")
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
    workspace: str = _setting("default", _slug, SLUG, "Workspace made at the first start")
    tick_seconds: timedelta = _number(timedelta(seconds=30), SECONDS, "Longest sleep of the scheduler")
    jitter_threshold: int = _number(3, WHOLE, "Late runs that may start together after an outage")
    max_jitter: timedelta = _number(timedelta(seconds=30), SECONDS, "Span over which late runs are spread")
    max_concurrent: int = _number(5, COUNT, "Places of one worker")
    pools: tuple[str, ...] = _setting(("default",), _names, "names with commas", "Pools that this worker serves")
    http_allow: tuple[str, ...] = _setting(
        (),
        _names,
        "hosts, addresses or networks, with or without :port",
        "Private targets for agents of kind http; set it alike for API and workers",
    )
    local_agents: bool = _setting(True, _switch, "on or off", "Whether agents may be programs on this server")
    sandbox: str = _setting(
        "guard", _sandbox, "guard or off", "How agents with a process on this machine are kept away from Rota"
    )
    sandbox_required: bool = _setting(
        False, _switch, "on or off", "Refuse to start a worker where the sandbox does not work"
    )
    kubernetes_config: str = _setting(
        "", _text, "a path", "Kubeconfig for agents of kind kubernetes; else the cluster around, or ~/.kube/config"
    )
    kubernetes_context: str = _setting("", _text, "a name", "Context of that file; else its current one")
    kubernetes_namespace: str = _setting(
        "", _label, LABEL, "Where Jobs of agents are made; else where the context or this pod is"
    )
    kubernetes_url: str = _setting("", _url, URL, "How pods reach the API, if not by ROTA_URL")
    rate_limit: int = _number(50, WHOLE, "Requests a second of one token or login; 0 for any number")
    workspace_rate_limit: int = _number(500, WHOLE, "Requests a second of one workspace; 0 for any")
    notify_allow: tuple[str, ...] = _setting(
        (), _names, "hosts, addresses or networks, with or without :port", "Private targets for notifications"
    )
    notify_schemes: tuple[str, ...] = _setting(
        (), _names, "names with commas", "Schemes that targets of notifications may have; else all but local ones"
    )
    poll_seconds: timedelta = _number(timedelta(seconds=5), SECONDS, "Longest sleep of a worker")
    lease_seconds: timedelta = _number(timedelta(seconds=60), SECONDS, "How long a claim lasts unrenewed")
    heartbeat_seconds: timedelta = _number(timedelta(seconds=10), SECONDS, "How often leases are renewed")
    rescue_seconds: timedelta = _number(timedelta(seconds=15), SECONDS, "How often lost runs are looked for")
    grace_seconds: timedelta = _number(timedelta(seconds=10), SECONDS, "How long runs may go on after SIGTERM")
    dead_after: int = _number(2, FEW, "Missed heartbeats after which a worker counts as dead")
    snapshot_seconds: timedelta = _number(timedelta(seconds=60), SECONDS, "How often the house is counted")
    keep_events_days: timedelta = _number(timedelta(days=90), DAYS, "How long events and transcripts are kept")
    keep_runs_days: timedelta | None = _number(
        None, DAYS_OF_RUNS, "How long runs are kept, and never shorter than events and transcripts; else for ever"
    )
    keep_directories_days: timedelta = _number(
        timedelta(days=30), DAYS, "How long the directory of a session is kept after its end"
    )
    keep_snapshots_days: timedelta = _number(timedelta(days=7), DAYS, "How long snapshots are kept")
    keep_audit_days: timedelta = _number(timedelta(days=400), DAYS, "How long the audit log is kept")
    keep_notifications_days: timedelta = _number(timedelta(days=90), DAYS, "How long notifications are kept")
    header_seconds: timedelta = _number(
        timedelta(seconds=10), SECONDS, "How long the headers of a request may take to arrive"
    )
    body_seconds: timedelta = _number(
        timedelta(seconds=10), SECONDS, "How long a request body may pause while it arrives"
    )
    max_unauthenticated_bytes: int = _number(
        8_388_608, BYTES, "Bodies held at once for callers who are not signed in, such as webhooks"
    )
    max_streams: int = _number(100, WHOLE, "Open streams and long polls of one token or login; 0 for any number")
    max_body_bytes: int = _number(1_048_576, BYTES, "Largest request body")
    max_artifact_bytes: int = _number(104_857_600, BYTES, "Largest content of an artifact")
    artifacts_url: str = _setting("", _store_url, STORE_URL, "Where artifacts are kept; else in the home")
    keep_artifacts_days: timedelta = _number(timedelta(days=90), DAYS, "How long artifacts are kept")
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
