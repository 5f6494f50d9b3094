"""Named events: what they may be called, and what they tell the runs they start."""

import re
from typing import Any

from rota.errors import Invalid
from rota.model.ids import RunId

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def event_name(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        message = "An event's name has 1 to 128 letters, digits, dots, colons, hyphens and underscores."
        raise Invalid(message, code="invalid_event", field="event")
    return value


def payload(event: str, data: Any, run_id: RunId | None) -> dict[str, Any]:
    """With the run whose agent posted it: by it, a circle of agents that call each other is found."""
    return {"event": event, "data": data} | ({"run_id": str(run_id)} if run_id else {})
