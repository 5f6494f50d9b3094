"""ARCHITECTURE.md: what it names is there, and imports flow as it says."""

import configparser
import re

from support.doc_pages import ROOT, spans, text_of

PAGE = ROOT / "ARCHITECTURE.md"
NAMED = re.compile(r"[\w/]+\.py|[a-z_]+/")


def test_every_file_and_folder_it_names_is_there() -> None:
    prose = re.sub(r"^```.*?^```$", "", text_of(PAGE), flags=re.MULTILINE | re.DOTALL)
    named = {name.rstrip("/") for name in spans(prose) if NAMED.fullmatch(name)}
    assert len(named) > 30
    there = {f"/{path.relative_to(ROOT)}" for place in ("src", "tests", "docs") for path in (ROOT / place).rglob("*")}
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []


def test_imports_flow_as_it_says() -> None:
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = [
        set(layer.split(" | ")) for layer in contract["importlinter:contract:layers"]["layers"].split("\n") if layer
    ]
    [told] = re.findall(r"^cli → .*$", text_of(PAGE), re.MULTILINE)
    order = [set(layer.split(" | ")) for layer in told.split(" → ")]
    assert [layer for layer in layers if any(layer >= each for each in order)] == [
        next(layer for layer in layers if layer >= each) for each in order
    ]
    folders = {folder.name for folder in (ROOT / "src" / "rota").iterdir() if (folder / "__init__.py").exists()}
    assert folders <= set().union(*order)


def test_sql_is_in_db_only() -> None:
    source = ROOT / "src" / "rota"
    elsewhere = [path for path in source.rglob("*.py") if (source / "db") not in path.parents]
    assert len(elsewhere) > 100
    asks = re.compile(r"\b(conn|cursor)\.(execute|executemany|stream|copy)\(")
    assert [path for path in elsewhere if asks.search(path.read_text())] == []
