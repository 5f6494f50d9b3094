"""Artifacts: names, addresses and types that nobody can be tricked with."""

import pytest

from rota.errors import Invalid
from rota.model.artifact import check_name, check_uri, named, served_as


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "...",
        "a/b",
        "../etc/passwd",
        "..\\x",
        "C:x",
        "a\nb",
        "a\0b",
        "\x7f",
        " a",
        "a ",
        "\u202egpj.exe",
        "x" * 201,
    ],
)
def test_a_name_cannot_lead_elsewhere(name: str) -> None:
    with pytest.raises(Invalid):
        check_name(name)


@pytest.mark.parametrize("name", ["report.md", ".hidden", "日本語.txt", "a b (1).tar.gz"])
def test_a_name_may_be_what_people_call_things(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "uri",
    ["", "x", "//example.org", "javascript:alert(1)", "JAVASCRIPT:alert(1)", "data:text/html,x", "file:///etc/passwd",
     "https://", "https:///x", "https://a b", "https://x\n", "https://[", "vbscript:x", "https://" + "x" * 2000],
)  # fmt: skip
def test_an_address_that_nobody_should_click_on_is_refused(uri: str) -> None:
    with pytest.raises(Invalid):
        check_uri(uri)


@pytest.mark.parametrize("uri", ["https://example.org/a?b#c", "mailto:a@example.org", "s3://bucket/key", "mid:1@x"])
def test_an_address_may_be_that_of_a_page_a_letter_or_an_object(uri: str) -> None:
    assert check_uri(uri) == uri


@pytest.mark.parametrize(
    ("media_type", "served"),
    [
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("application/xhtml+xml", "application/octet-stream"),
        ("text/javascript", "application/octet-stream"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("image/png", "image/png"),
    ],
)
def test_nothing_is_served_as_what_a_browser_would_run(media_type: str, served: str) -> None:
    assert served_as(media_type) == served


def test_the_type_is_guessed_from_the_name_if_it_is_not_given() -> None:
    assert [named(name).media_type for name in ("a.csv", "a.xyz-unknown")] == ["text/csv", "application/octet-stream"]
