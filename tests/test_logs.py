"""One line for each change of state, in JSON for machines and readable on a terminal."""

import io
import json
import logging
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rota import logs
from rota.errors import CannotStart

log = logging.getLogger("rota.somewhere")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Leave the process's logging as it was found."""
    root, noisy = logging.getLogger(), [logging.getLogger(name) for name in ("uvicorn", "psycopg", "asyncio")]
    handlers, level, levels = root.handlers[:], root.level, [each.level for each in noisy]
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    for each, before in zip(noisy, levels, strict=True):
        each.setLevel(before)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_the_event_and_its_facts() -> None:
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    log.info("run.claimed", extra={"run_id": "r1", "attempt": 2, "where": Path("/x")})
    [line] = lines(stream)
    assert line.pop("timestamp").endswith("+00:00")
    assert line == {
        "level": "info", "event": "run.claimed", "logger": "rota.somewhere", "run_id": "r1", "attempt": 2, "where": "/x",
    }  # fmt: skip


def test_a_line_carries_the_trace_id_of_the_run_it_belongs_to() -> None:
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    before = logs.trace_id.set("4bf92f35")
    try:
        log.info("run.settled")
        log.info("run.claimed", extra={"trace_id": "its-own"})
    finally:
        logs.trace_id.reset(before)
    log.info("scheduler.idle")
    assert [line.get("trace_id") for line in lines(stream)] == ["4bf92f35", "its-own", None]


def test_a_failure_is_one_line_with_its_traceback_inside() -> None:
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        log.exception("http.broken")
    [line] = lines(stream)
    assert (line["level"], line["event"]) == ("error", "http.broken")
    assert "ValueError: broken\nin two" in line["traceback"]


def test_text_that_no_file_can_hold_does_not_lose_the_line(tmp_path: Path) -> None:
    logs.set_up("info", file=str(tmp_path / "rota.log"), stream=io.StringIO())
    log.info("agent.said", extra={"line": "half \ud800 a character"})
    assert json.loads((tmp_path / "rota.log").read_text())["line"] == "half \ud800 a character"


def test_a_new_log_file_is_its_owners_alone_and_an_existing_one_keeps_its_mode(tmp_path: Path) -> None:
    for name, before in (("new.log", None), ("existing.log", 0o640)):
        file = tmp_path / name
        if before:
            file.touch()
            file.chmod(before)
        logs.set_up("info", file=str(file), stream=io.StringIO())
        assert stat.S_IMODE(file.stat().st_mode) == (before or 0o600)


def test_a_terminal_gets_something_readable_and_the_file_json(tmp_path: Path) -> None:
    stream = Terminal()
    logs.set_up("info", file=str(tmp_path / "rota.log"), stream=stream)
    log.warning("worker.lost", extra={"worker_id": "w1"})
    assert "worker.lost" in stream.getvalue()
    assert "{" not in stream.getvalue()
    assert "\x1b[33m" in stream.getvalue()
    assert json.loads((tmp_path / "rota.log").read_text())["worker_id"] == "w1"


def test_a_terminal_shows_a_traceback_too() -> None:
    stream = Terminal()
    logs.set_up("info", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("http.broken")
    assert "ValueError: broken" in stream.getvalue()


def test_the_level_holds_back_what_is_below_it_and_others_chatter() -> None:
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    log.debug("service.traceback")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("psycopg.pool").info("connection given")
    log.info("rota.started")
    assert [line["event"] for line in lines(stream)] == ["rota.started"]


def test_without_a_stream_the_standard_error_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.set_up("info")
    log.info("rota.started")
    assert [line["event"] for line in lines(stream)] == ["rota.started"]


def test_setting_up_twice_writes_each_line_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    logs.set_up("info", stream=stream)
    log.info("rota.started")
    assert len(lines(stream)) == 1


@pytest.mark.parametrize("path", ["missing/rota.log", "."])
def test_a_log_file_that_cannot_be_written_stops_the_start_in_words(tmp_path: Path, path: str) -> None:
    file = str(tmp_path / path)
    with pytest.raises(CannotStart) as refused:
        logs.set_up("info", file=file, stream=io.StringIO())
    assert refused.value.field == "ROTA_LOG_FILE"
    assert file in refused.value.message


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("token rota_" + "aB3-_" * 9, "token [redacted]"),
        ("rota_run_" + "0" * 32 + "_" + "1" * 32 + "_1_" + "x" * 32, "[redacted]"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw!", "[redacted]!"),
        ("postgresql://rota:hunter2@db:5432/rota", "postgresql://[redacted]@db:5432/rota"),
        ("host=db password=hunter2 user=rota", "host=db password=[redacted] user=rota"),
        ("host=db password='hunter two' user=rota", "host=db password=[redacted] user=rota"),
        ("Authorization: Bearer abcdef.123456", "Authorization: Bearer [redacted]"),
        ("AUTHORIZATION: BEARER abcdef.123456", "AUTHORIZATION: BEARER [redacted]"),
        ("HOST=db PASSWORD=hunter2", "HOST=db PASSWORD=[redacted]"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic [redacted]"),
        ("http://rota/sign-in?token=abc&x=1", "http://rota/sign-in?token=[redacted]&x=1"),
        ("cookie: rota_7682_login=abc; theme=dark", "cookie: rota_7682_login=[redacted]; theme=dark"),
        ("cookie: __Host-rota_login=abc; theme=dark", "cookie: __Host-rota_login=[redacted]; theme=dark"),
        ("rota_session_0199c8a1_2cd9_7826_809d_0931e0e98709", "rota_session_0199c8a1_2cd9_7826_809d_0931e0e98709"),
        ("http://127.0.0.1:7682/w/default?at=a:b@c", "http://127.0.0.1:7682/w/default?at=a:b@c"),
    ],
)
def test_what_looks_like_a_secret_is_never_logged_whoever_logs_it(told: str, shown: str) -> None:
    plain, coloured = io.StringIO(), Terminal()
    for stream in (plain, coloured):
        logs.set_up("info", stream=stream)
        log.warning("it.failed", extra={"error": told})
        try:
            raise ValueError(told)
        except ValueError:
            log.exception("it.broke")
    first, second = lines(plain)
    assert first["error"] == shown
    assert second["traceback"].endswith(f"ValueError: {shown}")
    assert f"ValueError: {shown}" in coloured.getvalue()
    assert shown == told or told not in coloured.getvalue()


def test_what_is_hidden_for_a_while_is_taken_out_of_every_line_meanwhile() -> None:
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    with logs.hiding(lambda line: line.replace("canary", "x")), logs.hiding(lambda line: line.replace("robin", "y")):
        log.info("bird", extra={"first": "canary", "other": "robin"})
    log.info("bird", extra={"first": "canary"})
    first, second = lines(stream)
    assert (first["first"], first["other"], second["first"]) == ("x", "y", "canary")


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "rota.log"
    logs.set_up("info", file=str(file), stream=io.StringIO())
    log.info("run.claimed")
    file.rename(tmp_path / "rota.log.1")
    log.info("run.settled")
    assert [json.loads(each.read_text())["event"] for each in sorted(tmp_path.iterdir())] == [
        "run.settled",
        "run.claimed",
    ]


def test_a_file_that_cannot_be_written_is_told_once_and_harms_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, directory = io.StringIO(), tmp_path / "logs"
    directory.mkdir()
    logs.set_up("info", file=str(directory / "rota.log"), stream=stream)
    (directory / "rota.log").unlink()
    directory.rmdir()
    log.info("run.claimed")
    log.info("run.settled")
    directory.mkdir()
    log.info("rota.stopping")
    assert [line["event"] for line in lines(stream)] == ["run.claimed", "log.unwritten", "run.settled", "rota.stopping"]
    assert json.loads((directory / "rota.log").read_text())["event"] == "rota.stopping"
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_is_told_once_and_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    logs.set_up("info", file="/dev/full", stream=stream)
    log.info("run.claimed")
    log.info("run.settled")
    assert [line["event"] for line in lines(stream)] == ["run.claimed", "log.unwritten", "run.settled"]
    assert capsys.readouterr().err == ""
    with suppress(OSError):
        logging.getLogger().handlers[-1].close()
