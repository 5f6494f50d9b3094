"""`rota apply` against a real server: what it shows, what it writes, and that applying twice changes nothing."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from rota.model.caller import Level
from rota.roster import members
from support.api_client import Office
from support.doc_pages import ROOT, blocks

from .conftest import Answer, Command

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITTEN = ("agents", "automations", "triggers", "grants", "revisions", "audit", "webhook_secrets", "runs")
POET: dict[str, Any] = {"name": "Poet", "executor": "command", "config": {"argv": ["cat"]}}
DUE = (datetime.now(UTC) + timedelta(days=400)).strftime("%Y-%m-%dT09:00")

# Every form of a trigger and every spelling that the API shows in another one.
EVERYTHING = f"""
agents:
  - name:  Poet
    executor: command
    config: {{argv: [cat]}}
    max_concurrent: 2
  - {{slug: critic, name: Critic, executor: command, config: {{argv: [cat]}}, status: paused, instructions: "Be\\nfair."}}
---
automations:
  - name: Evening haiku
    agent: poet
    prompt: |
      Write a haiku
      about the sea.
    input: {{a: [1, 2.50, null], on: true}}
    timeout: 90m
    start_within: 0.5h
    late_after: 120s
    approval_expires: 24h
    session: same
    overlap: queue_one
    catch_up: all
    catch_up_limit: 3
    pre_approvals: [send]
    budget: {{per_run: {{money: 0.50, tokens: 1000}}, per_month: {{money: 10.0, tokens: 100000}}}}
    triggers:
      - {{cron: "0  9 * * MON-FRI"}}
      - {{cron: "@daily", timezone: Europe/Berlin}}
      - {{cron: "@every 45m"}}
      - {{every: 1.5h, jitter: 90s}}
      - {{every: 48h, time: "9:00"}}
      - {{at: {DUE}, timezone: Asia/Kolkata}}
      - {{mode: interval, every: 15, unit: minutes}}
      - {{mode: interval, every: 90, unit: minutes}}
      - {{mode: interval, every: 2, unit: days, time: 09:00, timezone: Europe/Berlin}}
      - {{mode: weekly, weekdays: [fri, mon], time: 18:00}}
      - {{mode: advanced, cron: "0 9  1 * *"}}
      - {{webhook: {{}}, enabled: false}}
      - {{webhook: true}}
      - {{event: invoice.paid, max_fires: 5, overlap: skip}}
      - {{after: morning, on: [failed, succeeded, failed]}}
      - {{cron: "0 7 * * *", starts_at: 2027-01-01T00:00:00+01:00, ends_at: 2030-01-01T00:00:00Z, enabled: true}}
  - {{name: Morning, agent: critic, prompt: Go., schedule: {{every: 60m}}, status: paused}}
  - {{name: By hand, agent: poet, prompt: Go., triggers: []}}
  - {{name: After, agent: poet, prompt: Go., schedule: {{after: morning}}, run_immediately: true}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    """A file with this content: text, or what becomes YAML."""

    def write(content: Any, name: str = "roster.yaml") -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return str(path)

    return write


async def count(office: Office) -> dict[str, int]:
    """How much of each there is in the workspace."""
    here, counted = office.caller.workspace_id, "SELECT count(*) FROM {} WHERE workspace_id = %s"
    return {table: await office.value(counted.format(table), here) for table in WRITTEN}


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def haiku(**more: Any) -> dict[str, Any]:
    return {"name": "Haiku", "agent": "poet", "prompt": "the sea", **more}


async def test_applying_twice_changes_nothing_and_writes_no_revision(
    rota: Command, answer: Answer, office: Office, file: Callable[..., str]
) -> None:
    path = file(EVERYTHING)
    await rota("apply", "-f", path, "--dry-run", code=3)
    first = await rota("apply", "-f", path, "--yes")
    assert "6 to create, 0 to change, 0 unchanged." in first.stdout
    assert first.stdout.count("whsec_") == 2
    before, saved = await count(office), await answer("automations", "show", "evening-haiku")
    assert len(saved["triggers"]) == 16
    assert (saved["timeout"], saved["input"]["on"]) == ("1h30m", True)
    second = await rota("apply", "-f", path, "--yes")
    assert second.stdout.splitlines() == [
        "= agent poet  unchanged",
        "= agent critic  unchanged",
        "= automation evening-haiku  unchanged",
        "= automation morning  unchanged",
        "= automation by-hand  unchanged",
        "= automation after  unchanged",
        "0 to create, 0 to change, 6 unchanged.",
    ]
    await rota("apply", "-f", path, "--dry-run")
    assert await count(office) == before
    assert await answer("automations", "show", "evening-haiku") == saved
    assert (await answer("automations", "show", "morning"))["status"] == "paused"


async def test_what_the_api_shows_is_the_same_when_it_is_applied(
    rota: Command, answer: Answer, office: Office, file: Callable[..., str]
) -> None:
    """Saved by other means, in the API's own spelling."""
    await rota("apply", "-f", file(EVERYTHING), "--yes")
    kept = ("name", "slug", "agent", "prompt", "input", "timeout", "late_after", "budget", "catch_up", "catch_up_limit")
    shown = await answer("automations", "show", "evening-haiku")
    forms = [{**each["schedule"], "enabled": each["enabled"]} for each in shown["triggers"] if not each["editor_mode"]]
    described = {name: shown[name] for name in kept}
    before = await count(office)
    await rota("apply", "-f", file({"automations": [described]}), "--dry-run")
    assert await count(office) == before
    plain = {**haiku(), "triggers": forms}
    await rota("apply", "-f", file({"automations": [plain]}), "--yes")
    await rota("apply", "-f", file({"automations": [{**plain, "triggers": forms[::-1]}]}), "--dry-run")


async def test_an_instant_that_has_passed_is_still_the_same(
    rota: Command, answer: Answer, office: Office, file: Callable[..., str]
) -> None:
    path = file({"agents": [POET], "automations": [haiku(schedule={"at": "2030-01-01T09:00:00Z"})]})
    await rota("apply", "-f", path, "--yes")
    years_pass = "UPDATE triggers SET at = '2020-01-01T09:00:00Z', next_fire_at = NULL WHERE workspace_id = %s"
    await office.execute(years_pass, office.caller.workspace_id)
    past = file({"agents": [POET], "automations": [haiku(schedule={"at": "2020-01-01T10:00:00+01:00"})]})
    await rota("apply", "-f", past, "--dry-run")
    other = file({"automations": [haiku(schedule={"at": "2020-01-02T09:00:00Z"})]})
    assert "is in the past" in (await rota("apply", "-f", other, "--yes", code=2)).stderr


async def test_a_change_is_shown_field_by_field_and_only_that_is_sent(
    rota: Command, answer: Answer, file: Callable[..., str]
) -> None:
    item = haiku(
        prompt="one\ntwo\nthree", schedule={"cron": "0 9 * * *"}, max_attempts=3, max_tasks=7, max_task_depth=2
    )
    await rota("apply", "-f", file({"agents": [POET], "automations": [item]}), "--yes")
    await rota("automations", "edit", "haiku", "--set", "pause_after_failures=4")
    changed = {
        **item, "prompt": "one\n2\nthree", "timeout": "30m", "status": "paused",
        "schedule": {"cron": "0 9 * * *", "timezone": "Europe/Berlin"},
    }  # fmt: skip
    config = {**POET["config"], "env": {"LANG": "de"}}
    path = file({"agents": [{**POET, "config": config, "pool": "gpu"}], "automations": [changed]})
    told = (await rota("apply", "-f", path, "--yes")).stdout
    assert told.splitlines() == [
        "~ agent poet  change",
        '    config.env: null → {"LANG": "de"}',
        "    pool: default → gpu",
        "~ automation haiku  change",
        "    status: active → paused",
        "    prompt:",
        "        one",
        "      - two",
        "      + 2",
        "        three",
        "    timeout: 1h → 30m",
        "    triggers:",
        "      - Every day at 09:00, UTC",
        "      + Every day at 09:00, Berlin",
        "0 to create, 2 to change, 0 unchanged.",
        "agent poet is changed.",
        "automation haiku is changed.",
    ]
    saved = await answer("automations", "show", "haiku")
    assert (saved["status"], saved["pause_after_failures"], saved["max_attempts"]) == ("paused", 4, 3)
    assert (saved["max_tasks"], saved["max_task_depth"]) == (7, 2)
    [revision, *_] = (await answer("automations", "revisions", "haiku"))["items"]
    assert set(revision["changed"]) == {"prompt", "timeout", "triggers"}
    assert (await rota("apply", "-f", path, "--dry-run")).stdout.endswith("0 to change, 2 unchanged.\n")
    resumed = file({"automations": [{"slug": "haiku", "status": "active"}]})
    await rota("apply", "-f", resumed, "--yes")
    assert (await answer("automations", "show", "haiku"))["revision"] == saved["revision"]


async def test_a_trigger_that_stays_keeps_its_id_and_a_new_webhook_tells_its_secret(
    rota: Command, answer: Answer, file: Callable[..., str]
) -> None:
    await rota("apply", "-f", file({"agents": [POET], "automations": [haiku(triggers=[{"event": "x"}])]}), "--yes")
    [kept] = (await answer("automations", "show", "haiku"))["triggers"]
    path = file({"automations": [haiku(triggers=[{"webhook": {}}, {"event": "x"}])]})
    plan = await answer("apply", "-f", path, "--yes")
    secrets = [each["secret"] for each in plan["items"][0]["answer"]["triggers"]]
    assert sorted(bool(each) for each in secrets) == [False, True]
    assert kept["id"] in [each["id"] for each in (await answer("automations", "show", "haiku"))["triggers"]]
    assert (await answer("apply", "-f", path, "--dry-run"))["items"][0]["action"] == "unchanged"


async def test_nothing_is_written_unless_it_is_answered_with_yes(
    rota: Command, office: Office, file: Callable[..., str]
) -> None:
    path = file({"agents": [POET]})
    before = await count(office)
    for answered in ("n\n", ""):
        declined = await rota("apply", "-f", path, code=1, stdin=answered)
        assert "Write this?" in declined.stdout
        assert "Nothing was written. --yes" in declined.stderr
    assert await count(office) == before
    text = json.dumps({"agents": [POET]})
    assert "--yes" in (await rota("apply", "-f", "-", code=2, stdin=text)).stderr
    assert "--yes" in (await rota("apply", "-f", path, "--json", code=2)).stderr
    await rota("apply", "-f", path, stdin="y\n")
    await rota("apply", "-f", "-", "--yes", stdin=text)
    assert (await count(office))["agents"] == before["agents"] + 1


async def test_a_directory_is_read_and_what_comes_from_one_file_may_be_used_in_another(
    rota: Command, answer: Answer, file: Callable[..., str], tmp_path: Path
) -> None:
    file({"automations": [haiku(schedule={"after": "zeal"}), {**haiku(), "name": "Zeal"}]}, "a.yaml")
    file({"agents": [POET]}, "b.yml")
    file("agents: [{}]", "c.txt")
    assert "3 to create" in (await rota("apply", "-f", str(tmp_path), "--yes")).stdout
    assert "0 to change, 3 unchanged" in (await rota("apply", "-f", str(tmp_path), "--yes")).stdout
    moved = file(
        {
            "agents": [{**POET, "name": "Bard"}],
            "automations": [haiku(agent="bard", schedule={"after": "new"}), {**haiku(agent="bard"), "name": "New"}],
        }
    )
    told = (await rota("apply", "-f", moved, "--yes")).stdout
    assert "    agent: poet → bard\n" in told
    assert "      + After 'new'\n" in told
    assert (await answer("automations", "show", "haiku"))["schedule_text"] == "After “New” succeeded"
    await rota("apply", "-f", moved, "--dry-run")


async def test_names_that_only_end_otherwise_are_not_taken_for_one_another(
    rota: Command, office: Office, file: Callable[..., str]
) -> None:
    """By a slug of each they are told apart, one at a time too; the longest that makes a slug of its own needs none."""
    before = (await count(office))["agents"]
    for name, slug in (("n" * 63, None), ("n" * 63 + " of Monday", "monday"), ("n" * 63 + " of Tuesday", "tuesday")):
        given = file({"agents": [{**POET, "name": name, **({"slug": slug} if slug else {})}]})
        assert "1 to create" in (await rota("apply", "-f", given, "--yes")).stdout
        assert "1 unchanged" in (await rota("apply", "-f", given, "--yes")).stdout
        nameless = file({"agents": [{**POET, "name": name}]})
        await rota("apply", "-f", nameless, "--yes", code=2 if slug else 0)
    assert (await count(office))["agents"] == before + 3


WRONG_FILES: list[tuple[Any, str]] = [
    ("agents: [", ":1:10: is not YAML: expected the node content"),
    ("agents:\n  - name: a\n    name: b\n", ":3:5: is not YAML: 'name' stands here twice."),
    ("automations:\n  - schedule: {cron: */5 * * * *}\n", "a cron expression stands in quotes"),
    ("agents: !!python/object:os.system {}\n", ":1:9: is not YAML: could not determine a constructor"),
    ("agents: !!timestamp 2027-01-01", "JSON has no tag:yaml.org,2002:timestamp"),
    ("1: 2", ":1:1: is not YAML: 1 is no name of a field"),
    ("- name: a", "holds the lists `agents:` and `automations:`"),
    ("agent: []", ":1: there is no 'agent'; use agents and automations. Did you mean 'agents'?"),
    ("agents: {name: a}", ":1: agents is a list"),
    ("agents: [poet]", "agent 1 is no object"),
    ("agents:\n\n  - executor: command\n", ":3: agent 1 has no name"),
    ("agents: [{name: 7}]", "agent 1 has no name. Give it one as text"),
    ("agents: [{slug: 7}]", "put it in quotes"),
    ("agents: [{name: 日報}]", "the name of agent 1 makes no slug of its own"),
    ("agents: [{name: Отчёт 1}]", "Give it a slug."),
    (
        f"agents: [{{name: A{64 * 'b'}}}]",
        "the name of agent 1 makes no slug of its own, which has Latin letters and digits, 63 at most.",
    ),
    ("agents: [{name: A b}, {slug: a-b}]", "the agent a-b is described already, at"),
    ("agents: [&a {name: x, config: *a}]", "holds itself"),
    ("agents: [{name: x, config: {a: !!float .inf}}]", "inf is no number"),
    ("\x07", "is not YAML"),
    (b"\xff\xfe\xff".decode("latin-1"), "holds the lists"),
    ("[" * 3000, "is not YAML"),
]
WRONG_ITEMS = [
    ({"agents": [{**POET, "confg": {}, "pol": 1}]}, "agent poet: confg: There is no such field; pol: There is no such field."),
    ({"agents": [{**POET, "config": {"argvv": []}}]}, "agent poet: "),
    ({"agents": [{**POET, "slug": "No slug"}]}, "is not a slug"),
    ({"automations": [haiku(agent="nobody")]}, "automation haiku: agent: There is no agent 'nobody'."),
    ({"agents": [POET], "automations": [haiku(timeot="1h")]}, "automation haiku: timeot: There is no such field."),
    ({"agents": [POET], "automations": [haiku(schedule={"cron": "61 * * * *"})]}, "schedule.cron: minute “61” is out of range"),
    ({"agents": [POET], "automations": [haiku(triggers=[{"event": "x"}, {"every": "soon"}])]}, "triggers.1.every: "),
    ({"automations": [haiku(agent="worker-bee", schedule={"after": "nobody"})]}, "There is no automation 'nobody'."),
    ({"automations": [haiku(agent="worker-bee", schedule={"every": "1h"}, triggers=[])]}, "not both"),
    ({"automations": [haiku(agent="worker-bee", catch_up="all")]}, "catch_up_limit"),
    ({"automations": [haiku(agent=["worker-bee"])]}, "agent: "),
    ({"automations": [haiku(agent="worker-bee", slug="..")]}, "is not a slug"),
    ({"automations": [haiku(agent="worker-bee", schedule={"after": "haiku"})]}, "in a circle: haiku."),
    ({"automations": [haiku(agent="worker-bee", slug="b"), haiku(agent="worker-bee", triggers=[{"after": "b"}, {"every": "soon"}])]}, "triggers.1.every: "),
    ({"automations": [haiku(agent="worker-bee", slug="b"), haiku(agent="worker-bee", triggers=[{"after": "b", "max_fires": "x"}])]}, "triggers.0.max_fires: "),
    ({"automations": [haiku(agent="worker-bee", credentials={"KEY": "nope"})]}, "There is no such credential."),
    ({"automations": [haiku(agent="worker-bee", schedule={"after": "b"}), haiku(agent="worker-bee", slug="b", schedule={"after": "haiku"})]}, "in a circle: haiku, b."),
]  # fmt: skip


async def test_a_wrong_file_is_refused_with_its_place_and_nothing_is_written(
    rota: Command, office: Office, file: Callable[..., str], tmp_path: Path
) -> None:
    for content, told in WRONG_FILES:
        path = file(content)
        refused = await rota("apply", "-f", path, "--yes", code=2)
        assert told in refused.stderr, content
        assert refused.stderr.startswith(f"rota: {path}"), refused.stderr
    assert "No such file" in (await rota("apply", "-f", str(tmp_path / "none.yaml"), code=2)).stderr
    (tmp_path / "empty").mkdir()
    assert "no *.yaml" in (await rota("apply", "-f", str(tmp_path / "empty"), code=2)).stderr
    (tmp_path / "roster.yaml").write_bytes(b"\xff")
    assert "is not UTF-8" in (await rota("apply", "-f", str(tmp_path / "roster.yaml"), code=2)).stderr
    assert "0 to create" in (await rota("apply", "-f", file("# nothing\n---\n"), "--yes")).stdout
    good = {"agents": [{**POET, "name": "Fine"}]}
    for content, told in WRONG_ITEMS:
        path = file(f"{yaml.safe_dump(good)}---\n{yaml.safe_dump(content)}")
        refused = await rota("apply", "-f", path, "--yes", code=2)
        assert told in refused.stderr, (content, refused.stderr)
        assert refused.stderr.startswith(f"rota: {path}:"), refused.stderr
    written = await count(office)
    assert (written["agents"], written["automations"]) == (1, 0)
    several = file({"agents": [{**POET, "a": 1}, {**POET, "name": "B", "b": 1}]})
    refused = await rota("apply", "-f", several, "--yes", code=2)
    assert [line.split(": ", 1)[-1] for line in refused.stderr.splitlines()] == [
        f"{several}:2: agent poet: a: There is no such field.",
        "agent b: b: There is no such field.",
        "Nothing was written.",
    ]


async def test_beside_a_new_agent_all_of_an_automation_is_judged_if_any_agent_is_there(
    rota: Command, office: Office, file: Callable[..., str]
) -> None:
    path = file({"agents": [POET], "automations": [haiku(credentials={"KEY": "nope"})]})
    assert "There is no such credential." in (await rota("apply", "-f", path, "--yes", code=2)).stderr
    await rota("agents", "delete", "worker-bee")
    late = file({"agents": [POET], "automations": [haiku(triggers=[{"event": "x"}, {"every": "soon"}])]})
    assert "triggers.1.every: " in (await rota("apply", "-f", late, "--yes", code=2)).stderr
    assert rows((await rota("agents", "list")).stdout)[1:] == []
    path = file({"agents": [POET], "automations": [haiku(credentials={"KEY": "nope"})]})
    refused = await rota("apply", "-f", path, "--yes", code=2)
    assert refused.stderr.endswith(
        "There is no such credential. An admin saves it first, with its value.\n1 of 2 were written; mend this one and apply again.\n"
    )
    mended = file({"agents": [POET], "automations": [haiku()]})
    assert "1 to create, 0 to change, 1 unchanged." in (await rota("apply", "-f", mended, "--yes")).stdout


async def test_a_wrong_change_is_refused_like_a_wrong_new_one(
    rota: Command, answer: Answer, file: Callable[..., str]
) -> None:
    await rota("apply", "-f", file({"agents": [POET], "automations": [haiku()]}), "--yes")
    wrong_changes: list[tuple[dict[str, Any], str]] = [
        ({"tiemout": "1h"}, "automation haiku: tiemout: There is no such field."),
        ({"timeout": "soon"}, "timeout: "),
        ({"status": "sleeping"}, "status: Use active or paused."),
        ({"schedule": {"cron": "61 * * * *"}}, "minute “61”"),
        ({"triggers": "daily"}, "triggers: "),
        ({"agent": ["poet"]}, "agent: "),
        ({"id": "x"}, "id: There is no such field."),
        ({"agent": "nobody"}, "There is no agent 'nobody'."),
    ]
    for change, told in wrong_changes:
        refused = await rota("apply", "-f", file({"automations": [haiku(**change)]}), "--yes", code=2)
        assert told in refused.stderr, refused.stderr
    assert (await answer("automations", "show", "haiku"))["revision"] == 1
    await rota("apply", "-f", file({"automations": [haiku(accept_grant=True)]}), "--dry-run")


async def test_somebody_elses_automation_needs_ones_own_grant(
    rota: Command, answer: Answer, office: Office, file: Callable[..., str]
) -> None:
    await rota("apply", "-f", file({"agents": [POET], "automations": [haiku()]}), "--yes")
    async with office.db.transaction() as conn:
        ada = await members.person(conn, office.caller, "ada@example.org", "Ada")
        await members.join(conn, office.caller, ada.id, Level.MEMBER)
    await office.execute("UPDATE grants SET user_id = %s WHERE workspace_id = %s", ada.id, office.caller.workspace_id)
    path = file({"automations": [haiku(prompt="the hill")]})
    assert "accept_grant" in (await rota("apply", "-f", path, "--yes", code=2)).stderr
    await rota("apply", "-f", path, "--yes", "--accept-grant")
    assert (await answer("automations", "show", "haiku"))["prompt"] == "the hill"


async def test_what_a_file_says_is_never_obeyed_by_a_terminal(rota: Command, file: Callable[..., str]) -> None:
    path = file(json.dumps({"agents": [{**POET, "instructions": "\x1b[2J\x9b31m\nx", "\x1b[2Jfield": 1}]}))
    told = await rota("apply", "-f", path, "--yes", code=2)
    assert "\x1b" not in told.output
    assert "\x9b" not in told.output


async def test_what_the_documentation_applies_can_be_applied(rota: Command, file: Callable[..., str]) -> None:
    told = (await rota("apply", "-f", str(ROOT / "docs" / "examples" / "roster.yaml"), "--yes")).stdout
    assert "3 to create" in told
    assert "3 unchanged" in (await rota("apply", "-f", str(ROOT / "docs" / "examples" / "roster.yaml"), "--yes")).stdout
    [block] = blocks(ROOT / "docs" / "reference" / "cli.md", "yaml")
    assert "0 to create, 2 to change, 0 unchanged." in (await rota("apply", "-f", file(block.text), "--yes")).stdout
    await rota("apply", "-f", file(block.text), "--dry-run")
