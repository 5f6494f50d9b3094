"""Redaction: however a text is cut into pieces, no secret in it comes out."""

import base64
import json
import random
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.redaction import MASK, Redactor, Stream
from rota.model.text import plain

SECRET = 'sk-"live"/7f3a+Zü=?&9c'


def in_pieces(redactor: Redactor, pieces: list[str]) -> str:
    stream = Stream(redactor)
    return "".join([*(stream.feed(piece) for piece in pieces), stream.end()])


# Few letters, so that secrets overlap each other and themselves, and begin again and again.
LETTERS = st.sampled_from("ab+")
SECRETS = st.lists(st.text(LETTERS, min_size=8, max_size=20), min_size=1, max_size=3)


@st.composite
def told(draw: st.DrawFn) -> tuple[list[str], str, list[str]]:
    """Secrets, a text with whole and broken ones in it, and the same text in pieces."""
    secrets = draw(SECRETS)
    parts = draw(st.lists(st.one_of(st.text(LETTERS, max_size=12), st.sampled_from(secrets)), max_size=8))
    text = "".join(parts)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=10)))
    return secrets, text, [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


@given(told())
@settings(max_examples=200)
def test_pieces_give_what_the_whole_gives_and_neither_holds_a_secret(given: tuple[list[str], str, list[str]]) -> None:
    secrets, text, pieces = given
    redactor = Redactor(secrets)
    whole = redactor.text(text)
    assert in_pieces(redactor, pieces) == whole
    assert not [secret for secret in secrets if secret in whole]


@given(st.text(max_size=60), st.text(max_size=60), st.data())
@settings(max_examples=50)
def test_what_is_no_secret_stays_as_it_is(before: str, after: str, data: st.DataObject) -> None:
    redactor = Redactor(["correct horse battery staple"])
    text = f"{before} correct hors {after}"
    cut = data.draw(st.integers(0, len(text)))
    assert in_pieces(redactor, [text[:cut], text[cut:]]) == text == redactor.text(text)


ENCODINGS = {
    "as it is": SECRET,
    "JSON": json.dumps(SECRET)[1:-1],
    "JSON with its letters": json.dumps(SECRET, ensure_ascii=False)[1:-1],
    "a path of a URL": quote(SECRET),
    "a part of a URL": quote(SECRET, safe=""),
    "a form": quote_plus(SECRET),
}


@pytest.mark.parametrize("form", ENCODINGS)
def test_every_encoding_is_found_at_every_cut(form: str) -> None:
    redactor = Redactor([SECRET])
    text = f"key: {ENCODINGS[form]}; done"
    assert redactor.text(text) == f"key: {MASK}; done"
    for cut in range(len(text)):
        assert in_pieces(redactor, [text[:cut], text[cut:]]) == f"key: {MASK}; done"
    assert in_pieces(redactor, list(text)) == f"key: {MASK}; done"


ODD = "p!ss(w)*rd'&<x>/ab~cd 9"
ABROAD = {
    "a browser's part of a URL": "p!ss(w)*rd'%26%3Cx%3E%2Fab~cd%209",
    "a browser's URL": "p!ss(w)*rd'&%3Cx%3E/ab~cd%209",
    "a form of Java": "p%21ss%28w%29*rd%27%26%3Cx%3E%2Fab%7Ecd+9",
    "JSON of Go": r"p!ss(w)*rd'\u0026\u003cx\u003e/ab~cd 9",
    "JSON of PHP": r"p!ss(w)*rd'&<x>\/ab~cd 9",
    "HTML": "p!ss(w)*rd&#x27;&amp;&lt;x&gt;/ab~cd 9",
    "HTML of others": "p!ss(w)*rd&#39;&amp;&lt;x&gt;/ab~cd 9",
    "HTML without quotes": "p!ss(w)*rd'&amp;&lt;x&gt;/ab~cd 9",
}


@pytest.mark.parametrize("form", ABROAD)
def test_what_other_languages_write_is_found_too(form: str) -> None:
    text = f"key: {ABROAD[form]}; done"
    assert Redactor([ODD]).text(text) == in_pieces(Redactor([ODD]), list(text)) == f"key: {MASK}; done"


@pytest.mark.parametrize("size", [64, 76])
def test_base64_in_lines_is_found_line_by_line(size: int) -> None:
    secret = random.Random(size).randbytes(150).hex()
    encoded = base64.b64encode(f"{secret}\n".encode()).decode()
    lines = [encoded[at : at + size] for at in range(0, len(encoded), size)]
    shown = in_pieces(Redactor([secret]), ["\n".join(lines)]).split("\n")
    assert shown[:-1] == [MASK] * (len(lines) - 1)
    assert shown[-1].startswith(MASK)
    assert len(shown[-1]) <= len(MASK) + 4  # of the end, which its neighbour has a share in


def test_escapes_in_small_letters_are_found_too() -> None:
    secret = "key/with?signs&more"
    assert Redactor([secret]).text(f"x={quote(secret, safe='').replace('F', 'f')}!") == f"x={MASK}!"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("neighbours", [0, 1, 2, 3, 4, 5])
def test_base64_is_found_wherever_the_secret_stands_in_what_was_encoded(encode: Any, neighbours: int) -> None:
    """At most the characters that hold bits of its neighbours too are left, and from them nobody has the secret."""
    secret, noise = "\xff\xfe~~secret~~\xff??", random.Random(neighbours).randbytes(neighbours + 7)
    encoded = encode(noise[:neighbours] + secret.encode() + noise[neighbours:]).decode()
    redactor = Redactor([secret])
    shown = redactor.text(encoded)
    assert MASK in shown
    assert len(shown) - len(MASK) <= len(encode(noise)) + 4
    for cut in range(len(encoded)):
        assert in_pieces(redactor, [encoded[:cut], encoded[cut:]]) == shown


def test_colours_within_a_secret_do_not_save_it() -> None:
    """As `grep --color` writes them, and pages leave them out."""
    redactor = Redactor(["sk-live-7f3a9c00"])
    text = "KEY=\x1b[01;31m\x1b[Ksk-\x1b[m\x1b[Klive-7f\x1b]0;t\x073a9c00\x1b[0m; \x1b[1mdone\x1b[0m"
    masked = f"KEY=\x1b[01;31m\x1b[K{MASK}\x1b[0m; \x1b[1mdone\x1b[0m"
    assert redactor.text(text) == masked
    for cut in range(len(text)):
        assert in_pieces(redactor, [text[:cut], text[cut:]]) == masked
    for cut in (text.index("live"), text.index("3a9c")):
        first = Stream(redactor)
        told = first.feed(text[:cut])
        second = Stream(redactor, first.held)  # of another process, to which only its place is known
        assert plain(told + second.feed(text[cut:]) + second.end())[0] == f"KEY={MASK}; done"


def test_half_a_secret_is_one_too_so_that_a_cut_saves_nothing() -> None:
    redactor = Redactor(["0123456789abcdefghij"])
    assert redactor.text("is 0123456789abcdefg\n[cut]") == f"is {MASK}\n[cut]"
    assert redactor.text("is 0123456789") == f"is {MASK}"
    assert redactor.text("is 012345678") == "is 012345678"
    assert redactor.text("is 0123456789 and 0123456789abcdefghij.") == f"is {MASK} and {MASK}."


def test_overlapping_secrets_leave_nothing_between_them() -> None:
    assert Redactor(["abcdefgh", "efghijkl"]).text("-abcdefghijkl-") == f"-{MASK}-"
    assert Redactor(["aaaaaaaa"]).text("-" + "a" * 19 + "-") == f"-{MASK}-"


def test_a_line_of_a_key_is_found_without_the_others() -> None:
    lines = ["-----BEGIN KEY-----", "MIIEvQIBADANBgkqhkiG9w0", "BAQEFAASCBKcwggSjAgEAAo", "-----END KEY-----"]
    redactor = Redactor(["\n".join(lines) + "\n"])
    assert redactor.text("> MIIEvQIBADANBgkqhkiG9w0\n> BAQEFAASCBKcwggSjAgEAAo") == f"> {MASK}\n> {MASK}"


def test_only_what_may_begin_a_secret_is_held_back_and_at_most_its_length() -> None:
    stream = Stream(Redactor(["0123456789abcdefghij"]))
    assert stream.feed("ready 012") == "ready "
    assert stream.feed("3 steady 0") == "0123 steady "
    assert stream.feed("123456789abcdefghi") == ""
    assert stream.feed("j go") == f"{MASK} go"
    assert stream.end() == ""


def test_the_same_secret_over_and_over_is_never_held_for_long() -> None:
    stream = Stream(Redactor(["a" * 20]))
    shown = [stream.feed("a") for _ in range(10_000)]
    assert "".join([*shown, stream.feed("!"), stream.end()]) == f"{MASK}!"
    assert len(stream._held) < 20


def test_a_value_of_json_is_redacted_in_names_texts_and_numbers() -> None:
    redactor = Redactor(["12345678", "top-secret"])
    given = {"top-secret": [1, 12345678, -12345678.5, True, None, {"x": ("is top-secret", "y")}]}
    assert redactor.value(given) == {MASK: [1, MASK, MASK, True, None, {"x": [f"is {MASK}", "y"]}]}


def test_without_secrets_there_is_nothing_to_do() -> None:
    redactor = Redactor([])
    assert not redactor
    assert redactor.text("anything") == "anything"
    assert not Redactor(["short", " \n"])
    assert Redactor(["longer than that"])


def test_a_pause_shows_a_letter_or_two_and_a_secret_that_goes_on_is_masked_all_the_same() -> None:
    stream = Stream(Redactor(["sk-0123456789"]))
    assert [stream.feed("What now? s"), stream.pause(), stream.pause()] == ["What now? ", "s", ""]
    assert [stream.feed("k"), stream.pause()] == ["", "k"]
    assert [stream.feed("-0"), stream.pause()] == ["", ""]
    assert [stream.feed("123456789!"), stream.end()] == [f"{MASK}!", ""]
    assert [stream.feed("so s"), stream.pause(), stream.feed("o."), stream.end()] == ["so ", "s", "o.", ""]


@given(told())
@settings(max_examples=200)
def test_a_stream_that_goes_on_elsewhere_says_what_one_stream_would(given: tuple[list[str], str, list[str]]) -> None:
    """As requests to several replicas do: all that they share is a few numbers."""
    secrets, _, pieces = given
    redactor, one, held = Redactor(secrets), Stream(Redactor(secrets)), None
    together = apart = ""
    for piece in pieces:
        together += one.feed(piece) + one.pause()
        stream = Stream(Redactor(secrets), held)
        apart += stream.feed(piece) + stream.pause()
        held = stream.held
    assert apart == together
    assert held is None or redactor.begins(held.form, held.size)


def test_what_is_held_of_a_secret_that_is_gone_meanwhile_is_forgotten() -> None:
    stream = Stream(Redactor(["a secret of some length"]))
    assert stream.feed("say a secret of") == "say "
    assert Stream(Redactor(), stream.held).feed("f old") == "f old"


def test_a_token_is_looked_for_as_it_is() -> None:
    redactor = Redactor(exactly=["rota_run_token"])
    assert redactor.text("rota_run_token") == MASK
    assert in_pieces(redactor, list("a rota_run_token")) == f"a {MASK}"


@given(told(), st.data())
@settings(max_examples=100)
def test_pauses_between_pieces_never_show_a_secret(
    given: tuple[list[str], str, list[str]], data: st.DataObject
) -> None:
    secrets, _, pieces = given
    stream, shown = Stream(Redactor(secrets)), ""
    for piece in pieces:
        shown += stream.feed(piece)
        if data.draw(st.booleans()):
            shown += stream.pause()
    shown += stream.end()
    assert not [secret for secret in secrets if secret in shown]
