"""The nouns of administration on the command line: grants, accounts, credentials, members, notifications, audit."""

import pytest

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
