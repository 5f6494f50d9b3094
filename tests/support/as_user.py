"""Run a command as an ordinary user who can reach this Python: `as_user.py UID COMMAND…`, as root.

Root's Python and checkout often lie below a directory that nobody else may enter. In a mount namespace of its own, such a
directory is covered by an open one that holds only what is needed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main(uid: int, command: list[str]) -> None:
    if sys.version_info >= (3, 12):
        os.unshare(os.CLONE_NEWNS)
    else:
        _unshare()
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for closed, needed in closed_directories().items():
        open_up(closed, needed)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.execv(command[0], command)


def _unshare() -> None:
    import ctypes

    new_mounts = 0x00020000
    assert ctypes.CDLL(None).unshare(new_mounts) == 0, "as_user.py needs root"


def closed_directories() -> dict[Path, set[Path]]:
    """The uppermost directories that others may not enter, each with what is needed below."""
    closed: dict[Path, set[Path]] = {}
    for needed in {Path(sys.base_prefix), Path(sys.prefix), Path(__file__).resolve().parents[2]}:
        for parent in reversed(needed.parents):
            if not parent.stat().st_mode & 0o001:
                closed.setdefault(parent, set()).add(needed)
                break
    return closed


def open_up(closed: Path, needed: set[Path]) -> None:
    aside = {each: tempfile.mkdtemp(prefix="rota-aside-") for each in needed}
    for each, held in aside.items():
        subprocess.run(["mount", "--rbind", str(each), held], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed)], check=True)
    for each, held in aside.items():
        each.mkdir(mode=0o755, parents=True)
        subprocess.run(["mount", "--move", held, str(each)], check=True)
        os.rmdir(held)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
