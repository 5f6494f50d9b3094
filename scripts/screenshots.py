"""Take pictures of every page, in both colour schemes and two widths, from a Rota of its own with something going on.

    python scripts/screenshots.py [FOLDER]

Needs Chromium and the test tools (`make setup`). All pictures go to screenshots/, which git ignores, unless a folder is
given. Pictures that README.md or a page under docs/ shows are also written to docs/images/, as WebP, and are committed.
"""

import base64
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from playwright.sync_api import Browser, Page, sync_playwright

from rota.db.embedded import EmbeddedPostgres

ROTA = Path(sys.executable).with_name("rota")
ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "screenshots"
COMMITTED = ROOT / "docs" / "images"
SHOWN = re.compile(r"!\[[^\]]*\]\((?:[^)\s]*/)?images/([\w-]+)\.webp\)")
SIZES = {"wide": (1280, 800), "narrow": (360, 780)}
# The first is the same browser without windows, which none of this looks at, and takes a fifth less of a processor.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
ARGUMENTS = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

RESEARCH = r"""
say() { printf '{"type": "say", "text": "%s\\n"}\n' "$1"; }
say "Reading the change log of the last seven days."
echo '{"type": "tool", "name": "search", "query": "regressions since v2.3", "hits": 14}'
say "Fourteen entries mention a regression. Three of them have no owner yet:"
say "  - exports time out above 10,000 rows"
say "  - the calendar shows Sunday first in every locale"
say "  - a renamed project keeps its old address"
echo '{"type": "tool", "name": "read_file", "path": "src/exports/stream.py", "lines": "40-96"}'
say "The export builds the whole file in memory before it sends a byte."
say "I am checking whether streaming it changes the checksum."
while [ ! -e "$0" ]; do sleep 0.2; done
"""
CHECK = r"""
n=$(($(date +%s) % 7))
if [ $n -eq 3 ]; then echo "GET /health answered 502 three times in a row" >&2; exit 1; fi
echo "All $((40 + n)) endpoints answered; the slowest took $((180 + n * 9)) ms."
"""

# Agents of one goal, each in its role. The first three finish; the fourth stops at a question.
DESK = f"{ROTA} desk"
MEASURES = rf"""
printf 'Timing the export of 10, 1,000 and 100,000 rows.\n'
printf '# Measured\n\n| rows | before | streamed |\n|---:|---:|---:|\n| 1,000 | 0.4 s | 0.1 s |\n| 100,000 | 41 s | 3.2 s |\n' > measured.md
{DESK} artifact measured.md > /dev/null; {DESK} artifact "$0" > /dev/null
{DESK} message --to judge 'The slow part is the sort, not the network. Numbers are in `measured.md`.' > /dev/null
printf '\nMemory grows with the file: **2.1 GB** at 100,000 rows.\n\n- the sort holds every row\n- nothing is sent before the end\n'
"""
READS = r"""
echo '{"type": "tool", "name": "read_file", "path": "src/exports/stream.py", "lines": "40-96"}'
printf 'The writer collects all rows in a list:\n\n```python\nrows = sorted(query.all(), key=row_key)\nsend(csv_of(rows))\n```\n\nThe database could sort them, and send them as they come.\n'
"""
DRAFTS = rf"""
{DESK} message --to builder 'Stream from a server-side cursor; leave the checksum as it is.' > /dev/null
echo 'Both findings fit together. I have a plan for the builder.'
"""
BUILDS = rf"""
echo 'Streaming works: 3.2 s for 100,000 rows, and the checksum is the same.'
{DESK} ask 'May I push the branch `stream-exports` and open a pull request?' --key push --option push='Push it' --option wait='!Not yet' \
    --detail '{{"branch": "stream-exports", "files": ["src/exports/stream.py", "tests/test_exports.py"], "lines": "+48 −31"}}' > /dev/null
"""
ANSWERS = r"""
printf 'Three services failed over the weekend:\n\n1. **search**: its disk was full from Saturday 03:10 to 04:25\n2. **mail**: the relay refused us, twice\n3. **exports**: ran out of memory on the largest customer\n\nOnly the last is still open. See `runbooks/exports.md`.\n'
"""


# A run's id begins with the milliseconds of its making, so those of the past get ids of the past.
PAST = (
    """
    INSERT INTO runs (workspace_id, id, automation_id, session_id, agent_id, grant_id, revision, status, source, slot, queue,
                      pool, executor, timeout, queued_at, started_at, finished_at, attempt, skip_reason, error_class, summary, trace_id)
    SELECT r.workspace_id,
           (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(at::text), 1, 3) || '8'
            || substr(md5(at::text), 4, 15))::uuid,
           r.automation_id, r.session_id, r.agent_id, r.grant_id, r.revision, CASE luck WHEN 0 THEN 'failed' WHEN 1 THEN 'skipped' ELSE 'succeeded' END,
           'schedule', at, r.queue, r.pool, r.executor, r.timeout, at, CASE luck WHEN 1 THEN NULL ELSE at + late END,
           at + late + interval '1 minute' * (1 + luck % 5), 1, CASE luck WHEN 1 THEN 'prior_in_flight' END,
           CASE luck WHEN 0 THEN 'agent_error' END, 'All 44 endpoints answered.', r.trace_id
      FROM (SELECT r.* FROM runs r JOIN automations a ON a.id = r.automation_id
             WHERE a.slug = 'endpoint-check' AND r.session_id IS NOT NULL LIMIT 1) AS r,
           generate_series(now() - interval '170 days', now() - interval '20 minutes', interval '97 minutes') AS at,
           LATERAL (SELECT ('x' || substr(md5(at::text), 1, 4))::bit(16)::int % 61 AS luck,
                           interval '1 millisecond' * (30 + ('x' || substr(md5(at::text), 5, 4))::bit(16)::int % 400) AS late) AS chance
     WHERE extract(isodow FROM at) < 6 OR luck % 3 = 0
    """,
    """
    INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id)
    SELECT r.workspace_id, r.id, 1, spent.unit, spent.amount * (60 + ('x' || substr(md5(r.id::text), 1, 4))::bit(16)::int % 80), g.account_id
      FROM runs r JOIN grants g ON g.workspace_id = r.workspace_id AND g.id = r.grant_id,
           (VALUES ('tokens', 31), ('money', 0.0004)) AS spent(unit, amount)
     WHERE r.status = 'succeeded' AND r.source = 'schedule'
        ON CONFLICT DO NOTHING
    """,
    """
    INSERT INTO snapshots (id, taken_at, host, workers, sessions, running, queued, cpu_percent, memory_mb)
    SELECT gen_random_uuid(), at, 'north', CASE WHEN wave > 0.2 THEN 2 ELSE 1 END, greatest(0, 3 + 2 * wave), greatest(0, 4 + 4 * wave),
           greatest(0, 12 * wave + 3 * sin(2 * pi() * extract(epoch FROM at) / 3100)), 22 + 18 * wave, 800
      FROM generate_series(now() - interval '24 hours', now(), interval '1 minute') AS at,
           LATERAL (SELECT sin(2 * pi() * extract(epoch FROM at) / 43200)::float8 AS wave) AS sea
    """,
)


class Rota:
    """A running `rota up`, with its home in a temporary folder."""

    goal = chat = ""  # sessions that are pictured
    member = ""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        command = [str(ROTA), "up", "--home", str(home), "--port", "0", *options]
        self.log = (home.parent / f"{home.name}.log").open("w+")
        self.process = subprocess.Popen(command, stderr=self.log, env=environment)
        self.link = until(self._link)
        self.url = self.link.split("/sign-in")[0]
        self.token = subprocess.run(
            [str(ROTA), "tokens", "create", "screenshots", "--home", str(home)],
            check=True, capture_output=True, text=True, env=environment,
        ).stdout.strip()  # fmt: skip

    def _link(self) -> str | None:
        assert self.process.poll() is None, "rota did not start; look at its log"
        found = re.search(r"http://\S+/sign-in\?token=[\w-]+", Path(self.log.name).read_text())
        return found.group() if found else None

    def api(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        url = f"{self.url}/api/v1/workspaces/default{path}"
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 — Rota's own address
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def agent(self, name: str, script: str, *arguments: str) -> None:
        config = {"argv": ["sh", "-c", script, *arguments], "stdin": "none"}
        self.api("POST", "/agents", {"name": name, "executor": "command", "config": config})

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


def until(check: Callable[[], Any], within: float = 60.0) -> Any:
    deadline = time.monotonic() + within
    while not (answer := check()):
        assert time.monotonic() < deadline, f"still {answer!r} after {within} s"
        time.sleep(0.05)
    return answer


@contextmanager
def rota(*options: str) -> Iterator[Rota]:
    folder = Path(tempfile.mkdtemp(prefix="rota-screenshots-"))
    started = Rota(folder / "home", *options)
    try:
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)


def furnish(started: Rota, gate: Path) -> None:
    """Some days in the life of a workspace, within half a minute."""
    started.agent("Researcher", RESEARCH, str(gate))
    started.agent("Prober", CHECK)
    started.agent("Librarian", 'echo "Sorted $(($(date +%s) % 9 + 4)) notes."; sleep 1.4')
    for automation in (
        {
            "name": "Endpoint check", "agent": "prober", "prompt": "Ask every public endpoint and tell which is slow.",
            "triggers": [{"every": "1s", "max_fires": 18}],
        },
        {
            "name": "Sort the notes", "agent": "librarian", "prompt": "File what came in since the last time.",
            "triggers": [{"every": "1s", "max_fires": 9}, {"cron": "30 7 * * *", "timezone": "Europe/Lisbon"}],
        },
        {
            "name": "Regression research", "agent": "researcher", "max_attempts": 2, "run_immediately": True,
            "prompt": "Go through this week's changes.\nName the regressions nobody owns; find the cause of the worst.",
            "triggers": [
                {"mode": "weekly", "weekdays": ["mon", "thu"], "time": "08:30", "timezone": "America/New_York"}
            ],
        },
    ):  # fmt: skip
        started.api("POST", "/automations", automation)
    until(lambda: all(_fires(started, name) for name in ("endpoint-check", "sort-the-notes")))
    talk(started)
    started.api("POST", "/automations/weekday-digest/pause")
    schedule = {"cron": "*/10 * * * *", "timezone": "Europe/Berlin"}
    started.api("PATCH", "/automations/endpoint-check", {"triggers": [schedule, {"webhook": {}}]})
    remember(started)
    invite(started)


def invite(started: Rota) -> None:
    """People with every level, and tokens for what they automate elsewhere."""
    for name, level in (("Release desk", "admin"), ("Support", "member"), ("Book-keeping", "viewer")):
        email = f"{name.lower().replace(' ', '-')}@example.org"
        started.member = started.api("POST", "/members", {"email": email, "name": name, "level": level})["id"]
    for name, scopes, lasts in (("Nightly import", ["read", "run"], "90d"), ("Dashboard", ["read"], None)):
        started.api("POST", "/tokens", {"name": name, "scopes": scopes, "lasts": lasts})


def talk(started: Rota) -> None:
    """A goal that several agents pursue, a conversation, and what they need for it."""
    chart = started.home.parent / "chart.png"
    chart.write_bytes(drawn())
    started.agent("Measurer", MEASURES, str(chart))
    for name, script in (("Reader", READS), ("Planner", DRAFTS), ("Builder", BUILDS), ("Guide", ANSWERS)):
        started.agent(name, script)
    tasks: list[tuple[str, str, list[str]]] = [
        ("measure", "measurer", []), ("read-code", "reader", []), ("plan", "planner", ["measure", "read-code"]),
        ("build", "builder", ["plan"]), ("review", "judge", ["build"]), ("announce", "planner", ["review"]),
    ]  # fmt: skip
    agents = {"planner": "planner", "measurer": "measurer", "reader": "reader", "builder": "builder", "judge": "reader"}
    goal = {
        "kind": "background", "title": "Make large exports fast",
        "goal": "Exports of 100,000 rows time out. Find the cause, mend it, and have somebody judge the change.",
        "roles": [{"name": role, "agent": agent} for role, agent in agents.items()],
        "tasks": [{"key": key, "role": role, "prompt": f"Do your part: {key}.", "depends_on": needs} for key, role, needs in tasks],
    }  # fmt: skip
    started.goal = started.api("POST", "/sessions", goal)["id"]
    asked = {"agent": "guide", "prompt": "What broke over the weekend, and is anything still open?"}
    started.chat = started.api("POST", "/sessions", asked)["id"]
    started.api("POST", "/sessions", {"agent": "guide", "prompt": "Who is on call this week?"})
    for name, told in (("github", "Opens pull requests"), ("mail-relay", "Sends the digest")):
        started.api("POST", "/credentials", {"name": name, "value": f"not-a-real-one-{name}", "description": told})
    until(lambda: started.api("GET", "/approvals?status=pending")["items"])
    until(lambda: len(started.api("GET", f"/sessions/{started.goal}/artifacts")["items"]) == 2)


def drawn(across: int = 480, down: int = 200) -> bytes:
    """A chart, as an agent may leave one."""
    rows = []
    for y in range(down):
        row = bytearray(b"\xff" * (3 * across))
        for bar in range(8):
            tall = (0.25, 0.3, 0.42, 0.4, 0.58, 0.7, 0.86, 0.95)[bar] * down
            if y > down - tall:
                left = 3 * (16 + bar * 58)
                row[left : left + 3 * 40] = bytes((81, 102, 255)) * 40
        rows.append(b"\0" + bytes(row))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", across, down, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def remember(started: Rota) -> None:
    """Half a year of runs and a day of snapshots, as if it had been up all the time."""
    postgres = EmbeddedPostgres(started.home)
    try:
        postgres.start()
        with psycopg.connect(postgres.owner_url, autocommit=True) as conn:
            for statement in PAST:
                conn.execute(statement)
    finally:
        postgres.stop()


def _fires(started: Rota, slug: str) -> bool:
    """Has the trigger that fires every second fired as often as it may?"""
    first = next(each for each in started.api("GET", f"/automations/{slug}")["triggers"] if each["max_fires"])
    return bool(first["fires"] == first["max_fires"])


def first_of(started: Rota, slug: str, status: str) -> str:
    runs = started.api("GET", f"/automations/{slug}/runs")["items"]
    return str(next(each["session_id"] for each in runs if each["status"] == status))


def take(browser: Browser, started: Rota, pages: dict[str, str], folder: Path, state: Any = None) -> None:
    for light in ("light", "dark"):
        for width, (across, down) in SIZES.items():
            context = browser.new_context(
                viewport={"width": across, "height": down}, color_scheme=light, storage_state=state
            )
            page = context.new_page()
            for name, path in pages.items():
                picture(page, f"{started.url}{path}", folder / f"{name}-{light}-{width}.png")
            context.close()


def shown_pictures() -> set[str]:
    """Names of the pictures that the README and the documentation show."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return {name for page in pages for name in SHOWN.findall(page.read_text("utf-8"))}


def picture(page: Page, url: str, file: Path) -> None:
    page.goto(url)
    page.wait_for_load_state("load")
    page.screenshot(path=file, animations="disabled")
    if file.stem in shown_pictures():
        (COMMITTED / f"{file.stem}.webp").write_bytes(as_webp(page))
    across = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    sys.stdout.write(
        f"{file.name}: {file.stat().st_size // 1024} KB" + (f", {across} px too wide" if across else "") + "\n"
    )


def as_webp(page: Page) -> bytes:
    """The same picture in half the size. Playwright has no WebP, the browser does."""
    browser = page.context.new_cdp_session(page)
    answer = browser.send("Page.captureScreenshot", {"format": "webp", "quality": 90})
    browser.detach()
    return base64.b64decode(answer["data"])


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *_as_root()])
        with rota() as started, tempfile.TemporaryDirectory() as outside:
            gate = Path(outside) / "gate"
            furnish(started, gate)
            link = started.link.removeprefix(started.url)
            take(browser, started, {"sign-in": "/sign-in", "sign-in-link": link}, folder)
            state = _sign_in(browser, started)
            pages = {
                "automations": "/w/default/automations",
                "automation": "/w/default/automations/endpoint-check",
                "automation-calendar": "/w/default/automations/endpoint-check?view=calendar&at=2026-01-05T09:00#history",
                "editor": "/w/default/automations/new?starter=digest",
                "editor-saved": "/w/default/automations/sort-the-notes/edit",
                "agents": "/w/default/agents",
                "agent": "/w/default/agents/prober",
                "agent-kinds": "/w/default/agents/new",
                "agent-form": "/w/default/agents/new?kind=acp",
                "fleet": "/w/default/fleet",
                "runs": "/w/default/runs",
                "session-live": f"/w/default/sessions/{first_of(started, 'regression-research', 'running')}",
                "session-failed": f"/w/default/sessions/{first_of(started, 'endpoint-check', 'failed')}",
                "session-goal": f"/w/default/sessions/{started.goal}",
                "session-chat": f"/w/default/sessions/{started.chat}",
                "session-new": "/w/default/sessions/new?kind=background",
                "sessions": "/w/default/sessions",
                "sessions-background": "/w/default/sessions?kind=background",
                "approvals": "/w/default/approvals",
                "notifications": "/w/default/notifications",
                "notifications-choices": "/w/default/notifications/choices",
                **_settings(browser, started, state),
                "settings-member": f"/w/default/settings/members/{started.member}",
                "not-found": "/w/default/sessions/none",
            }
            take(browser, started, pages, folder, state)
            gate.touch()
        with rota("--no-starters") as started:
            take(browser, started, {"empty": "/w/default/automations"}, folder, _sign_in(browser, started))
        browser.close()


def _sign_in(browser: Browser, started: Rota) -> Any:
    context = browser.new_context()
    page = context.new_page()
    page.goto(started.link)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/w/default/**")
    state = context.storage_state()
    context.close()
    return state


def _settings(browser: Browser, started: Rota, state: Any) -> dict[str, str]:
    """Every page of the settings, by its name."""
    context = browser.new_context(storage_state=state)
    page = context.new_page()
    page.goto(f"{started.url}/w/default/settings")
    paths = [str(each.get_attribute("href")) for each in page.locator(".sections a").all()]
    context.close()
    return {f"settings-{path.rsplit('/', 1)[1]}": path for path in paths}


def _as_root() -> list[str]:
    return ["--no-sandbox"] if os.geteuid() == 0 else []


if __name__ == "__main__":
    main()
