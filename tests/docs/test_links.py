"""Every link within the repository leads somewhere, every page is led to, and nothing stands twice."""

from pathlib import Path

import pytest

from support.doc_pages import README, ROOT, anchors, links, text_of

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_sections_that_exist(page: Path) -> None:
    broken = [link for link in links(page) if not _exists(page, link)]
    assert broken == []


def _exists(page: Path, link: str) -> bool:
    path, _, section = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not section or section in anchors(target))


def test_the_readme_leads_to_every_page() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"}
    assert pages <= set(links(README))


def test_nothing_stands_twice_in_the_changelog() -> None:
    """As when two branches that both added a line are brought together."""
    beginnings = [line[:30] for line in text_of(ROOT / "CHANGELOG.md").splitlines() if line.startswith("- ")]
    assert sorted(beginnings) == sorted(set(beginnings))


def test_decisions_are_numbered_without_a_gap_or_a_repeat() -> None:
    numbers = sorted(int(page.name[:4]) for page in (ROOT / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
