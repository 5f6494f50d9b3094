"""`rota users`, `workspaces`, `tokens` and `sign-in --user`: what an operator does for people, from the command line."""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from rota.access import signing_in
from rota.cli import main
from rota.db import identities, people
from rota.errors import Unauthenticated
from rota.http.shapes.people import TokenOut
from rota.model.caller import Level
from rota.roster import members
from support.house import House

ADA = "ada@example.org"
Command = Callable[..., Awaitable[Result]]


@pytest.fixture
def rota(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("ROTA_DATABASE_URL", database_url)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path))

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, arguments)

    return run


@pytest.fixture
async def ada(house: House) -> str:
    """A member of the house; the secret of her link."""
    async with house.db.transaction() as conn:
        person = await members.person(conn, house.caller, ADA, "Ada")
        await members.join(conn, house.caller, person.id, Level.MEMBER)
        return await signing_in.create_link(conn, person.id)


async def opens(house: House, secret: str) -> str:
    async with house.db.transaction() as conn:
        return await signing_in.sign_in(conn, secret)


@pytest.mark.usefixtures("ada")
async def test_everybody_is_listed_with_their_workspaces(rota: Command) -> None:
    told = await rota("users", "list")
    assert told.exit_code == 0, told.output
    [line] = [line for line in told.output.splitlines() if line.startswith(ADA)]
    assert line.split() == [ADA, "Ada", "default", "on"]
    listed = [json.loads(line) for line in (await rota("users", "list", "--json")).output.splitlines()]
    assert {"email": ADA, "workspaces": ["default"], "disabled": False}.items() <= next(
        each for each in listed if each["email"] == ADA
    ).items()


async def test_who_is_switched_off_comes_in_nowhere_until_switched_on(rota: Command, house: House, ada: str) -> None:
    assert (await rota("users", "disable", ADA.upper())).output == f"{ADA.upper()} is switched off.\n"
    assert "switched off" in (await rota("users", "list")).output
    assert (await rota("users", "disable", ADA)).output == f"{ADA} was switched off already.\n"
    with pytest.raises(Unauthenticated):
        await opens(house, ada)
    assert (await rota("users", "enable", ADA)).output == f"{ADA} is switched on.\n"
    assert (await rota("users", "enable", ADA)).output == f"{ADA} was not switched off.\n"
    assert await opens(house, await _link(rota))


@pytest.mark.usefixtures("house")
async def test_a_list_in_json_has_times_and_fields_as_the_api_has_them(rota: Command) -> None:
    assert (await rota("tokens", "create", "script", "--lasts", "2d")).exit_code == 0
    [token] = [json.loads(line) for line in (await rota("tokens", "list", "--json")).output.splitlines()]
    assert TokenOut.model_validate(token).model_dump(mode="json").keys() == token.keys()
    [workspace] = [json.loads(line) for line in (await rota("workspaces", "list", "--json")).output.splitlines()]
    for instant in (token["created_at"], token["expires_at"], workspace["created_at"]):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", instant), instant


async def test_a_link_signs_its_person_in_once_and_ends_older_ones(rota: Command, house: House, ada: str) -> None:
    secret = await _link(rota)
    with pytest.raises(Unauthenticated):
        await opens(house, ada)
    login = await opens(house, secret)
    async with house.db.connection() as conn:
        found = await people.find_user(conn, ADA)
        assert found
        assert await signing_in.user_by_login(conn, login) == found["id"]
    with pytest.raises(Unauthenticated):
        await opens(house, secret)


@pytest.mark.usefixtures("house")
async def test_a_link_leads_to_where_the_rota_of_this_home_answers(
    rota: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "up.lock").write_text(json.dumps({"url": "http://127.0.0.1:7931", "pid": os.getpid()}))
    for command in (["sign-in"], ["workspaces", "create", "night-shift"]):
        assert (await rota(*command)).output.startswith("http://127.0.0.1:7931/sign-in?token=")
    assert (await rota("sign-in", "--port", "7940")).output.startswith("http://127.0.0.1:7940/sign-in?token=")
    monkeypatch.setenv("ROTA_URL", "https://rota.example")
    assert (await rota("sign-in")).output.startswith("https://rota.example/sign-in?token=")


@pytest.mark.usefixtures("ada")
async def test_who_is_unlinked_is_known_to_no_provider_and_the_audit_log_tells_it(rota: Command, house: House) -> None:
    async with house.db.transaction() as conn:
        found = await people.find_user(conn, ADA)
        assert found
        await identities.add(conn, "https://id.example", "s-1", found["id"])
    told = (await rota("users", "unlink", ADA)).output
    assert told == f"{ADA} is unlinked: who signs in next with this verified address is them.\n"
    assert (await rota("users", "unlink", ADA)).output == f"{ADA} was not known to an identity provider.\n"
    assert await house.value("SELECT count(*) FROM identities") == 0
    changed = "SELECT before FROM audit WHERE action = 'member.change'"
    assert await house.value(changed) == {"identities": ["https://id.example"]}


@pytest.mark.usefixtures("house")
@pytest.mark.parametrize(
    "command", [("users", "disable"), ("users", "enable"), ("users", "unlink"), ("sign-in", "--user")], ids=" ".join
)  # fmt: skip
async def test_who_is_unknown_is_told_of_and_nothing_is_done(rota: Command, command: tuple[str, ...]) -> None:
    told = await rota(*command, "nobody@example.org")
    assert told.exit_code == 2
    assert "'nobody@example.org'" in told.output


async def test_the_last_admin_stays(rota: Command, house: House) -> None:
    await house.execute("UPDATE users SET email = 'first@example.org' WHERE id = %s", house.caller.user_id)
    told = await rota("users", "disable", "first@example.org")
    assert told.exit_code == 2
    assert "'default'" in told.output
    assert "switched off" not in (await rota("users", "list")).output


async def test_a_workspace_more_has_an_admin_of_its_own_whom_the_printed_link_signs_in(
    rota: Command, house: House
) -> None:
    login = await opens(house, _secret(await rota("workspaces", "create", "night-shift", "--name", "Night shift")))
    async with house.db.connection() as conn:
        caller = await signing_in.caller_by_login(conn, "night-shift", login)
        assert [each["slug"] for each in await people.workspaces_of(conn, caller.user_id)] == ["night-shift"]
    assert (caller.level, caller.user_id != house.caller.user_id) == (Level.ADMIN, True)
    assert await house.value("SELECT action FROM audit WHERE workspace_id = %s", caller.workspace_id)
    rows = [line.split("  ") for line in (await rota("workspaces", "list")).output.splitlines()]
    assert [row[0] for row in rows] == ["SLUG", "default", "night-shift"]
    [_, listed] = [json.loads(line) for line in (await rota("workspaces", "list", "--json")).output.splitlines()]
    assert {"slug": "night-shift", "name": "Night shift", "members": 1}.items() <= listed.items()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["default"], "There is a workspace 'default' already."),
        (["Night shift"], "is not a slug"),
        (["night", "--name", " "], "Give it a name."),
    ],
)
async def test_a_workspace_that_cannot_be_made_is_refused(
    rota: Command, house: House, given: list[str], told: str
) -> None:
    answer = await rota("workspaces", "create", *given)
    assert (answer.exit_code, told in answer.output) == (2, True), answer.output
    assert await house.value("SELECT count(*) FROM workspaces") == 1


async def test_who_only_looks_at_tokens_or_ends_one_makes_no_workspace(
    rota: Command, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_WORKSPACE", "typo")
    for command in (["list"], ["revoke", str(house.caller.user_id)]):
        told = await rota("tokens", *command)
        assert (told.exit_code, "'typo'" in told.output) == (2, True), told.output
    assert await house.value("SELECT count(*) FROM workspaces") == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "Give it a name."),
        (" ", "Give it a name."),
        ("\u200b\u202e \u3164", "Give it a name."),
        ("x" * 201, "at most 200"),
    ],
)
async def test_a_token_has_a_name_as_the_api_wants_it(rota: Command, house: House, name: str, told: str) -> None:
    answer = await rota("tokens", "create", name)
    assert (answer.exit_code, told in answer.output) == (2, True), answer.output
    assert await house.value("SELECT count(*) FROM tokens") == 0


async def _link(rota: Command) -> str:
    return _secret(await rota("sign-in", "--user", ADA))


def _secret(told: Result) -> str:
    assert told.exit_code == 0, told.output
    return parse_qs(urlsplit(told.output.strip()).query)["token"][0]
