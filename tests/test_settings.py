"""What an operator may set: every name documented, a wrong one told with what was meant, a wrong value named."""

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.cli import options
from rota.errors import CannotStart
from rota.settings import Number, Settings, read_settings, variable

DOCUMENT = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"


def refusal(**environment: str) -> CannotStart:
    with pytest.raises(CannotStart) as refused:
        read_settings(environment)
    return refused.value


def test_nothing_set_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_PORT", "1")
    assert read_settings({}) == Settings()


def test_without_an_environment_given_the_real_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_PORT", "8123")
    assert read_settings().port == 8123


def test_values_are_read_as_what_they_are() -> None:
    read = read_settings(
        {
            "ROTA_HOME": "~/somewhere", "ROTA_PORT": "0", "ROTA_POOLS": "gpu, default,", "ROTA_LEASE_SECONDS": "90.5",
            "ROTA_PREPARED_STATEMENTS": "off", "ROTA_JITTER_THRESHOLD": "0", "ROTA_URL": "https://rota.example/base",
            "ROTA_WORKSPACE": "ops-2", "ROTA_LOG_LEVEL": "debug",
        }
    )  # fmt: skip
    assert read.home == Path.home() / "somewhere"
    assert (read.port, read.pools, read.lease_seconds) == (0, ("gpu", "default"), timedelta(seconds=90.5))
    assert (read.prepared_statements, read.jitter_threshold) == (False, 0)
    assert (read.url, read.workspace, read.log_level) == ("https://rota.example/base", "ops-2", "debug")


def test_an_empty_value_is_no_value() -> None:
    assert read_settings({variable(each.name): "" for each in fields(Settings)}) == Settings()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ROTA_DATABSE_URL", "ROTA_DATABASE_URL"),
        ("ROTA_MAX_CONCURENT", "ROTA_MAX_CONCURRENT"),
        ("ROTA_LEASE_SECOND", "ROTA_LEASE_SECONDS"),
        ("ROTA_port", "ROTA_PORT"),
        ("ROTA_FLAVOUR", None),
    ],
)
def test_an_unknown_name_stops_the_start_and_says_what_was_meant(name: str, meant: str | None) -> None:
    refused = refusal(**{name: "1"})
    assert (refused.code, refused.field) == ("unknown_setting", name)
    assert name in refused.message
    assert (f"Did you mean {meant}?" if meant else "docs/reference/settings.md") in refused.message


def test_the_document_that_a_refusal_names_is_there() -> None:
    [path] = re.findall(r"`(docs/\S+)`", refusal(ROTA_FLAVOUR="1").message)
    assert (DOCUMENT.parents[2] / path).samefile(DOCUMENT)


def test_names_that_agents_and_tests_find_in_their_environment_are_not_taken_for_settings() -> None:
    foreign = {"ROTA_RUN_ID": "x", "ROTA_SESSION_ID": "x", "ROTA_TOKEN": "x", "ROTA_TEST_DATABASE_URL": "x"}
    assert read_settings({**foreign, "PATH": "/bin", "rota_port": "x"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("ROTA_PORT", value) for value in ("http", "65536", "-1", "80.5", " ")],
        *[("ROTA_POOL_SIZE", value) for value in ("0", "-3", "many", "1e3", "9" * 5000)],
        *[("ROTA_MAX_CONCURRENT", value) for value in ("0", "99999999999")],
        *[("ROTA_LEASE_SECONDS", value) for value in ("0", "-1", "nan", "inf", "1e300", "1e-300", "10s")],
        *[("ROTA_JITTER_THRESHOLD", value) for value in ("-1", "x")],
        *[("ROTA_PREPARED_STATEMENTS", value) for value in ("maybe", "2")],
        *[("ROTA_WORKSPACE", value) for value in ("My Team", "-a", "a" * 64, "Ops")],
        *[("ROTA_URL", value) for value in ("rota.example", "ftp://rota.example", "http://", "http://[")],
        *[
            ("ROTA_OIDC_ISSUER", f"https://{value}")
            for value in ("a b", "a\n", "a:0", "a:65536", "a:x", "me:pw@a", "@a", "a\\@b", ":443", "a\u2028")
        ],
        *[("ROTA_ARTIFACTS_URL", value) for value in ("s3:/bucket", "bucket", "s3:bucket", "s3://a b", "file://\n")],
        ("ROTA_POOLS", ","),
        ("ROTA_DEAD_AFTER", "0"),
        ("ROTA_MAX_BODY_BYTES", "0"),
        ("ROTA_LOG_LEVEL", "LOUD"),
        ("ROTA_HOME", "~nobody-by-this-name/rota"),
    ],
)
def test_a_wrong_value_stops_the_start_and_is_named_with_what_it_must_be(name: str, value: str) -> None:
    refused = refusal(**{name: value})
    [wants] = [each.metadata["wants"] for each in fields(Settings) if variable(each.name) == name]
    assert (refused.code, refused.field) == ("invalid_setting", name)
    assert refused.message == f"{name} is {value!r}; it must be {wants}."


NUMBERS = {
    variable(each.name): each.metadata["read"]
    for each in fields(Settings)
    if isinstance(each.default, int | timedelta) and not isinstance(each.default, bool)
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_outside_its_range_is_told_the_range(name: str) -> None:
    read = NUMBERS[name]
    assert isinstance(read, Number)
    for beyond in (read.least - 1, read.least / 2 - 0.0001, read.most + 1):
        message = refusal(**{name: f"{beyond:.12g}"}).message
        assert message.startswith(f"{name} is '{beyond:.12g}'; it must be a ")
        assert message.replace(",", "").endswith(f" from {read.least} to {read.most}.")
    for edge in (read.least, read.most):
        read(str(edge))


def test_no_grace_is_refused_with_what_would_be_right() -> None:
    told = "ROTA_GRACE_SECONDS is '0'; it must be a number of seconds from 0.001 to 1,000,000,000."
    assert refusal(ROTA_GRACE_SECONDS="0").message == told


def test_a_lease_that_would_end_between_heartbeats_is_refused() -> None:
    refused = refusal(ROTA_LEASE_SECONDS="15", ROTA_HEARTBEAT_SECONDS="10")
    assert refused.field == "ROTA_LEASE_SECONDS"
    assert "ROTA_HEARTBEAT_SECONDS" in refused.message
    assert read_settings({"ROTA_LEASE_SECONDS": "20", "ROTA_HEARTBEAT_SECONDS": "10"})


def test_settings_never_change_after_they_were_read() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


def test_what_the_command_line_says_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROTA_HOME", "/from/the/environment")
    monkeypatch.setenv("ROTA_PORT", "1111")
    monkeypatch.setenv("ROTA_HOST", "127.0.0.2")
    chosen = options.settings_with(home=tmp_path, port=0, host=None)
    assert (chosen.home, chosen.port, chosen.host) == (tmp_path, 0, "127.0.0.2")


# The document ------------------------------------------------------------------------------------------------------


def told(value: Any, wants: str) -> str:
    match value:
        case timedelta() if "of days" in wants:
            return f"`{value.days}`"
        case timedelta():
            return f"`{value.total_seconds():g}`"
        case bool():
            return "`on`" if value else "`off`"
        case ():
            return ""
        case tuple():
            return f"`{','.join(value)}`"
        case Path():
            return f"`~/{value.relative_to(Path.home())}`"
        case "" | None:
            return ""
        case _:
            return f"`{value}`"


def test_every_setting_is_documented_as_it_is_and_no_other() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `ROTA_")]
    assert rows == [
        f"| `{variable(each.name)}` | {each.metadata['wants']} | {told(each.default, each.metadata['wants'])} | {each.metadata['about']} |"
        for each in fields(Settings)
    ]


@pytest.mark.parametrize(
    ("given", "field", "told"),
    [
        ({"ROTA_RESCUE_SECONDS": "61"}, "ROTA_RESCUE_SECONDS", "is 61; it must be at most 60,"),
        ({"ROTA_DEAD_AFTER": "7"}, "ROTA_DEAD_AFTER", "is 7; it must be at most 6,"),
        ({"ROTA_HEARTBEAT_SECONDS": "31"}, "ROTA_LEASE_SECONDS", "is 60; it must be at least 62,"),
        (
            dict.fromkeys(("ROTA_LEASE_SECONDS", "ROTA_HEARTBEAT_SECONDS"), "1e9"),
            "ROTA_LEASE_SECONDS",
            "at least 2000000000,",
        ),
    ],
)
def test_spans_that_contradict_each_other_stop_the_start_and_say_which_and_what_would_be_right(
    given: dict[str, str], field: str, told: str
) -> None:
    refused = refusal(**given)
    assert (refused.code, refused.field) == ("invalid_setting", field)
    assert "ROTA_LEASE_SECONDS" in refused.message
    assert told in refused.message


def test_the_most_of_everything_is_refused_in_words_too() -> None:
    most = {"ROTA_LEASE_SECONDS": "1e9", "ROTA_HEARTBEAT_SECONDS": "5e8", "ROTA_DEAD_AFTER": "1000"}
    assert "it must be at most 1," in refusal(**most).message


@pytest.mark.parametrize("lease", ["0.5", "2", "60", "3600"])
def test_all_that_is_derived_from_a_lease_is_in_order(lease: str) -> None:
    spans = read_settings(
        {"ROTA_LEASE_SECONDS": lease, "ROTA_HEARTBEAT_SECONDS": str(float(lease) / 3), "ROTA_RESCUE_SECONDS": "0.5"}
    ).timeouts
    assert spans.heartbeat < spans.answer < spans.stop < spans.stop + spans.kill < spans.lease
    assert spans.kill <= timedelta(seconds=5)


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "s3cret" not in repr(read_settings({"ROTA_DATABASE_URL": "postgresql://me:s3cret@h/d"}))
