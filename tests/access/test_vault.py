"""The vault and its ring of keys: what opens what, turning the ring at work, and a start without the key."""

import asyncio
import base64
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from rota.access import credentials, key_ring, sealing
from rota.access.vault import Vault, open_vault
from rota.cli import main
from rota.db import sealed
from rota.errors import Broken, CannotStart, Conflict, Invalid
from rota.roster import triggers
from support.house import House
from support.waiting import until

OLD, NEW = {"old": bytes(32)}, {"new": bytes(range(32))}


def ring(keys: dict[str, bytes]) -> str:
    return ",".join(f"{key_id}:{base64.b64encode(key).decode()}" for key_id, key in keys.items())


async def save(house: House, vault: Vault, name: str = "openai") -> None:
    async with house.db.transaction() as conn:
        await credentials.create(conn, vault, house.caller, {"name": name, "value": "a value of some length"})


def test_what_is_sealed_opens_in_its_place_under_any_key_of_the_ring() -> None:
    vault, turned = Vault(OLD), Vault({**NEW, **OLD})
    box = vault.seal("secret", "here")
    assert vault.seal("secret", "here") != box, "the nonce is never the same"
    assert turned.unseal(box, "here") == "secret"
    assert turned.newest == "new"
    with pytest.raises(Broken, match="changed or moved"):
        turned.unseal(box, "there")
    with pytest.raises(Broken, match="changed or moved"):
        turned.unseal(box[:-1] + bytes([box[-1] ^ 1]), "here")
    with pytest.raises(Broken, match="no key 'old'"):
        Vault(NEW).unseal(box, "here")


def test_a_text_is_known_again_by_its_mark_also_after_the_ring_was_turned_and_nobody_else_can_make_one() -> None:
    [mark] = Vault(OLD).marks(b"1234")
    newest, older = Vault({**NEW, **OLD}).marks(b"1234")
    assert older == mark != newest
    assert Vault(OLD).marks(b"1235") != [mark]
    assert mark not in Vault(NEW).marks(b"1234")


@pytest.mark.parametrize(
    "text", ["k1", "k1:", ":AAAA", "k1:AAAA", f"{'k' * 33}:{ring(OLD)[4:]}", "ü:x", ring(OLD) + ",x"]
)
def test_a_ring_that_cannot_be_read_stops_the_start_and_is_not_repeated(text: str, tmp_path: Path) -> None:
    with pytest.raises(CannotStart) as refusal:
        open_vault(tmp_path, text)
    assert refusal.value.message.startswith("ROTA_VAULT_KEYS must hold keys")


def test_the_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    box = open_vault(tmp_path / "home").seal("secret", "here")
    assert open_vault(tmp_path / "home").unseal(box, "here") == "secret"
    file = tmp_path / "home" / "vault.keys"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == ["vault.keys"]


def test_two_first_starts_with_the_same_number_make_one_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in two containers that share a home: the second looked before the first had made the file."""
    link, made = os.link, []

    def just_before(new: Path, file: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        monkeypatch.setattr(Path, "exists", lambda _: False)
        link(new, file)
        made.append(file.read_text())
        key_ring.open_ring(tmp_path)

    monkeypatch.setattr(os, "link", just_before)
    key_ring.open_ring(tmp_path)
    assert [(tmp_path / key_ring.FILE).read_text()] == made
    assert [each.name for each in tmp_path.iterdir()] == [key_ring.FILE]


def test_a_ring_that_is_turned_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_ring.open_ring(tmp_path)
    read = key_ring._from_file

    def overtaken(file: Path) -> key_ring.Keys:
        found = read(file)
        monkeypatch.setattr(key_ring, "_from_file", read)
        key_ring.turn(tmp_path)
        return found

    monkeypatch.setattr(key_ring, "_from_file", overtaken)
    vault = open_vault(tmp_path)
    assert vault.newest == next(iter(read(tmp_path / key_ring.FILE)))


def test_a_vault_at_work_notices_that_the_ring_was_turned(tmp_path: Path) -> None:
    at_work, elsewhere = open_vault(tmp_path), open_vault(tmp_path)
    before = at_work.seal("first", "here")
    key_id = key_ring.turn(tmp_path)
    after = at_work.seal("second", "here")
    assert after[1 : 1 + after[0]].decode() == at_work.newest == key_id
    assert (elsewhere.unseal(before, "here"), elsewhere.unseal(after, "here")) == ("first", "second")
    assert stat.S_IMODE((tmp_path / "vault.keys").stat().st_mode) == 0o600


def test_a_ring_that_becomes_unreadable_leaves_a_vault_at_work_as_it_was(tmp_path: Path) -> None:
    vault = open_vault(tmp_path)
    box = vault.seal("secret", "here")
    for broken in ("nonsense", None):
        (tmp_path / "vault.keys").write_text(broken) if broken else (tmp_path / "vault.keys").unlink()
        assert vault.unseal(vault.seal("more", "here"), "here") == "more"
        assert vault.unseal(box, "here") == "secret"


async def test_everything_is_sealed_anew_and_only_then_the_old_key_may_go(house: House, tmp_path: Path) -> None:
    vault = open_vault(tmp_path)
    old = vault.newest
    await save(house, vault)
    await house.automation({"webhook": {}})
    async with house.db.transaction() as conn:
        [trigger] = await (await conn.execute("SELECT id FROM triggers")).fetchone() or []
        secret = await triggers.new_secret(conn, vault, house.caller.workspace_id, trigger)
        [name] = await (await conn.execute("SELECT name FROM credentials")).fetchone() or []
        await credentials.change(conn, vault, house.caller, name, {"value": "another value"})
    new = key_ring.turn(tmp_path)
    async with house.db.transaction() as conn:
        assert await sealed.counts(conn) == {old: 3}
        with pytest.raises(Conflict) as refusal:
            await sealing.forget(conn, tmp_path, old)
        assert refusal.value.code == "key_in_use"
    told: list[int] = []
    assert await sealing.reseal(house.db, vault, told=told.append) == 3 == sum(told)
    async with house.db.transaction() as conn:
        assert await sealed.counts(conn) == {new: 3}
        await sealing.forget(conn, tmp_path, old)
    fresh = open_vault(tmp_path)
    assert fresh.key_ids == [new]
    async with house.db.connection() as conn:
        found = {each.kind: each for each in await sealed.stale(conn, "none of them", limit=10)}
    assert fresh.unseal(found["webhook_secrets"].sealed, found["webhook_secrets"].place) == secret
    values = [fresh.unseal(found[kind].sealed, found[kind].place) for kind in ("credentials", "former_credentials")]
    assert values == ["another value", "a value of some length"]


async def test_what_does_not_open_is_named_and_keeps_nothing_else_from_being_sealed_anew(house: House) -> None:
    for name in ("first", "second", "third"):
        await save(house, Vault(OLD), name=name)
    await house.execute(
        "UPDATE credentials SET sealed = set_byte(sealed, 20, get_byte(sealed, 20) # 1) WHERE name = 'second'"
    )
    broken = await house.value("SELECT id FROM credentials WHERE name = 'second'")
    with pytest.raises(Broken, match=f"(?s)2 secret.*/{broken}") as failure:
        await sealing.reseal(house.db, Vault({**NEW, **OLD}))
    assert failure.value.code == "vault_tampered"
    async with house.db.connection() as conn:
        assert await sealed.counts(conn) == {"new": 2, "old": 1}


async def test_a_value_that_is_changed_while_it_is_sealed_anew_keeps_the_change(house: House) -> None:
    vault = Vault({**NEW, **OLD})
    await save(house, Vault(OLD))
    async with house.db.connection() as conn:
        [stale] = await sealed.stale(conn, "new", limit=1)
        changed = vault.seal("changed meanwhile", stale.place)
        await conn.execute("UPDATE credentials SET sealed = %s", [changed])
        await sealed.reseal(conn, stale, vault.seal("a value of some length", stale.place))
    assert await house.value("SELECT sealed FROM credentials") == changed


async def test_who_forgets_a_key_waits_for_those_who_are_sealing(house: House, tmp_path: Path) -> None:
    vault = open_vault(tmp_path)
    old = vault.newest
    async with house.db.transaction() as writing:
        await credentials.create(writing, vault, house.caller, {"name": "late", "value": "a value of some length"})
        key_ring.turn(tmp_path)

        async def forget() -> None:
            async with house.db.transaction() as conn:
                await sealing.forget(conn, tmp_path, old)

        forgetting = asyncio.create_task(forget())
        waits = (
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        await until(lambda: house.value(waits))
    with pytest.raises(Conflict):
        await forgetting
    assert old in open_vault(tmp_path).key_ids


def test_the_last_key_and_one_that_is_not_there_are_not_forgotten(tmp_path: Path) -> None:
    only = open_vault(tmp_path).newest
    with pytest.raises(Invalid, match="only key"):
        key_ring.forget(tmp_path, only)
    with pytest.raises(Invalid, match="no key 'other'"):
        key_ring.forget(tmp_path, "other")


async def test_secrets_without_their_key_stop_the_start_and_no_new_ring_is_made(house: House, tmp_path: Path) -> None:
    await save(house, Vault(OLD))
    async with house.db.connection() as conn:
        with pytest.raises(CannotStart) as lost:
            await sealing.open_for(conn, tmp_path)
        assert lost.value.code == "vault_key_missing"
        assert str(tmp_path / "vault.keys") in lost.value.message
        assert not (tmp_path / "vault.keys").exists()
        with pytest.raises(CannotStart, match="sealed with the key 'old', which is not in the vault's ring"):
            await sealing.open_for(conn, tmp_path, ring(NEW))
        with pytest.raises(CannotStart, match="another key of the same name"):
            await sealing.open_for(conn, tmp_path, ring({"old": bytes([1]) * 32}))
        assert (await sealing.open_for(conn, tmp_path, ring({**NEW, **OLD}))).newest == "new"


async def test_a_row_that_was_changed_stops_the_start_only_while_nothing_shows_that_the_key_is_right(
    house: House, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        await save(house, Vault(OLD), name)
    change = "UPDATE credentials SET sealed = sealed || '\\x00'::bytea WHERE name = %s"
    async with house.db.connection() as conn:
        await house.execute(change, "first")
        assert (await sealing.open_for(conn, tmp_path, ring(OLD))).newest == "old"
        await house.execute(change, "second")
        with pytest.raises(CannotStart, match="or that row was changed") as told:
            await sealing.open_for(conn, tmp_path, ring(OLD))
    assert told.value.code == "vault_tampered"


@pytest.mark.parametrize("sealed", [b"", b"\x03old", b"\x03old" + bytes(5), b"\x03old" + bytes(40)])
def test_what_was_cut_short_is_told_as_changed(sealed: bytes) -> None:
    with pytest.raises(Broken) as told:
        Vault(OLD).unseal(sealed, "credential/a/b")
    assert told.value.code in {"vault_tampered", "vault_key_missing"}


def test_the_command_line_turns_the_ring_and_shows_it(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", database_url)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path))

    def keys(*arguments: str) -> list[str]:
        done = CliRunner().invoke(main, ["keys", *arguments])
        return [*done.output.splitlines(), str(done.exit_code)]

    [_, first, code] = keys("list")
    assert (first.split(maxsplit=1)[1], code) == ("0        seals what is new", "0")
    [*_, told, code] = keys("rotate")
    assert (told.startswith("Sealed anew with k"), code) == (True, "0")
    [_, new, old, _] = keys("list")
    assert new.endswith("seals what is new")
    assert (old.split()[0], old.endswith("opens what is old")) == (first.split()[0], True)
    assert keys("forget", old.split()[0])[-2:] == [f"{old.split()[0]} is forgotten.", "0"]
    monkeypatch.setenv("ROTA_VAULT_KEYS", ring({**NEW, **OLD}))
    assert keys("rotate")[-1] == "2"
    assert keys("reseal")[-2:] == ["Sealed anew with new: 0.", "0"]
