"""Telling events from text, and keeping to the limit, whatever the pieces in which a stream arrives."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.executors.events import LONGEST_LINE, Counter, Done, Error, EventStream, Lines, parse
from rota.executors.transcript import Tail, Transcript
from rota.model.text import clean
from support.stand_ins import RecordingDesk

LINES = st.sampled_from(
    [
        b"text\n",
        b"{\n",
        b"\n",
        b'{"type":"say","text":"x"}\n',
        b'{"type":"tool","name":"t"}\n',
        b'{"a":1}\n',
        b"{x",
        b"}",
    ]
)


async def hear(*pieces: bytes, limit: int = 1000) -> tuple[RecordingDesk, Counter]:
    desk = RecordingDesk()
    transcript = Transcript(desk, limit)
    counter = Counter(transcript)
    stream = EventStream(transcript, counter)
    for piece in pieces:
        await stream.hear(piece)
    await stream.end()
    return desk, counter


@given(st.lists(LINES), st.lists(st.integers(0, 200)))
def test_the_pieces_of_a_stream_do_not_change_what_is_heard(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(lines)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    whole, _ = asyncio.run(hear(stream, limit=10**6))
    cut, _ = asyncio.run(hear(*pieces, limit=10**6))
    assert (cut.text, cut.events) == (whole.text, whole.events)


@given(st.lists(st.binary()))
def test_no_byte_is_lost_or_doubled(pieces: list[bytes]) -> None:
    lines = Lines()
    given = [piece for data in pieces for _, piece in lines.feed(data)]
    assert b"".join(given) + lines.rest() == b"".join(pieces)


async def test_text_is_heard_before_its_line_ends() -> None:
    desk = RecordingDesk()
    transcript = Transcript(desk, 100)
    await EventStream(transcript, Counter(transcript)).hear(b"10 % ...")
    assert desk.text == "10 % ..."


async def test_a_brace_that_begins_no_object_is_not_waited_for() -> None:
    desk = RecordingDesk()
    transcript = Transcript(desk, 100)
    await EventStream(transcript, Counter(transcript)).hear(b"{thinking}")
    assert desk.text == "{thinking}"


async def test_an_object_within_a_line_is_text() -> None:
    desk, _ = await hear(b"see ", b'{"type":"say","text":"x"}\n')
    assert desk.text == 'see {"type":"say","text":"x"}\n'


async def test_the_last_line_needs_no_end() -> None:
    _, counter = await hear(b'{"type":"done","summary":"s"}')
    assert counter.verdict == Done("s")


async def test_a_line_that_is_too_long_is_text() -> None:
    line = b'{"type":"say","text":"' + b"x" * LONGEST_LINE
    desk, _ = await hear(line, b'"}\n', b'{"type":"usage","unit":"u","amount":1}\n', limit=10**7)
    assert desk.text == (line + b'"}\n').decode()
    assert desk.events == [("usage", "u", 1)]


async def test_events_and_text_keep_their_order() -> None:
    desk, _ = await hear(b'a\n{"type":"say","text":"b"}\nc\n{"type":"tool","name":"t","n":1}\nd')
    assert desk.calls == [("say", "a\n"), ("say", "b"), ("say", "c\n"), ("tool", "t", {"n": 1}), ("say", "d")]


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"usage","unit":"u","amount":-1}',
        b'{"type":"usage","unit":"u","amount":NaN}',
        b'{"type":"usage","unit":"u","amount":true}',
        b'{"type":"usage","unit":"u","amount":1e999}',
        b'{"type":"usage","unit":"","amount":1}',
        b'{"type":"say","text":1}',
        b'{"type":"tool"}',
        b'{"type":"error"}',
        b'{"type":["say"],"text":"x"}',
        b'{"type":"dance"}',
        b'{"type":"tool","name":"t","x":' + b"[" * 100_000,
        b'{"type":"tool","name":"t","x":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"type":"say","text":"\xff"}',
        b'{"type":"usage","unit":"u","amount":' + b"9" * 5000 + b"}",
    ],
)
def test_an_event_that_is_not_whole_is_text(line: bytes) -> None:
    assert parse(line) is None


def test_a_lone_surrogate_in_an_event_is_mended() -> None:
    assert parse(rb'{"type":"say","text":"\ud83d \u0000"}') == {"type": "say", "text": "\ufffd \ufffd"}


async def test_an_error_is_tried_again_unless_it_says_otherwise() -> None:
    _, counter = await hear(b'{"type":"error","detail":"x","retryable":null}\n')
    assert counter.verdict == Error("x", retryable=True)


async def test_beyond_the_limit_only_usage_and_the_ending_count() -> None:
    events = b'{"type":"tool","name":"t"}\n{"type":"usage","unit":"u","amount":1}\n{"type":"done"}\n'
    desk, counter = await hear(b"x" * 20 + b"\n", events, limit=10)
    assert desk.calls == [
        ("say", "x" * 10 + "\n[The output is over 10 bytes; the rest is not kept.]\n"),
        ("usage", "u", 1),
    ]
    assert counter.verdict == Done(None)


async def test_the_limit_does_not_cut_a_letter_in_two() -> None:
    desk, _ = await hear("éé".encode(), limit=3)
    assert desk.text.startswith("é\n[")


async def test_a_tool_that_does_not_fit_is_noted_once() -> None:
    desk, _ = await hear(b'{"type":"tool","name":"t"}\n' * 3, limit=40)
    assert [call[0] for call in desk.calls] == ["tool", "say"]


def test_the_tail_of_a_stream_keeps_its_last_line() -> None:
    tail = Tail()
    tail.hear(b"x" * 5000 + b"\nfirst\n")
    tail.hear(b"last \0 words\n \n")
    assert tail.last_line() == "last \ufffd words"


def test_cleaning_leaves_good_text_alone() -> None:
    assert clean("Grüße 👋\n") == "Grüße 👋\n"
