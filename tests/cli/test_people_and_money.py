"""The nouns of administration on the command line: grants, accounts, credentials, members, notifications, audit."""

from pathlib import Path

import pytest

from support.api_client import Office

from .conftest import Answer, Command

pytestmark = pytest.mark.asyncio(loop_scope="module")


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


async def test_grants_and_accounts(rota: Command, answer: Answer) -> None:
    await rota("automations", "create", "Errand", "--agent", "worker-bee", "--prompt", "Go.")
    budget = '{"per_run": {"money": "0.50"}, "per_month": {"money": "10"}}'
    account = (await rota("accounts", "create", "Marketing", "--currency", "EUR", "--budget", budget)).stdout.strip()
    await rota("automations", "renew-grant", "errand", "--account", account)
    [grant] = (await answer("grants", "list", "--automation", "errand", "--limit", "1"))["items"]
    assert grant["account_id"] == account
    assert ["automations", "errand"] in [
        line.split() for line in (await rota("grants", "show", grant["id"])).stdout.splitlines()
    ]
    assert (await rota("grants", "revoke", grant["id"])).stdout == f"{grant['id']} is revoked.\n"
    assert grant["id"] not in (await rota("grants", "list", "--status", "valid")).stdout
    assert [account, "Marketing", "EUR"] in [row[:3] for row in rows((await rota("accounts", "list")).stdout)]
    assert (await rota("accounts", "edit", account, "--name", "Sales")).stdout == "Sales is saved.\n"
    assert "money 0 of 10" in (await rota("accounts", "list")).stdout
    assert '"money": "10"' in (await rota("accounts", "show", account)).stdout
    assert (
        rows((await rota("accounts", "usage", account, "--since", "2026-01-01", "--until", "2026-02-01")).stdout) == []
    )


async def test_a_credential_comes_by_the_standard_input_and_is_never_shown(rota: Command) -> None:
    told = await rota("credentials", "create", "openai", "--usable-by", "member", stdin="sk-very-secret\n")
    told = await rota("credentials", "edit", "openai", "--value", "--description", "For all", stdin="sk-other-secret")
    assert told.stdout == "openai is saved.\n"
    assert rows((await rota("credentials", "list")).stdout) == [["openai", "member", "-", "-", "For", "all"]]
    shown = await rota("credentials", "show", "openai", "--json")
    assert "secret" not in shown.output
    assert (await rota("credentials", "delete", "openai")).stdout == "openai is deleted.\n"


async def test_people_come_change_and_go(rota: Command, answer: Answer) -> None:
    assert "/sign-in?token=" in (await rota("members", "invite", "ada@example.org", "--name", "Ada")).stdout
    assert (await rota("members", "edit", "Ada@example.org", "--level", "viewer")).stdout == "Ada is a viewer.\n"
    assert (await rota("members", "edit", "ada@example.org", "--disable")).stdout == "Ada is a viewer, switched off.\n"
    await rota("members", "edit", "ada@example.org", "--enable")
    assert "/sign-in?token=" in (await rota("members", "link", "ada@example.org")).stdout
    [ada] = [row for row in rows((await rota("members", "list")).stdout) if "Ada" in row]
    assert ada[1:5] == ["Ada", "ada@example.org", "viewer", "on"]
    await rota("members", "remove", "ada@example.org")
    assert "no member with this" in (await rota("members", "remove", "ada@example.org", code=2)).stderr
    changes = rows((await rota("audit", "list", "--action", "member.change", "--done")).stdout)
    told = [row[row.index("Local") :][:3] for row in changes]  # after “now”, or “2 s ago”
    assert told == [["Local", "admin", "member.change"]] * 3
    assert changes[-1][-1] == "level"
    assert (await answer("audit", "list", "--refused"))["items"] == []


@pytest.mark.usefixtures("worker")
async def test_notifications_are_listed_and_read(rota: Command, answer: Answer) -> None:
    await rota("agents", "create", "Clumsy", "--executor", "command", "--config", '{"argv": ["false"]}')
    await rota("automations", "create", "Errand", "--agent", "clumsy", "--prompt", "Go.")
    await rota("automations", "run", "errand", "--follow", code=1)
    page = await answer("notifications", "list", "--unread")
    [told] = page["items"]
    assert (page["unread"], told["kind"]) == (1, "run_failed")
    assert (await rota("notifications", "read", told["id"])).stdout == f"{told['id']} is read.\n"
    [row] = rows((await rota("notifications", "list", "--read")).stdout)
    assert row[0] == told["id"]
    assert (await rota("notifications", "read")).stdout == "All are read.\n"


async def test_the_workspace_and_oneself_are_shown_and_changed(rota: Command, answer: Answer) -> None:
    await rota("workspace", "edit", "--timezone", "Europe/Berlin", "--max-schedules", "7")
    told = await answer("workspace", "edit", "--set", "max_schedules=null")
    assert (told["timezone"], told["max_schedules"]) == ("Europe/Berlin", None)
    assert ["your", "level", "admin"] in rows((await rota("workspace", "show")).stdout)
    assert (await rota("me", "edit", "--name", "Ada L.")).stdout == "You are Ada L..\n"
    me = await answer("me", "show")
    assert ["level", "admin"] in rows((await rota("members", "show", me["id"])).stdout)
    assert (await rota("me", "sign-out")).stdout == "Logins ended: 0.\n"
    assert (await answer("me", "logins"))["items"] == []
    assert "two lines" in (await rota("me", "password", stdin="only one", code=2)).stderr
    assert "12 to 256" in (await rota("me", "password", stdin="old\nshort", code=2)).stderr


async def test_the_workspace_is_paused_and_resumed(rota: Command, answer: Answer) -> None:
    told = (await rota("workspace", "pause", "--reason", "The database is being moved", "--for", "2h")).stdout
    assert "The database is being moved" in told
    until = (await answer("workspace", "show"))["pause"]["until"]
    moved = await answer("workspace", "pause", "--reason", "Still moving", "--until", "2099-01-01T00:00:00Z")
    assert (moved["pause"]["reason"], moved["pause"]["until"] > until) == ("Still moving", True)
    assert "Still moving" in (await rota("workspace", "show")).stdout
    await rota("workspace", "pause", "--reason", "x", "--for", "2h", "--until", "2099-01-01T00:00:00Z", code=2)
    await rota("workspace", "pause", code=2)
    assert (await rota("workspace", "resume")).stdout == f"{moved['slug']} is resumed.\n"
    assert (await answer("workspace", "resume"))["pause"] is None


async def test_what_one_hears_of_is_chosen_and_where(rota: Command, answer: Answer) -> None:
    chosen = await answer("notifications", "choose", "paused", "--no-outward")
    assert chosen["paused"] == {"bell": True, "outward": False}
    assert ["paused", "yes", "no"] in rows((await rota("notifications", "choices")).stdout)
    assert "Say what is to change" in (await rota("notifications", "choose", "paused", code=2)).stderr
    target = (await rota("notifications", "add-target", "Mail", stdin="mailto://ada:word@example.org\n")).stdout.strip()
    [row] = rows((await rota("notifications", "targets")).stdout)
    assert row[:2] == [target, "Mail"]
    assert (await rota("notifications", "delete-target", target)).stdout == f"{target} is deleted.\n"


async def test_the_house_and_its_costs_are_told(rota: Command, answer: Answer) -> None:
    assert "rota[acp]" in (await rota("executors", "list")).stdout
    assert '"executor": "acp"' in (await rota("executors", "show", "acp")).stdout
    assert "there are acp, command" in (await rota("executors", "show", "nope", code=2)).stderr
    assert (await answer("snapshots", "list", "--all"))["next_cursor"] is None
    assert "Give an instant" in (await rota("snapshots", "list", "--before", "noon", code=2)).stderr
    assert (await answer("usage", "list"))["items"] == []
    assert "Give a day" in (await rota("usage", "list", "--since", "2026-13-01", code=2)).stderr
    assert rows((await rota("usage", "forecast")).stdout)[0][0] == "until"


async def test_snapshots_of_one_instant_are_listed_page_by_page(rota: Command, answer: Answer, office: Office) -> None:
    async with office.db.transaction() as conn:
        await conn.execute(
            """INSERT INTO snapshots (id, taken_at, host, workers, sessions, running, queued)
               SELECT gen_random_uuid(), '2026-01-01Z', 'host-' || n, 1, 0, 0, 0 FROM generate_series(1, 5) n"""
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rota.cli.noun.PAGE", 2)
        found = await answer("snapshots", "list", "--all", "--before", "2026-01-02T00:00:00Z")
    assert sorted(each["host"] for each in found["items"]) == [f"host-{n}" for n in range(1, 6)]
    assert len(rows((await rota("snapshots", "list", "--limit", "2")).stdout)) == 2


async def test_the_audit_log_is_exported_to_a_new_file(rota: Command, tmp_path: Path) -> None:
    await rota("workspace", "edit", "--name", "Office")
    file = tmp_path / "audit.csv"
    await rota("audit", "export", "--action", "workspace.change", "--format", "csv", "-o", str(file))
    assert len(file.read_text().splitlines()) == 2
    assert "is there already" in (await rota("audit", "export", "-o", str(file), code=2)).stderr
    assert '"action":"workspace.change"' in (await rota("audit", "export", "--done")).stdout
