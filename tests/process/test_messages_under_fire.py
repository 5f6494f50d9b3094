"""Promise 6 while APIs are killed and PostgreSQL is restarted; `make soak` does it with a hundred times as many messages."""

from pathlib import Path

import pytest

from support.messages_under_fire import messages_under_fire


@pytest.mark.timeout(300)
def test_no_message_is_lost_doubled_or_out_of_order_under_fire(tmp_path: Path) -> None:
    messages_under_fire(tmp_path, 200, within=90)
