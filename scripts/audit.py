"""Looks for known vulnerabilities in the packages that requirements/ locks.

    python scripts/audit.py [--strict] [--url URL] [FILE …]

pip-audit asks the OSV database, or another one with the same API that `--url` names, about each locked version.
The exit status is 1 if a version has a known vulnerability or pip-audit fails. Where the database cannot be reached no
audit happens: this is said, and the exit status is 0, or 3 with `--strict`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests

LOCKS = sorted((Path(__file__).resolve().parents[1] / "requirements").glob("*.txt"))
OSV = "https://api.osv.dev/v1/query"
# Known to be vulnerable. A server that has no advisory about it, such as a mirror or a proxy, is no advisory database.
CANARY: dict[str, Any] = {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "2.4.1"}
ACCEPTED: dict[str, str] = {}  # id of an advisory: why it does not concern Rota
TIMEOUT_SECONDS = 15
FOUND, NOT_DONE = 1, 3


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Look for known vulnerabilities in the locked dependencies.")
    parser.add_argument("--strict", action="store_true", help="fail where the advisory database cannot be reached")
    parser.add_argument("--url", default=OSV, help="query URL of an advisory database with the API of OSV")
    parser.add_argument(
        "files", nargs="*", type=Path, default=LOCKS, help="locked requirements; all of them by default"
    )
    options = parser.parse_args(arguments)
    problem = find_problem(options.url)
    if problem:
        return report_no_audit(problem, strict=options.strict)
    packages, complaint = audit(options.files, options.url)
    if packages is None:
        problem = find_problem(options.url)  # it may have gone meanwhile
        return report_no_audit(problem, strict=options.strict) if problem else report_failure(complaint)
    return report(packages)


def find_problem(url: str) -> str | None:
    """Return why there is no advisory database at the URL; None if there is one."""
    try:
        response = requests.post(url, json=CANARY, timeout=TIMEOUT_SECONDS)
        response.raise_for_status()
        known = response.json().get("vulns")
    except (requests.RequestException, ValueError, AttributeError) as failure:
        return f"{type(failure).__name__}: {failure}"
    return None if known else "it knows no advisory about a package that has some"


def audit(files: Sequence[Path], url: str) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the audited packages with their vulnerabilities, or None and what pip-audit said."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "audit.json"
        command = [
            *(sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner", "off"),
            *("--vulnerability-service", "osv", "--osv-url", url, "--timeout", str(TIMEOUT_SECONDS)),
            *("--cache-dir", directory, "--format", "json", "--output", str(output)),
            *(word for each in files for word in ("--requirement", str(each))),
            *(word for each in ACCEPTED for word in ("--ignore-vuln", each)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not output.exists():
            return None, done.stderr
        return json.loads(output.read_text())["dependencies"], done.stderr


def report(packages: Sequence[dict[str, Any]]) -> int:
    skipped = [f"{each['name']}: {each['skip_reason']}" for each in packages if "skip_reason" in each]
    vulnerable = [
        f"{each['name']} {each['version']}: {', '.join([flaw['id'], *flaw['aliases']])}, "
        f"fixed in {' or '.join(flaw['fix_versions']) or 'no version yet'}. {flaw['description']}"
        for each in packages
        for flaw in each.get("vulns", ())
    ]
    for line in (*skipped, *vulnerable):
        print(line)
    if skipped or vulnerable:
        print(f"Audit failed: {len(vulnerable)} known vulnerabilities, {len(skipped)} packages not audited.")
        return FOUND
    print(f"No known vulnerabilities in {len(packages)} locked packages.")
    return 0


def report_no_audit(problem: str, *, strict: bool) -> int:
    print("WARNING: the locked dependencies were NOT audited for known vulnerabilities.", file=sys.stderr)
    print(f"The advisory database cannot be used: {problem}", file=sys.stderr)
    print("Run `make audit` again where it can be reached.", file=sys.stderr)
    return NOT_DONE if strict else 0


def report_failure(complaint: str) -> int:
    print(complaint, file=sys.stderr)
    print("Audit failed: pip-audit ended without a result.", file=sys.stderr)
    return FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
