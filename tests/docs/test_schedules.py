"""docs/reference/schedules.md against the real thing: every example accepted, every list complete, every table true."""

import asyncio
import json
import os
import re
import shutil
import sys
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest

from rota.db.listener import Wakes
from rota.errors import Invalid
from rota.http.api.runs import RunStatus
from rota.http.shapes.automations import Policies
from rota.http.shapes.fields import Overlap
from rota.model import cron
from rota.model.describe import describe
from rota.model.duration import format_duration
from rota.model.outcome import ErrorClass
from rota.model.run import SkipReason, Source, Status
from rota.model.schedule import read_schedule, short_form
from rota.roster.triggers import INBOUND, LIMITS, TIMED
from rota.scheduler.tick import Scheduler
from support.doc_pages import ROOT, SCHEDULES, Block, blocks, column, spans, table
from support.doc_requests import Api
from support.house import NOON, Clock, House

CANCELS = {ErrorClass.CANCELLED_BY_USER, ErrorClass.REPLACED}


async def test_every_example_is_accepted(api: Api) -> None:
    answer: Any = None
    for block in blocks(SCHEDULES, "json"):
        body = json.loads(block.text)
        match block.purpose.split():
            case ["POST", path]:
                answer = await api.ask("POST", path, body)
            case ["trigger"]:
                answer = await _save(api, block, body)
            case ["answer"]:
                assert answer == body
            case _:
                pytest.fail(f"line {block.line}: say what this block is for")


async def _save(api: Api, block: Block, trigger: dict[str, Any]) -> Any:
    values = {"name": f"Line {block.line}", "agent": "digest", "prompt": "x", "triggers": [trigger]}
    saved = await api.ask("POST", "/automations", values)
    if not trigger.keys() & {*LIMITS, *INBOUND}:
        await api.ask("POST", "/automations/preview", {"schedule": trigger})
    return saved


# ── Complete, and nothing stale ──────────────────────────────────────────────────────────────────────────────────


def test_every_trigger_kind_is_documented() -> None:
    assert column(SCHEDULES, "kind") == TIMED | INBOUND.keys()


def test_every_limit_of_a_trigger_is_documented() -> None:
    assert column(SCHEDULES, "key") == set(LIMITS)


def test_every_policy_is_documented_with_its_default() -> None:
    told = {spans(row[0])[0]: row[1] for row in table(SCHEDULES, "policy | default")}
    assert told == {name: _shown(name, field.default) for name, field in Policies.model_fields.items()}


def _shown(name: str, default: Any) -> str:
    if name == "overlap":
        return "by the trigger's kind"
    if isinstance(default, timedelta):
        return f"`{format_duration(default)}`"
    return "none" if default is None else str(default) if isinstance(default, int) else f"`{default}`"


def test_every_value_of_a_policy_is_documented() -> None:
    told = {spans(row[0])[0]: set(spans(row[2])) for row in table(SCHEDULES, "policy | default")}
    for name in ("catch_up", "session"):
        assert set(get_args(Policies.model_fields[name].annotation)) <= told[name]
    assert column(SCHEDULES, "`overlap`") == told["overlap"] == set(get_args(Overlap))


def test_every_status_is_documented() -> None:
    assert column(SCHEDULES, "status") == set(Status) == set(get_args(RunStatus))


def test_every_skip_reason_is_documented() -> None:
    assert column(SCHEDULES, "`skip_reason`") == set(SkipReason)


def test_every_error_class_is_documented_with_its_status() -> None:
    told = {spans(row[0])[0]: row[1] for row in table(SCHEDULES, "`error_class`")}
    assert told == {each: "cancelled" if each in CANCELS else "failed" for each in ErrorClass}


@pytest.mark.parametrize("header", ["`skip_reason`", "`error_class`", "status"])
def test_what_nothing_writes_is_called_reserved(header: str) -> None:
    source = "".join(file.read_text() for file in _writers())
    for row in table(SCHEDULES, header):
        [name] = spans(row[0])
        written = re.search(rf"\.{name.upper()}\b|'{name}'", source) is not None
        assert ("reserved" in row[-1]) is not written, name


def _writers() -> list[Any]:
    """Everything but the lists themselves, the pages' words for them and the schema."""
    files = (ROOT / "src" / "rota").rglob("*.py")
    return [file for file in files if file.name not in {"outcome.py", "words.py"} and file.parts[-2] != "ui"]


def test_every_warning_of_the_preview_is_documented() -> None:
    source = "".join((ROOT / "src" / "rota" / file / "preview.py").read_text() for file in ("model", "scheduler"))
    assert column(SCHEDULES, "warning") == set(re.findall(r'ScheduleWarning\("(\w+)"', source))


def test_every_source_that_exists_is_documented() -> None:
    [line] = re.findall(r"A run's `source` says what started it: ([^.]+)\.", SCHEDULES.read_text())
    assert set(spans(line)) == set(Source) - {Source.TASK, Source.CHAT}  # neither can be started yet


# ── True ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("expression", "words"), table(SCHEDULES, "expression | in words"))
def test_accepted_expressions_mean_what_is_said(expression: str, words: str) -> None:
    form = {"cron": expression.strip("`")}
    assert describe(read_schedule(form, default_timezone="UTC", now=NOON).schedule) == words


@pytest.mark.parametrize(("expression", "refusal"), table(SCHEDULES, "expression | refusal"))
def test_refused_expressions_are_refused_in_these_words(expression: str, refusal: str) -> None:
    with pytest.raises(Invalid) as refused:
        cron.parse(expression.strip("`"))
    assert refused.value.message == refusal


@pytest.mark.parametrize(("expression", "spring", "autumn"), table(SCHEDULES, "expression | 14 March"))
def test_fires_on_days_on_which_the_clock_shifts(expression: str, spring: str, autumn: str) -> None:
    assert _fires(expression.strip("`"), datetime(2027, 3, 14)) == spring  # noqa: DTZ001 — on the wall
    assert _fires(expression.strip("`"), datetime(2027, 11, 7)) == autumn  # noqa: DTZ001


def _fires(expression: str, day: datetime) -> str:
    zone = ZoneInfo("America/Los_Angeles")
    midnight, end = day.replace(tzinfo=zone), day.replace(hour=4, tzinfo=zone)
    found = takewhile(lambda slot: slot < end, _slots(expression, zone, midnight - timedelta(seconds=1)))
    return ", ".join(f"{slot.astimezone(zone):%H:%M %Z}" for slot in found)


def _slots(expression: str, zone: ZoneInfo, after: datetime) -> Any:
    while True:
        yield (after := cron.next_after(expression, zone, after.astimezone(UTC)))


@pytest.mark.parametrize(("form", "becomes"), table(SCHEDULES, "form"))
def test_editor_modes_become_what_is_said(form: str, becomes: str) -> None:
    compiled = read_schedule(json.loads(form.strip("`")), default_timezone="UTC", now=NOON)
    assert short_form(compiled.schedule) == json.loads(becomes.strip("`"))


@pytest.mark.parametrize(("policy", "rows"), table(SCHEDULES, "policy | rows in the ledger"))
async def test_catching_up_leaves_these_rows(house: House, wakes: Wakes, policy: str, rows: str) -> None:
    values = json.loads("{" + policy.strip("`") + "}")
    automation = await house.automation({"cron": "0 * * * *"}, next_fire_at=NOON, **values)
    await Scheduler(house.db, wakes, clock=Clock(NOON + timedelta(hours=3, minutes=30))).once()
    assert "; ".join(_told(run) for run in await house.ledger(automation)) == rows


def _told(run: dict[str, Any]) -> str:
    status = f"skipped as {run['skip_reason']}" if run["skip_reason"] else run["status"]
    told = f"{run['slot']:%H:%M} {status}"
    if missed := run["missed"]:
        told += f", missed {missed['count']} since {datetime.fromisoformat(missed['since']):%H:%M}"
    return told


# ── Signing ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("language", ["python", "sh"])
async def test_the_examples_sign_what_a_webhook_accepts(api: Api, served: str, language: str) -> None:
    [block] = blocks(SCHEDULES, language)
    program = [sys.executable, "-c"] if language == "python" else ["sh", "-c"]
    if language == "sh" and not (shutil.which("openssl") and shutil.which("curl")):
        pytest.skip("needs openssl and curl")
    values = {"name": "Hooked", "agent": "digest", "prompt": "x", "triggers": [{"webhook": {}}]}
    [trigger] = (await api.ask("POST", "/automations", values))["triggers"]
    hook = {"HOOK_URL": served + trigger["hook_path"], "HOOK_SECRET": trigger["secret"]}
    sender = await asyncio.create_subprocess_exec(
        *program, block.text, env={**os.environ, **hook}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(sender.communicate(), 20)
    [run_id] = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", output.decode()) or [errors.decode() + output.decode()]
    run = await api.ask("GET", f"/runs/{run_id}")
    assert (run["source"], run["payload"]) == ("webhook", {"invoice": 4711})
