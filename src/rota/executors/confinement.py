"""Confine one agent, from inside the fork server that starts it.

The fork server itself runs in a bubblewrap sandbox that hides Rota (`sandbox.py` builds its command line). It is root
in a user namespace of its own, which lets it do the part that differs for each run:

1. `enter_namespaces`: the launcher becomes process 1 of a new PID namespace, with its own mounts and IPC.
2. `mount_own_view`: a fresh `/proc` and `/dev/pts`, and of all session directories only the run's own.
3. `drop_privileges`: the agent enters one more user namespace, in which it has its usual user id and no capabilities.

Where bubblewrap does not work and Rota runs as root, only step 3 happens, as a change to an unprivileged user.

Like the launcher, this imports nothing of Rota and little else: it runs between fork and exec.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 8, 32, 4096
_MNT_DETACH = 2
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 24, 36, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522

# Files through which uid 0 changes the kernel without any capability.
_KERNEL_FILES = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")


class Confinement:
    """What the worker's `sandbox.py` asks for. `namespaces` is false for the fallback, a change of user only."""

    def __init__(self, *, namespaces: bool, uid: int, gid: int, sessions: str, all_sessions: str) -> None:
        self.namespaces, self.uid, self.gid = namespaces, uid, gid
        self.sessions = sessions  # where agents see their directory
        self.all_sessions = all_sessions  # where the fork server, and nobody else, sees those of all runs
        self._libc, self._last_capability = _load_libc(), _read_last_capability()

    @classmethod
    def parse(cls, text: str) -> Confinement | None:
        """Read the command-line argument of a fork server; empty means that its agents are not confined."""
        return cls(**json.loads(text)) if text else None

    def prepare_fork_server(self) -> None:
        """Let launchers, whose parent ends at once, become children of this process, which ignores how they end. Load
        what `os.execvpe` would import, because the user of the fallback may not be able to read this Python."""
        import warnings  # noqa: F401, PLC0415

        self._prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def enter_namespaces(self) -> int:
        """Fork into new namespaces. Returns 0 in process 1 of these, and its process id in the caller."""
        self._check(self._libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWIPC), "unshare")
        return os.fork()

    def mount_own_view(self, directory: bytes) -> None:
        """Mount what only this run may see. Nothing mounted here can be undone without CAP_SYS_ADMIN."""
        own = self._find_own(os.fsdecode(directory))
        source = os.open(own[0], os.O_PATH | os.O_DIRECTORY) if own else None
        self._mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        if self.uid == 0:
            for path in filter(os.path.exists, _KERNEL_FILES):
                self._mount(path, path, None, _MS_BIND)
                self._mount(None, path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        self._mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        self._mount("tmpfs", self.sessions, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
        if own and source is not None:
            os.makedirs(own[1])
            self._mount(f"/proc/self/fd/{source}", own[1], None, _MS_BIND)
            os.close(source)
        self._mount(None, self.sessions, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
        self._check(self._libc.umount2(os.fsencode(self.all_sessions), _MNT_DETACH), f"umount {self.all_sessions}")

    def drop_privileges(self) -> None:
        """Keep nothing but the user. Called in the agent's process, as the last step before its own code."""
        if self.namespaces:
            self._check(self._libc.unshare(_CLONE_NEWUSER), "unshare")
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{self.uid} 0 1")
            _write("/proc/self/gid_map", f"{self.gid} 0 1")
        self._drop_bounding_set()
        if not self.namespaces:
            os.setgroups([])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        self._prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        self._drop_capabilities()
        self._prctl(_PR_SET_NO_NEW_PRIVS, 1)
        self._prctl(_PR_SET_DUMPABLE, 1)  # cleared by the change of user; an agent may look at itself in /proc

    def _find_own(self, directory: str) -> tuple[str, str] | None:
        """Where the run's directory is now, and where it will be; None if it lies elsewhere and is visible anyway."""
        below = os.path.relpath(directory, self.sessions)
        if below.split(os.sep, 1)[0] in (os.curdir, os.pardir):
            return None
        return os.path.join(self.all_sessions, below), os.path.join(self.sessions, below)

    def _drop_bounding_set(self) -> None:
        for capability in range(self._last_capability + 1):
            self._prctl(_PR_CAPBSET_DROP, capability)

    def _drop_capabilities(self) -> None:
        """Empty the effective, permitted and inheritable sets."""
        import ctypes  # noqa: PLC0415 - loaded by the fork server

        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        self._check(self._libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")

    def _mount(self, source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
        import ctypes  # noqa: PLC0415

        texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
        done = self._libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
        self._check(done, f"mount {kind or 'bind'} on {target}")

    def _prctl(self, option: int, value: int) -> None:
        self._check(self._libc.prctl(option, value, 0, 0, 0), f"prctl {option}")

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            import ctypes  # noqa: PLC0415

            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")


def probe(confinement: Confinement) -> None:
    """Go through all steps once, and start Python. Raises OSError if something of that is not allowed here."""
    if confinement.namespaces:
        child = confinement.enter_namespaces()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            sys.exit(status)
        confinement.mount_own_view(os.fsencode(confinement.sessions))
    confinement.drop_privileges()
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", ""])  # nosec B606 # noqa: S606


def _load_libc() -> ctypes.CDLL:
    import ctypes  # noqa: PLC0415 - not everywhere, and not cheap

    return ctypes.CDLL(None, use_errno=True)


def _read_last_capability() -> int:
    with suppress(OSError, ValueError), open("/proc/sys/kernel/cap_last_cap") as file:
        return int(file.read())
    return 40


def _write(path: str, text: str) -> None:
    """In one call, and not through a buffered file, whose failure would be lost."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    try:
        asked = Confinement.parse(sys.argv[1])
        if asked:
            probe(asked)
    except OSError as failure:
        sys.exit(failure.strerror or str(failure))
