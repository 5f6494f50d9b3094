"""What an agent is told when its turn begins, and the mark by which a later turn finds its conversation again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rota.model.executor import Assignment

LONGEST_TRANSCRIPT = 100_000

INTERRUPTED = (
    "Your work on the request below was interrupted. Look at what you have already done, go on from there, "
    "and do not repeat anything that is done."
)
BEGUN_BEFORE = (
    "An earlier attempt at this was interrupted, and its conversation is lost. Look at what is already done "
    "before you do anything again."
)


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Kept as the desk's checkpoint. `answered` counts, for each question of the run, the answers it was given;
    `asked` is the question for which it was parked; `costs` are what the conversation has cost so far."""

    session: str
    run: str
    instructions: str
    answered: Mapping[str, int] = field(default_factory=dict)
    asked: str | None = None
    costs: Mapping[str, float] = field(default_factory=dict)

    def encoded(self) -> bytes:
        return json.dumps({"acp": asdict(self)}).encode()

    def for_run(self, run: str) -> "Bookmark":
        """The same conversation, in this run."""
        return self if self.run == run else replace(self, run=run, answered={}, asked=None)


def bookmark(checkpoint: bytes | None) -> Bookmark | None:
    """What an earlier attempt or run left, unless that was something else."""
    try:
        kept = json.loads(checkpoint or b"{}")
        return Bookmark(**kept["acp"])
    except (ValueError, KeyError, TypeError):
        return None


def digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def beginning(assignment: Assignment) -> str:
    """For a conversation that begins with this turn."""
    note = BEGUN_BEFORE if assignment.attempt > 1 else ""
    return _together(assignment.instructions, _transcript(assignment), note, _request(assignment))


def going_on(assignment: Assignment, left: Bookmark) -> str:
    """For an agent that knows the conversation: the next request in it, or the one it was interrupted at."""
    instructions = assignment.instructions if left.instructions != digest(assignment.instructions) else ""
    again = left.run == str(assignment.run_id)
    return _together(instructions, INTERRUPTED if again else "", _answer(assignment, left), _request(assignment))


def _answer(assignment: Assignment, left: Bookmark) -> str:
    answer = assignment.answer
    if answer is None or left.asked is None or left.run != str(assignment.run_id):
        return ""
    verdict = "approved" if answer.approved else "refused"
    said = f" They said: {answer.text}" if answer.text else ""
    again = " If you still need it, ask for permission in exactly the same way." if answer.approved else ""
    return f"You had asked for permission: {left.asked} A person has {verdict} it.{said}{again}"


def _transcript(assignment: Assignment) -> str:
    told = "\n".join(f"{turn.speaker}: {turn.text}" for turn in assignment.transcript)[-LONGEST_TRANSCRIPT:]
    return f"What was said before in this session:\n{told}" if told else ""


def _request(assignment: Assignment) -> str:
    given = {"Input": assignment.input, "What came with this run": assignment.payload, "Missed": assignment.missed}
    values = [
        f"{name}:\n{json.dumps(value, ensure_ascii=False, indent=2, default=str)}"
        for name, value in given.items()
        if value is not None
    ]
    return _together(assignment.prompt or "", *values)


def _together(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
