"""The canary: a secret goes through every kind of agent and every way out, and is found nowhere."""

import base64
import hashlib
import http.cookiejar
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest

from rota.db import embedded
from rota.db.embedded import EmbeddedPostgres
from rota.model.webhook import sign
from support import clusters
from support.acp_agent import config
from support.openai_server import MODEL, Provider, says
from support.rota_process import Rota, furnished, request, until

CANARY = "Zq7/canary+secret&9x"
FORMS = [
    CANARY.encode(),
    CANARY[: len(CANARY) * 2 // 3].encode(),
    quote(CANARY, safe="").encode(),
    *(base64.b64encode(bytes(offset) + CANARY.encode())[4:-4] for offset in range(3)),
]
PROOF = hashlib.sha256(CANARY.encode()).hexdigest()[:16]  # that an agent had it, without saying it

# Says it in every form, cut in two, as a tool, as its last words, and in its error.
AGENT = """
import base64, hashlib, json, os, sys, time, urllib.parse, urllib.request
key = os.environ["KEY"]
print("proof", hashlib.sha256(key.encode()).hexdigest()[:16])
print(json.dumps({"type": "tool", "name": "post", "headers": {"Authorization": "Bearer " + key}, key: [key]}))
print("url", urllib.parse.quote(key, safe=""), urllib.parse.quote_plus(key), json.dumps(key))
for before in range(3):
    print("base64", base64.b64encode(b"x" * before + key.encode() + b"yz").decode())
print(dict(os.environ))
for piece in ("cut ", key[:9], key[9:], "!"):
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.1)
def send(path, body=None):
    headers = {"Authorization": "Bearer " + os.environ["ROTA_TOKEN"], "Content-Type": "application/json"}
    url = f"{os.environ['ROTA_URL']}/api/v1/workspaces/{os.environ['ROTA_WORKSPACE']}{path}"
    return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20).read()
while b'!"' not in send(f"/sessions/{os.environ['ROTA_SESSION_ID']}/events?limit=100"):
    time.sleep(0.05)  # what is printed and what is sent go different ways
for piece in ("apart ", key[:9], key[9:], "?"):
    send(f"/runs/{os.environ['ROTA_RUN_ID']}/desk/say", json.dumps({"text": piece}).encode())
print(file=sys.stderr)
"""
COMMAND = AGENT + 'sys.exit("no entry with " + key)'
SUCCESS = AGENT + 'print(json.dumps({"type": "done", "summary": "all about " + key}))'
FUNCTION = """
import os
async def work(desk):
    await desk.say(os.environ["KEY"][:5])
    await desk.tool(os.environ["KEY"], value=os.environ["KEY"])
    await desk.say(os.environ["KEY"][5:])
    raise PermissionError("refused " + os.environ["KEY"])
"""

GRAPH = """
import os
from typing import TypedDict
from langgraph.graph import START, StateGraph


class State(TypedDict, total=False):
    report: str


def work(state: State) -> State:
    print("graph says " + os.environ["KEY"])
    raise PermissionError("no graph with " + os.environ["KEY"])


graph = StateGraph(State).add_node(work).add_edge(START, "work")
"""
POD = """
import os, sys
print("pod says " + os.environ["KEY"], flush=True)
sys.exit("no pod with " + os.environ["KEY"])
"""


class Echo(BaseHTTPRequestHandler):
    """An agent behind HTTP that answers what it was sent, and fails."""

    seen: list[str] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.headers["Authorization"])
        body = f"denied: {self.headers['Authorization']}".encode()
        self.send_response(403)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="rota-canary-"))
    made.chmod(0o711)  # the server of a root is somebody else
    yield furnished(made / "home")
    shutil.rmtree(made, ignore_errors=True)


def log_every_statement(home: Path) -> None:
    """As an operator would who looks for a fault: every statement, with its parameters."""
    with EmbeddedPostgres(home) as postgres, psycopg.connect(postgres.owner_url, autocommit=True) as conn:
        for setting in (
            "log_statement = 'all'",
            "log_parameter_max_length = -1",
            "log_parameter_max_length_on_error = -1",
        ):
            conn.execute(f"ALTER SYSTEM SET {setting}")
        conn.execute("SELECT pg_reload_conf()")


def dump(home: Path) -> bytes:
    """The whole database, as an operator keeps it."""
    with EmbeddedPostgres(home) as postgres:
        command = [str(embedded.find_binaries() / "pg_dump"), "--inserts", postgres.owner_url]
        made = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    assert b"INSERT INTO public.tokens" in made
    assert b"INSERT INTO public.credentials" in made
    return made


def agents(directory: Path, url: str, provider: Provider) -> list[dict[str, Any]]:
    (directory / "canary_agent.py").write_text(FUNCTION)
    (directory / "canary_graph.py").write_text(GRAPH)
    named = {"credentials": {"KEY": "canary"}}
    command = {"executor": "command", **named}
    return [
        {"name": "Loud", "config": {"argv": ["python3", "-c", COMMAND]}, **command},
        {"name": "Proud", "config": {"argv": ["python3", "-c", SUCCESS]}, **command},
        {"name": "Function", "executor": "python", **named,
         "config": {"function": "canary_agent:work", "path": str(directory)}},
        {"name": "Remote", "executor": "http", **named,
         "config": {"url": url, "headers": {"Authorization": "Bearer ${KEY}"}}},
        {"name": "Protocol", "executor": "acp", **named, "config": config("betrays")},
        {"name": "Model", "executor": "llm", "credentials": {"OPENAI_API_KEY": "canary"},
         "config": {"model": MODEL, "base_url": provider.url}},
        {"name": "Graph", "executor": "langgraph", **named,
         "config": {"graph": "canary_graph:graph", "path": str(directory)}},
        {"name": "Pod", "executor": "kubernetes", **named,
         "config": {"image": "agents/python:3", "command": ["python3", "-c", POD]}},
    ]  # fmt: skip


def said_by(rota: Rota, token: str, runs: list[dict[str, Any]]) -> list[bytes]:
    """Every answer of the API that could show it, the live trace included."""
    paths = ["/credentials", "/agents", "/automations", "/runs", "/sessions", "/workers", "/executors", "/snapshots"]
    paths += [f"/runs/{run['id']}" for run in runs] + [f"/sessions/{run['session_id']}/events" for run in runs]
    told = [json.dumps(rota.get(token, path)).encode() for path in paths]
    return told + [trace(rota, token, run["session_id"]) for run in runs]


def words(rota: Rota, token: str, session_id: str) -> str:
    events = rota.get(token, f"/sessions/{session_id}/events?limit=100")["items"]
    return "".join(each["data"]["text"] for each in events if each["kind"] == "output")


def trace(rota: Rota, token: str, session_id: str) -> bytes:
    url = f"{rota.url()}/api/v1/workspaces/default/sessions/{session_id}/trace"
    heard = b""
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=20) as stream:
        while b'"failed"' not in heard and b'"succeeded"' not in heard:
            heard += stream.readline()
    return heard


def pages(rota: Rota, link: str, runs: list[dict[str, Any]]) -> tuple[list[bytes], str]:
    """What a person sees, and the secret of their sign-in."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    browser.open(link, timeout=20)
    browser.open(f"{rota.url()}/sign-in", urlencode({"link": link}).encode(), timeout=20)
    listed = browser.open(f"{rota.url()}/w/default/runs", timeout=20).read()
    shown = [browser.open(f"{rota.url()}/w/default/sessions/{run['session_id']}", timeout=20).read() for run in runs]
    return [listed, *shown], next(cookie.value or "" for cookie in jar)


def post_webhook(rota: Rota, token: str) -> str:
    """Fire an automation by its webhook; the webhook's secret."""
    body = {"name": "Hooked", "agent": "proud", "prompt": "x", "triggers": [{"webhook": {}}]}
    [trigger] = rota.post(token, "/automations", body)["triggers"]
    secret: str = trigger["secret"]
    now = str(int(time.time()))
    headers = {
        "webhook-id": "msg_1", "webhook-timestamp": now, "webhook-signature": sign(secret, "msg_1", now, b"{}"),
        "Content-Type": "application/json",
    }  # fmt: skip
    urllib.request.urlopen(urllib.request.Request(f"{rota.url()}{trigger['hook_path']}", b"{}", headers), timeout=20)
    return secret


def starts_only_with_its_keys(home: Path) -> None:
    keys = home / "vault.keys"
    kept = keys.rename(home / "elsewhere")
    lost = Rota(home, "up")
    assert lost.ended(within=60) == 2
    assert f"the vault's keys are not in {keys}" in lost.output
    assert not keys.exists(), "a new ring would hide the loss"
    kept.rename(keys)


def found_in(haystack: bytes, needles: list[bytes]) -> list[bytes]:
    return [needle for needle in needles if needle in haystack]


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A model's provider that says the key it was sent, in two pieces."""
    with Provider(says("cut ", CANARY[:9], CANARY[9:], "!")) as opened:
        yield opened


@pytest.mark.timeout(240)  # every kind of agent, and a start without the keys
def test_a_secret_is_found_nowhere_but_in_the_agent_it_was_given_to(
    home: Path, echo: str, provider: Provider, tmp_path: Path
) -> None:
    log = home / "rota.log"
    rota = Rota(
        home,
        "up",
        "--no-starters",
        ROTA_LOG_FILE=str(log),
        ROTA_LOG_LEVEL="debug",
        ROTA_HTTP_ALLOW="127.0.0.1:*",
        ROTA_KUBERNETES_CONFIG=clusters.shared().kubeconfig,
    )
    try:
        link = rota.link()
        token = rota.token()
        log_every_statement(home)
        rota.post(token, "/credentials", {"name": "canary", "value": CANARY})
        for agent in agents(tmp_path, echo, provider):
            rota.post(token, "/agents", agent)
        hook = post_webhook(rota, token)
        for slug in ("loud", "proud", "function", "remote", "protocol", "model", "graph", "pod"):
            rota.post(token, f"/agents/{slug}/runs", {"prompt": "Sing."})
        ended = ("succeeded", "failed")
        until(lambda: all(run["status"] in ended for run in rota.get(token, "/runs")["items"]))
        runs = rota.get(token, "/runs")["items"]
        answers = said_by(rota, token, runs)
        said = "".join(words(rota, token, run["session_id"]) for run in runs)
        shown, cookie = pages(rota, link, runs)
        body = {"name": "x", "value": [CANARY], "surprise": CANARY}
        with pytest.raises(urllib.error.HTTPError) as refused:
            request("POST", f"{rota.url()}/api/v1/workspaces/default/credentials", token, body)
        with refused.value as answer:
            answers.append(answer.read())
        answers.append(dump(home))
    finally:
        rota.stop()
    assert sorted(run["status"] for run in runs) == ["failed"] * 6 + ["succeeded"] * 3
    assert Echo.seen == [f"Bearer {CANARY}"], [run["error_detail"] for run in runs]
    assert provider.keys == [f"Bearer {CANARY}"]
    told = b"".join(answers)
    assert told.count(f"proof {PROOF}".encode()) >= 4
    assert b"exited with code 1: no entry with [redacted]" in told
    assert b"refused [redacted]" in told
    assert b"denied: Bearer [redacted]" in told
    assert b"all about [redacted]" in told
    assert said.count("cut [redacted]!") == 5
    assert said.count("apart [redacted]?") == 3  # in requests of their own
    assert b"no way in with [redacted]" in told
    for kind in ("graph", "pod"):
        assert f"{kind} says [redacted]" in said
        assert f"no {kind} with [redacted]".encode() in told
    assert CANARY not in said

    secrets = [token.encode(), hook.removeprefix("whsec_").encode(), cookie.encode()]
    secrets.append(link.partition("token=")[2].encode())
    for each in answers + shown:
        assert not found_in(each, [*FORMS, *secrets])
    assert not found_in(rota.output.encode(), [*FORMS, *secrets[:3]])  # the link is shown there, once
    files = [each for each in home.rglob("*") if each.is_file() and each.name != "vault.keys"]
    assert len(files) > 500, "the whole database is among them"
    assert "statement:" in "".join(each.read_text(errors="replace") for each in home.glob("**/*.log"))
    assert {each.name: hits for each in files if (hits := found_in(each.read_bytes(), [*FORMS, *secrets]))} == {}
    assert b"rota_run_" not in log.read_bytes()
    starts_only_with_its_keys(home)
