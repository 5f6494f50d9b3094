"""An assignment: what few agents ask for is put together when they ask."""

from dataclasses import replace
from pathlib import Path

from support.stand_ins import assignment


def test_a_field_may_be_given_as_a_function_and_is_then_called_by_whoever_reads_it(tmp_path: Path) -> None:
    asked: list[str] = []

    def place() -> Path:
        asked.append("directory")
        return tmp_path / "there"

    given = replace(assignment({}, tmp_path), directory=place, idempotency_key="key")
    assert asked == []
    assert (given.directory, given.idempotency_key, asked) == (tmp_path / "there", "key", ["directory"])
    assert replace(given, attempt=2).directory == tmp_path / "there"
