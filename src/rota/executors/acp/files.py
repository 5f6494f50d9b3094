"""Text files of a session's directory, and no way out of it: neither by `..` nor by a link, however late it is made."""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePath

from rota.errors import Invalid, NotFound

LARGEST = 10_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in the place of a file must not hold us up


class Files:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names = (directory, directory.resolve())  # an agent may know it by either

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text, or `limit` lines of it from `line` (the first is 1)."""
        with self._opened(path, os.O_RDONLY) as fd:
            if os.fstat(fd).st_size > LARGEST:
                raise Invalid(f"{path!r} is over {LARGEST:,} bytes", field="path")
            with open(fd, encoding="utf-8", errors="replace", newline="", closefd=False) as file:
                text = file.read(LARGEST)
        if line is None and limit is None:
            return text
        first = max((line or 1) - 1, 0)
        lines = io.StringIO(text)  # which end where an editor ends them, and not at a form feed too
        return "".join(islice(lines, first, None if limit is None else first + limit))

    def write(self, path: str, content: str) -> None:
        data = content.encode(errors="replace")
        with self._opened(path, os.O_WRONLY | os.O_CREAT) as fd:
            os.ftruncate(fd, 0)
            with open(fd, "wb", closefd=False) as file:
                file.write(data)

    def directory(self, path: str | None) -> Path:
        """A directory in which a program may begin."""
        if path is None:
            return self._directory
        with self._walked(path, self._parts(path)):
            return self._directory.joinpath(*self._parts(path))

    @contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        *folders, name = self._parts(path) or [""]
        if not name:
            raise Invalid(f"{path!r} is a directory", field="path")
        with self._walked(path, folders, make=bool(flags & os.O_CREAT)) as folder:
            fd = self._open(path, name, flags | _FILE, folder)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Invalid(f"{path!r} is not a file", field="path")
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _walked(self, path: str, folders: list[str], *, make: bool = False) -> Iterator[int]:
        """The last of these folders, each opened in the one before: what happens to their names later is no matter."""
        fd = os.open(self._names[1], _DIRECTORY)
        try:
            for name in folders:
                if make and not _exists(name, fd):
                    os.mkdir(name, 0o777, dir_fd=fd)
                inner = self._open(path, name, _DIRECTORY, fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: str, name: str, flags: int, folder: int) -> int:
        try:
            return os.open(name, flags, 0o666, dir_fd=folder)
        except FileNotFoundError as missing:
            raise NotFound(f"There is no {path!r}.") from missing
        except OSError as refusal:
            raise Invalid(f"{path!r} cannot be opened: {refusal.strerror}", field="path") from refusal

    def _parts(self, path: str) -> list[str]:
        pure = PurePath(path)
        if "\0" in path or ".." in pure.parts:
            raise Invalid(f"{path!r} is not the path of a file", field="path")
        if not pure.is_absolute():
            return list(pure.parts)
        for known in self._names:
            if pure.is_relative_to(known):
                return list(pure.relative_to(known).parts)
        raise Invalid(f"{path!r} is outside the directory of this session", field="path")


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
