"""A process that uses the embedded PostgreSQL of one home: for each word on its input one answer."""

import json
import os
import pwd
import signal
import sys
from pathlib import Path

from rota.db import embedded
from rota.db.embedded import EmbeddedPostgres
from rota.errors import RotaError


def main(home: str, user: str = "") -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    if user:
        become(user)
    if programs := os.environ.get("ROTA_TEST_PROGRAMS"):
        embedded.find_binaries = lambda: Path(programs)
    server = EmbeddedPostgres(Path(home))
    print(json.dumps({"value": os.getpid()}), flush=True)
    for word in sys.stdin:
        print(json.dumps(obey(server, word.strip())), flush=True)


def become(user: str) -> None:
    """Only now, with everything imported: this user may have no access to root's Python."""
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def obey(server: EmbeddedPostgres, word: str) -> dict[str, str | None]:
    try:
        return {"value": {"start": server.start, "stop": server.stop, "ensure": server.ensure_running}[word]()}
    except (RotaError, KeyboardInterrupt) as error:
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    main(*sys.argv[1:])
