"""Removes the directories of sessions that ended long ago, from the home of this process.

A directory is first renamed, while its session is locked: a run that goes on in the session starts with a new one. Then
it is deleted, which may take long and needs no lock.
"""

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

from rota.db import directories
from rota.db.directories import Session
from rota.db.pool import Database
from rota.model.ids import id_at

log = logging.getLogger(__name__)

BATCH = 500
EVERY_SECONDS = 600.0
REMOVED = ".removed"  # beside the workspaces; below it are directories that nobody uses any more


class PruneDirectories:
    """A pass looks at a bounded number of directories that may be old enough, and comes back at once for more."""

    name = "prune_directories"

    def __init__(self, db: Database, home: Path, *, keep: timedelta, batch: int = BATCH) -> None:
        self._db, self._sessions, self._keep, self._batch = db, home / "sessions", keep, batch
        self._after: Session | None = None

    async def once(self) -> float:
        await asyncio.to_thread(self._empty)
        found = await asyncio.to_thread(self._old)
        if found:
            async with self._db.transaction() as conn:
                for each in await directories.let_go(conn, found, self._keep):
                    await asyncio.to_thread(self._rename, each)
            if removed := await asyncio.to_thread(self._empty):
                log.info("directories.removed", extra={"directories": removed})
        more = len(found) == self._batch
        self._after = found[-1] if more else None
        return 0.0 if more else EVERY_SECONDS

    def _old(self) -> Sequence[Session]:
        """The next directories of sessions that were made long enough ago: their ids begin with the time."""
        newest = id_at(datetime.now(UTC) - self._keep)
        found = sorted(
            (workspace_id, session_id)
            for workspace_id in _ids(self._sessions)
            for session_id in _ids(self._sessions / str(workspace_id))
            if session_id < newest
        )
        return [each for each in found if self._after is None or each > self._after][: self._batch]

    def _rename(self, session: Session) -> None:
        workspace_id, session_id = session
        place = self._sessions / REMOVED
        place.mkdir(mode=0o700, exist_ok=True)
        directory = self._sessions / str(workspace_id) / str(session_id)
        try:
            directory.rename(place / str(uuid4()))
        except FileNotFoundError:  # another process of this home was first
            return
        except OSError as failure:
            _warn(directory, failure)

    def _empty(self) -> int:
        """Delete what was renamed, also by a process that was killed; how many directories."""
        removed = 0
        with suppress(FileNotFoundError):
            for name in os.listdir(self._sessions / REMOVED):
                removed += _remove(self._sessions / REMOVED / name)
        return removed


def _ids(directory: Path) -> Iterator[UUID]:
    """Names of the directories there that are ids; links, and whatever else somebody put there, are left alone."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for each in entries:
            with suppress(ValueError, OSError):
                if each.is_dir(follow_symlinks=False) and str(found := UUID(each.name)) == each.name:
                    yield found


def _remove(directory: Path) -> bool:
    """Delete a tree without following links."""
    try:
        try:
            shutil.rmtree(directory)
        except PermissionError:
            _open_to_owner(directory)
            shutil.rmtree(directory)
    except FileNotFoundError:  # another process of this home deletes it too
        return False
    except OSError as failure:
        _warn(directory, failure)
        return False
    return True


def _open_to_owner(directory: Path) -> None:
    """Programs leave directories that even their owner may not write to. Nobody works here any more."""
    directory.chmod(stat.S_IRWXU)
    for at, names, _ in os.walk(directory):
        for each in (Path(at, name) for name in names):
            if not each.is_symlink():
                each.chmod(stat.S_IRWXU)


def _warn(directory: Path, failure: OSError) -> None:
    log.warning("directory.unremoved", extra={"directory": str(directory), "error": str(failure)})
