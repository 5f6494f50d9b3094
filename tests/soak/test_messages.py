"""Promise 6 under fire with 20,000 messages."""

from pathlib import Path

import pytest

from support.messages_under_fire import messages_under_fire


@pytest.mark.timeout(1200)
def test_twenty_thousand_messages_under_fire(tmp_path: Path) -> None:
    messages_under_fire(tmp_path, 20_000, within=900)
