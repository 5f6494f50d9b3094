"""The documentation as data: its blocks of code, its tables, its links."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README, AGENTS = ROOT / "README.md", ROOT / "docs" / "agents.md"
KIND_PAGES = {page.stem: page for page in sorted((ROOT / "docs" / "agents").glob("*.md"))}
SESSIONS = ROOT / "docs" / "sessions.md"
DEPLOYING = ROOT / "docs" / "deploying.md"
OPERATING, SCHEDULES = ROOT / "docs" / "operating.md", ROOT / "docs" / "reference" / "schedules.md"

_FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`]+)`")


class Block(NamedTuple):
    """A fenced block: ```language purpose."""

    language: str
    purpose: str
    text: str
    line: int


@cache
def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def blocks(page: Path, language: str) -> list[Block]:
    text = text_of(page)
    found = [
        Block(match[1], match[2], match[3], line=text.count("\n", 0, match.start()) + 1)
        for match in _FENCE.finditer(text)
    ]
    assert found, f"{page.name} has no blocks"
    return [each for each in found if each.language == language]


def table(page: Path, header: str) -> list[list[str]]:
    """The rows of the table whose first line begins with these cells; the last of them may go on after a comma."""
    lines = text_of(page).splitlines()
    begins = re.compile(rf"\| {re.escape(header)}( \||,)")
    heads = [at for at, (line, rule) in enumerate(pairwise(lines)) if rule.startswith("| ---") and begins.match(line)]
    assert heads, f"{page.name} has no table that begins with {header!r}"
    rows = takewhile(lambda line: line.startswith("|"), lines[heads[0] + 2 :])
    return [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in rows]


def spans(text: str) -> list[str]:
    """What stands as code in a text."""
    return _SPAN.findall(text)


def column(page: Path, header: str) -> set[str]:
    """Every name in the first column of a table."""
    return {name for row in table(page, header) for name in spans(row[0])}


def links(page: Path) -> Iterator[str]:
    """Where a page leads within the repository: `path`, `path#section` or `#section`."""
    for target in _LINK.findall(_ANY_CODE.sub("", text_of(page))):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """The sections of a page, as GitHub names them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    }
