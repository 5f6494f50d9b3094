"""What the commands refuse before they touch anything."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from rota.cli import main


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_command_that_cannot_work_makes_no_home(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROTA_DATABASE_URL", raising=False)
    told = CliRunner().invoke(main, [command, str(tmp_path / "file"), "--home", str(tmp_path / "home")])
    assert told.exit_code == 2
    assert told.output.startswith("rota: ")
    assert "Traceback" not in told.output
    assert os.listdir(tmp_path) == []


def test_a_database_that_does_not_answer_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", "postgresql://me:s3cret@127.0.0.1:1/x")
    told = CliRunner().invoke(main, ["backup", str(tmp_path / "file"), "--home", str(tmp_path / "home")])
    assert told.exit_code == 2
    assert "me@127.0.0.1:1/x" in told.output
    assert "s3cret" not in told.output
    assert os.listdir(tmp_path) == []
