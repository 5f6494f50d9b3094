"""The grant scope `workspace:read` on the command line and in files."""

from pathlib import Path

import pytest

from .conftest import Answer, Command

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROSTER = """
automations:
  - {name: Errand, agent: worker-bee, prompt: Go., scopes: [%s]}
"""


async def test_options_give_and_take_the_scope(rota: Command, answer: Answer) -> None:
    saved = await answer(
        "automations", "create", "Errand", "--agent", "worker-bee", "--prompt", "Go.", "--scope", "workspace:read"
    )
    assert saved["scopes"] == ["workspace:read"]
    assert "workspace:read" in (await rota("automations", "show", "errand")).stdout
    assert "workspace:read" in (await rota("grants", "show", saved["grant_id"])).stdout
    assert (await answer("automations", "edit", "errand", "--set", "scopes=[]"))["scopes"] == []


async def test_a_direct_run_takes_the_scope(rota: Command, answer: Answer) -> None:
    run = await answer("agents", "run", "worker-bee", "Sweep.", "--scope", "workspace:read")
    assert "workspace:read" in (await answer("grants", "show", run["grant_id"]))["scopes"]
    refused = await rota("agents", "run", "worker-bee", "Sweep.", "--scope", "workspace:raed", code=2)
    assert "Did you mean `workspace:read`?" in refused.stderr


async def test_a_file_says_the_scopes(rota: Command, answer: Answer, tmp_path: Path) -> None:
    path = tmp_path / "roster.yaml"
    for scopes, changes in (("workspace:read", "1 to create"), ("workspace:read", "1 unchanged"), ("", "1 to change")):
        path.write_text(ROSTER % scopes)
        assert changes in (await rota("apply", "-f", str(path), "--yes")).stdout
        assert (await answer("automations", "show", "errand"))["scopes"] == ([scopes] if scopes else [])
    path.write_text(ROSTER % "workspace:reed")
    assert "Did you mean `workspace:read`?" in (await rota("apply", "-f", str(path), "--yes", code=2)).stderr
