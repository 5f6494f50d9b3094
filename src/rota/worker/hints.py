"""Where somebody said that there is a run to claim, what was found there before, and when a look is worth its time."""

import time
from collections.abc import Iterable, Sequence
from uuid import UUID

from rota.db.queues import Found, Queue
from rota.worker.turns import MOST_AT_ONCE

MOST_REMEMBERED = 10_000  # workspaces
LONGEST_BLIND = 1.0  # seconds, also where a look took long once
SHARE_OF_LOOKING = 0.1  # of the time may be spent on looking where there are many queues

EVERYWHERE = None


class Hints:
    def __init__(self) -> None:
        self._named: set[UUID] = set()
        self._guessed: set[UUID] = set()  # since somebody looked there
        self._remembered: dict[UUID, dict[Queue, Found]] = {}
        self._look_again_at: dict[UUID | None, float] = {}
        self.looking_costs = 0.0  # seconds that are to go by after what the last look took

    def __bool__(self) -> bool:
        return bool(self._named)

    def add(self, workspace_id: UUID) -> None:
        self._named.add(workspace_id)

    def take(self) -> set[UUID]:
        """All of them: whoever takes them looks."""
        taken, self._named = self._named, set()
        return taken

    def discard(self, workspace_id: UUID) -> None:
        self._named.discard(workspace_id)

    def clear(self) -> None:
        """Somebody looks everywhere. What was found where is still worth remembering."""
        for known in (self._named, self._guessed, self._look_again_at):
            known.clear()

    def remember(self, found: Iterable[Found]) -> None:
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.clear()
        for each in found:
            self._remembered.setdefault(each.workspace_id, {})[each.key] = ready(each)

    def guesses(self) -> tuple[list[Found], list[UUID]]:
        """The queues that held something before in the workspaces that were named; and those workspaces in which to
        look: nothing is known there, or too much, or the guess was made before and others have taken all places since,
        as they would again."""
        known = {each: self._known(each) for each in self._named}
        unknown = [each for each, found in known.items() if not found or each in self._guessed]
        self._guessed |= {each for each, found in known.items() if found}
        return [each for found in known.values() for each in found], [each for each in unknown if self.may_look(each)]

    def _known(self, workspace_id: UUID) -> Sequence[Found]:
        remembered = self._remembered.get(workspace_id, {})
        return tuple(remembered.values()) if len(remembered) <= MOST_AT_ONCE else ()

    def may_look(self, workspace_id: UUID | None = EVERYWHERE) -> bool:
        """Whether a look would not take too much of the time."""
        return time.monotonic() >= self._look_again_at.get(workspace_id, 0.0)

    def looked(self, workspace_id: UUID | None, took: float) -> None:
        self._guessed = self._guessed - {workspace_id} if workspace_id else set()
        self.looking_costs = min(took / SHARE_OF_LOOKING, LONGEST_BLIND)
        self._look_again_at[workspace_id] = time.monotonic() + self.looking_costs


def ready(found: Found) -> Found:
    """As it is when the first run that waits there may be claimed."""
    return found._replace(ready_in=0.0, later_in=None)
