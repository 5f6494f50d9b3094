"""Writes src/rota/db/schema.sql, the whole schema to read in one piece, from a database that the migrations made.

    python scripts/schema.py

Nothing reads the file but people, and a test that proves it equal to the migrations.
"""

import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rota.db.embedded import EmbeddedPostgres, find_binaries
from rota.db.migrate import migrate

FILE = Path(__file__).resolve().parents[1] / "src" / "rota" / "db" / "schema.sql"
POLICIES = r"^(CREATE POLICY .*|ALTER TABLE .* ROW LEVEL SECURITY);$"
HEADER = """\
-- The schema as all migrations together leave it, for reading. Made by scripts/schema.py: change a migration, not this.
-- Every table with a workspace is put under row-level security by db/isolation.py, which is not repeated here.
"""


def dump(url: str) -> str:
    """The schema of this database in statements, without what differs between servers that hold the same."""
    options = ["--schema-only", "--no-owner", "--no-privileges", "--no-comments", "--dbname", url]
    done = subprocess.run([find_binaries() / "pg_dump", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pg_dump failed: {done.stderr.strip()}")
    return tidied(done.stdout)


def tidied(dumped: str) -> str:
    lines = [line for line in dumped.splitlines() if not re.match(r"--|\\|SET |SELECT pg_catalog\.set_config", line)]
    text = re.sub(POLICIES, "", "\n".join(lines), flags=re.MULTILINE)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    text = re.sub(r"\bpublic\.", "", text)
    text = text.replace("timestamp with time zone", "timestamptz")
    text = re.sub(r"^ALTER TABLE ONLY (\w+)\n    ADD ", r"ALTER TABLE \1 ADD ", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=;\n)(?<!\n\);\n)\n(?=ALTER TABLE \w+ ADD|CREATE (UNIQUE )?INDEX)", "", text)
    return f"{HEADER}\n{text}\n"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rota-schema-") as home, EmbeddedPostgres(Path(home)) as postgres:
        url = postgres.owner_url
        asyncio.run(migrate(url))
        FILE.write_text(dump(url))
    sys.stdout.write(f"{FILE}\n")


if __name__ == "__main__":
    main()
