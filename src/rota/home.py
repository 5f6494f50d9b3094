"""Keeps the home private: only the user who runs Rota may enter it and read what Rota writes there."""

import fnmatch
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

OTHERS = 0o077  # all permissions of the group and of other users
PASS_THROUGH = 0o010  # the group may reach what it knows the name of, but not list the directory
# Held by a worker of root whose agents run as another user, because bubblewrap does not work (executors/sandbox.py).
# These users have to pass through the home and `sessions` to their directories.
AGENT_LOCK = "agents.{uid}.lock"
AGENTS_PASS = 0o001

# The names that Rota and its PostgreSQL use in the home. A private directory also protects everything below it.
OWN = (
    "up.lock",
    AGENT_LOCK.format(uid="*"),
    "vault.keys*",
    "sessions",
    "artifacts",
    "postgres",
    "postgres.*",
    "*.log",
    "*.log.*",
    "lost+found",
)


def create(home: Path) -> None:
    """Make the directory with mode 0700. An existing one is left as it is."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)


def tighten(home: Path, *, server_group: int | None = None) -> None:
    """Set the home to mode 0700 and remove the permissions of other users from Rota's files in it.

    With `server_group` the home gets mode 0710 and this group instead: PostgreSQL of root runs as another user and has
    to pass through the home. A home that this user cannot change, or that is not Rota's alone, is only warned about.
    """
    home = Path(os.path.realpath(home))
    agents = AGENTS_PASS if _agents_pass(home) else 0
    for name in _own_names(home):
        _restrict(home / name, keep=agents if name == "sessions" else 0)
    if not _is_shared(home):
        _restrict(home, keep=agents) if server_group is None else _let_group_pass(home, server_group, keep=agents)
    if problem := describe_exposure(home):
        log.warning("home.exposed", extra={"home": str(home), "error": problem})


def describe_exposure(home: Path) -> str | None:
    """Why other users can enter the home, and what to do; None if they cannot.

    A volume whose mode is not ours to change is not reported: Kubernetes mounts one for our containers alone.
    """
    try:
        found = home.stat()
    except OSError:  # it is not there, or closed to ourselves too
        return None
    mode = stat.S_IMODE(found.st_mode)
    unwanted = OTHERS & ~PASS_THROUGH if os.geteuid() == 0 else OTHERS
    if _agents_pass(home):
        unwanted &= ~AGENTS_PASS
    if not mode & unwanted or (os.geteuid() not in {0, found.st_uid} and os.path.ismount(home)):
        return None
    return f"Mode {mode:04o} lets other users into {home}. Give Rota a directory of its own, with mode 0700."


def _agents_pass(home: Path) -> bool:
    return os.geteuid() == 0 and any(fnmatch.fnmatch(name, AGENT_LOCK.format(uid="*")) for name in os.listdir(home))


def _own_names(home: Path) -> set[str]:
    return {name for name in os.listdir(home) if any(fnmatch.fnmatch(name, pattern) for pattern in OWN)}


def _is_shared(home: Path) -> bool:
    """Whether others need this directory, as they need /tmp or what root may name by mistake, such as /var/lib."""
    if home.stat().st_mode & stat.S_ISVTX or home.parent == home:
        return True
    return os.geteuid() == 0 and set(os.listdir(home)) != _own_names(home)


def _let_group_pass(home: Path, group: int, *, keep: int) -> None:
    try:
        os.chown(home, -1, group)
        home.chmod(0o700 | PASS_THROUGH | (home.stat().st_mode & keep))
    except OSError:
        _restrict(home, keep=keep)


def _restrict(path: Path, *, keep: int = 0) -> None:
    """Remove the permissions of other users, except for `keep`. Never through a link, since we may be root."""
    try:
        mode = path.lstat().st_mode
        if not mode & OTHERS & ~keep:
            return
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.fchmod(opened, stat.S_IMODE(mode) & (0o700 | keep))
        finally:
            os.close(opened)
    except OSError:
        return  # a link, removed meanwhile, or somebody else's: `describe_exposure` looks at the result
