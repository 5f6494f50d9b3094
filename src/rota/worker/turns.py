"""Whose turn it is to be claimed from: workspaces take turns, and within one its capped agents."""

from collections.abc import Iterator
from itertools import islice
from uuid import UUID

from rota.db.queues import Found, Queue

MOST_AT_ONCE = 16  # capped agents whose turn it is, unless there are more places


class Waiting:
    """The queues of one workspace and priority that hold something: those which its agents share, and apart from them
    one for each capped agent, of which there may be thousands."""

    __slots__ = ("_apart", "_shared")

    def __init__(self) -> None:
        self._shared: dict[Queue, Found] = {}
        self._apart: dict[Queue, Found] = {}

    def __bool__(self) -> bool:
        return bool(self._shared or self._apart)

    def _beside(self, found: Found) -> dict[Queue, Found]:
        return self._apart if found.agent_capped else self._shared

    def add(self, found: Found) -> None:
        self._beside(found)[found.key] = found

    def drop(self, found: Found) -> None:
        self._beside(found).pop(found.key, None)

    def put_last(self, found: Found) -> None:
        queues = self._beside(found)
        if queues.pop(found.key, None):
            queues[found.key] = found

    def first(self, most: int) -> Iterator[Found]:
        yield from self._shared.values()
        yield from islice(self._apart.values(), most)


class Turns:
    def __init__(self) -> None:
        self._lines: dict[int, dict[UUID, Waiting]] = {}  # by priority, workspaces in the order of their turns

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, found: Found) -> None:
        self._lines.setdefault(found.priority, {}).setdefault(found.workspace_id, Waiting()).add(found)

    def drop(self, found: Found) -> None:
        if waiting := self._lines.get(found.priority, {}).get(found.workspace_id):
            waiting.drop(found)
            if not waiting:
                self._leave(found.priority, found.workspace_id)

    def drop_workspace(self, workspace_id: UUID) -> None:
        for priority in tuple(self._lines):
            self._leave(priority, workspace_id)

    def _leave(self, priority: int, workspace_id: UUID) -> None:
        line = self._lines[priority]
        line.pop(workspace_id, None)
        if not line:
            del self._lines[priority]

    def put_last(self, found: Found) -> None:
        """It had its turn: now it is the others'."""
        line = self._lines.get(found.priority, {})
        if waiting := line.pop(found.workspace_id, None):
            waiting.put_last(found)
            line[found.workspace_id] = waiting

    def places(self) -> dict[tuple[int, UUID], int]:
        """Where in the line of its priority each workspace stands."""
        return {(priority, space): at for priority, line in self._lines.items() for at, space in enumerate(line)}

    def now(self, places: int) -> list[Found]:
        """The queues of those workspaces whose turn it is, one for each place; who has what is urgent comes first."""
        spaces: dict[UUID, None] = {}
        for priority in sorted(self._lines):
            for workspace_id in self._lines[priority]:
                if len(spaces) >= places:
                    break
                spaces[workspace_id] = None
        most = -(-max(2 * places, MOST_AT_ONCE) // max(1, len(spaces)))  # twice as many as have to give: some are full
        waiting = [line[space] for space in spaces for line in self._lines.values() if space in line]
        return [found for each in waiting for found in each.first(most)]
