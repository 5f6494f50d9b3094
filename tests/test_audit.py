"""The audit of the locked dependencies fails on a known vulnerability, and never passes silently without an advisory
database."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
Query = dict[str, Any]
Answer = Callable[[Query], tuple[int, bytes]]

ADVISORY = {
    "id": "GHSA-test-0001",
    "aliases": ["CVE-2026-0001"],
    "summary": "It runs what it is given",
    "affected": [
        {
            "package": {"name": "h11", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "0.16.1"}]}],
        }
    ],
}


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """An advisory database on this machine; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = answer(query)
            if status:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
        finally:
            server.shutdown()


def database(*vulnerable: str, otherwise: tuple[int, bytes] = (200, b"{}")) -> Answer:
    """Knows the canary and an advisory about these packages."""

    def answer(query: Query) -> tuple[int, bytes]:
        name = query["package"]["name"]
        known = (name, query["version"]) == ("jinja2", "2.4.1") or name in vulnerable
        return (200, json.dumps({"vulns": [ADVISORY]}).encode()) if known else otherwise

    return answer


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / "lock.txt"
    file.write_text(
        "".join(f"{package} \\\n    --hash=sha256:{'0' * 64}\n" for package in ("h11==0.16.0", "idna==3.10"))
    )
    return file


def audit(url: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "audit.py", "--url", url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_known_vulnerability_fails_the_audit_and_is_named_with_the_version_that_mends_it(lock: Path) -> None:
    with serving(database("h11")) as url:
        done = audit(url, lock)
    assert done.returncode == 1
    assert "h11 0.16.0: CVE-2026-0001, GHSA-test-0001, fixed in 0.16.1. It runs what it is given" in done.stdout
    assert "idna" not in done.stdout


def test_without_a_known_vulnerability_it_passes_and_says_of_how_many_packages(lock: Path) -> None:
    with serving(database()) as url:
        done = audit(url, "--strict", lock)
    assert (done.returncode, done.stdout) == (0, "No known vulnerabilities in 2 locked packages.\n")


def test_all_locked_packages_are_audited() -> None:
    asked: set[tuple[str, str]] = set()

    def answer(query: Query) -> tuple[int, bytes]:
        asked.add((query["package"]["name"], query["version"]))
        return database()(query)

    with serving(answer) as url:
        done = audit(url)
    assert done.returncode == 0, done.stdout + done.stderr
    locked = {
        line.split("==")[0] for file in (ROOT / "requirements").glob("*.txt") for line in lines_without_marker(file)
    }
    assert locked <= {name for name, _ in asked}


def lines_without_marker(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if "==" in line and line[0] not in " #" and ";" not in line]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: (404, b""), id="a mirror of a package index"),
        pytest.param(lambda _: (200, b"{}"), id="a stub that knows nothing"),
        pytest.param(lambda _: (200, b"<html>Sign in to the network</html>"), id="a sign-in page"),
        pytest.param(lambda _: (200, b"[]"), id="another API"),
        pytest.param(lambda _: (503, b""), id="out of order"),
        pytest.param(lambda _: (0, b""), id="hangs up"),
    ],
)
def test_where_there_is_no_advisory_database_it_says_that_no_audit_happened(answer: Answer, lock: Path) -> None:
    with serving(answer) as url:
        done, strict = audit(url, lock), audit(url, "--strict", lock)
    assert (done.returncode, strict.returncode) == (0, 3)
    for each in (done, strict):
        assert "NOT audited" in each.stderr
        assert "No known vulnerabilities" not in each.stdout


def test_where_nobody_listens_it_says_that_no_audit_happened(lock: Path) -> None:
    with serving(database()) as url:
        pass
    done, strict = audit(url, lock), audit(url, "--strict", lock)
    assert (done.returncode, strict.returncode) == (0, 3)
    assert "NOT audited" in done.stderr


def test_a_database_that_fails_in_between_gives_no_audit(lock: Path) -> None:
    queries: list[Query] = []

    def answer(query: Query) -> tuple[int, bytes]:
        queries.append(query)
        return database()(query) if len(queries) == 1 else (503, b"")

    with serving(answer) as url:
        done = audit(url, "--strict", lock)
    assert (done.returncode, "NOT audited" in done.stderr) == (3, True)


def test_a_lock_that_cannot_be_read_fails_the_audit(tmp_path: Path) -> None:
    unlocked = tmp_path / "lock.txt"
    unlocked.write_text("h11>=0.16\n")
    with serving(database()) as url:
        done = audit(url, unlocked)
    assert done.returncode == 1
    assert "pip-audit ended without a result" in done.stderr
