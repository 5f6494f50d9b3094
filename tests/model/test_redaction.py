"""Redaction: however a text is cut into pieces, no secret in it comes out."""

import base64
import json
import random
import time
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.redaction import LONGEST_REENCODED, MASK, MOST_UNSEEN, Redactor, Stream
from rota.model.text import plain, seen

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


def hexadecimal(text: str, separator: str = "") -> str:
    return separator.join(f"{byte:02x}" for byte in text.encode())


def escaped(text: str, style: str) -> str:
    return "".join(style.format(ord(each)) for each in text)


PLAIN = "sk-live-7f3aK9c00Zq"
REENCODED = {
    **{f"hex with {separator!r}": hexadecimal(PLAIN, separator) for separator in ("", ":", "-", " ")},
    **{f"HEX with {separator!r}": hexadecimal(PLAIN, separator).upper() for separator in ("", ":", "-", " ")},
    "every character of a URL": escaped(PLAIN, "%{:02x}"),
    "every CHARACTER of a URL": escaped(PLAIN, "%{:02X}"),
    "a string of a program": escaped(PLAIN, "\\x{:02x}"),
    "a STRING of a program": escaped(PLAIN, "\\x{:02X}"),
    "escapes of JSON": escaped(PLAIN, "\\u{:04x}"),
    "ESCAPES of JSON": escaped(PLAIN, "\\u{:04X}"),
    "numbers of HTML": escaped(PLAIN, "&#{};"),
    "hexadecimal numbers of HTML": escaped(PLAIN, "&#x{:x};"),
    "HEXADECIMAL numbers of HTML": escaped(PLAIN, "&#x{:X};"),
}


@pytest.mark.parametrize("form", REENCODED)
def test_a_secret_that_was_encoded_in_another_way_is_found_at_every_cut(form: str) -> None:
    redactor = Redactor([PLAIN, "another secret"])
    text = f"key: {REENCODED[form]}; done"
    for cut in range(len(text)):
        assert in_pieces(redactor, [text[:cut], text[cut:]]) == f"key: {MASK}; done"
    assert redactor.text(text) == in_pieces(redactor, list(text)) == f"key: {MASK}; done"


TWICE = {
    "JSON in JSON": json.dumps(json.dumps(SECRET)[1:-1])[1:-1],
    "a URL in a URL": quote(quote(SECRET, safe=""), safe=""),
    "a form in a URL": quote(quote_plus(SECRET), safe=""),
    "bytes of Python": repr(SECRET.encode())[2:-1],
    "hex of its bytes": hexadecimal(SECRET),
    "a pair of escapes for a character": json.dumps("\U0001f511")[1:-1] + escaped("secret key", "\\u{:04x}"),
}


@pytest.mark.parametrize("form", TWICE)
def test_a_secret_that_was_escaped_twice_is_found(form: str) -> None:
    redactor = Redactor([SECRET, "\U0001f511secret key"])
    text = f"key: {TWICE[form]}; done"
    assert redactor.text(text) == in_pieces(redactor, list(text)) == f"key: {MASK}; done"


@pytest.mark.parametrize("outer", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("inner", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("further", range(3))
def test_base64_of_base64_is_found(inner: Any, outer: Any, unpadded: bool, before: int, further: int) -> None:
    secret = "\xff\xfe~~secret~~\xff??"
    once = inner(b"x" * before + secret.encode()).decode()
    twice = outer(b"y" * further + (once.rstrip("=") if unpadded else once).encode()).decode()
    twice = twice.rstrip("=") if unpadded else twice
    redactor = Redactor([secret])
    shown = redactor.text(twice)
    assert MASK in shown
    assert len(shown) - len(MASK) <= 16  # what stands before it, padding, and characters with bits of both
    for cut in range(0, len(twice), 5):
        assert in_pieces(redactor, [twice[:cut], twice[cut:]]) == shown


@pytest.mark.parametrize("gap", ["\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u200b\x1b[0m\u2060"])
@pytest.mark.parametrize("form", [PLAIN, hexadecimal(PLAIN), base64.b64encode(PLAIN.encode()).decode().rstrip("=")])
def test_characters_without_width_do_not_save_a_secret(gap: str, form: str) -> None:
    redactor = Redactor([PLAIN])
    text = f"key: {gap.join(form)}; done"
    shown = redactor.text(text)
    assert shown in {f"key: {MASK}; done", f"key: {MASK}{gap}{form[-1]}; done"}  # the last has bits of its neighbour
    for cut in range(len(text)):
        assert in_pieces(redactor, [text[:cut], text[cut:]]) == shown


@pytest.mark.parametrize("gap", ["\u200b", "\u00ad\ufeff"])
def test_characters_without_width_do_not_save_a_secret_that_another_process_completes(gap: str) -> None:
    text = f"key: {gap.join(PLAIN)}; done"
    for cut in range(len(text)):
        first = Stream(Redactor([PLAIN]))
        told = first.feed(text[:cut])
        second = Stream(Redactor([PLAIN]), first.held)
        assert seen(told + second.feed(text[cut:]) + second.end())[0] == f"key: {MASK}; done"


def test_text_with_characters_without_width_stays_as_it_is() -> None:
    text = "A family \U0001f468\u200d\U0001f469\u200d\U0001f467, a he\ufe0fart, a syl\u00adlable, \u202bright\u202c to left. "
    assert Redactor([PLAIN]).text(text) == in_pieces(Redactor([PLAIN]), list(text)) == text


def test_a_secret_with_characters_without_width_is_found_with_and_without_them() -> None:
    secret = "correct\u200b horse\ufeff battery"
    redactor = Redactor([secret])
    assert redactor.text(f"> {secret}!") == redactor.text("> correct horse battery!") == f"> {MASK}!"


@pytest.mark.parametrize("unseen", ["\u200b", "\x1b[1m", "\u2060\x1b[0m"])
def test_what_nobody_sees_is_not_held_back_for_ever(unseen: str) -> None:
    stream = Stream(Redactor([PLAIN]))
    shown = stream.feed("key: sk-li")
    for _ in range(200):
        shown += stream.feed(unseen * 100)
        assert stream.held_back <= 2 * MOST_UNSEEN
    shown += stream.feed("ve-7f3aK9c00Zq; done") + stream.end()
    assert seen(shown)[0] == f"key: {MASK}; done"


def test_a_short_secret_is_not_found_in_ordinary_words_and_numbers() -> None:
    redactor = Redactor(["12345678", "password", "deadbeef"])
    for text in (
        "31323334 31:32:33:34 31 32 33 34 70617373 70:61:73:73 64656164",  # half of it in hex
        "&#49;&#50;&#51; %31%32%33%34 \\u0031\\u0032 passwor 1234567",
        "MTIzND cGFzc3 TVRJek5EVT",
    ):
        assert redactor.text(text) == text
    assert redactor.text("3132333435363738") == MASK


def test_a_value_too_short_to_be_hidden_is_not_looked_for_in_any_form() -> None:
    assert not Redactor(["1234567", "\u200b".join("abc")])


def test_a_secret_of_many_characters_is_found_in_its_first_forms_only() -> None:
    long = "".join(random.Random(1).choices("abcdefgh", k=LONGEST_REENCODED + 1))
    assert Redactor([long]).text(long) == MASK
    assert Redactor([long]).text(hexadecimal(long)) == hexadecimal(long)
    assert Redactor([long[1:]]).text(hexadecimal(long[1:])) == MASK


def test_forms_that_an_earlier_version_counted_keep_their_numbers() -> None:
    """`held_words` has numbers of forms, also while a server is being replaced by one of another version."""
    redactor = Redactor(["first secret", "second/secret"], exactly=["rota_run_token"])
    numbers = [
        redactor.form_of(each) for each in ("first secret", "first%20secret", "second/secret", "second%2Fsecret")
    ]
    token = redactor.form_of("rota_run_token")
    assert token is not None
    assert all(number is not None and number < token for number in numbers)
    assert (redactor.form_of(hexadecimal("first secret")) or 0) > token


ADVERSARIAL = {
    "the beginning of the secret": PLAIN[:9],
    "the beginning of its hex": hexadecimal(PLAIN)[:18],
    "one character of the secret": "s",
    "characters without width": "\u200b",
    "a secret with characters without width": "\u200b".join(PLAIN) + "\u200b",
    "commands to a terminal that never end": "\x1b]",
    "commands to a terminal": "s\x1b[1m",
    "escapes": "\\u0073",
    "signs of escapes": "%&\\",
}


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_no_text_takes_more_than_time_in_proportion_to_its_length(kind: str) -> None:
    redactor, unit = Redactor([PLAIN, "s" * 40]), ADVERSARIAL[kind]

    def seconds(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        began = time.process_time()
        in_pieces(redactor, [text[at : at + 1000] for at in range(0, size, 1000)])
        redactor.text(text)
        return time.process_time() - began

    short, long = (min(seconds(size) for _ in range(3)) for size in (8_000, 128_000))
    assert long < 16 * 4 * short + 0.05  # 16 times as long; the square of that would be 256


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
    assert stream.held_back < 20


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
