"""Every link within the repository leads somewhere, and every decision has a number of its own."""

from pathlib import Path

import pytest
from docs.pages import ROOT, anchors, links

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_sections_that_exist(page: Path) -> None:
    broken = [link for link in links(page) if not _exists(page, link)]
    assert broken == []


def _exists(page: Path, link: str) -> bool:
    path, _, section = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not section or section in anchors(target))


def test_decisions_are_numbered_without_a_gap_or_a_repeat() -> None:
    numbers = sorted(int(page.name[:4]) for page in (ROOT / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
