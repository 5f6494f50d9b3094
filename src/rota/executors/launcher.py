"""Stands between a worker and a program: starts it, and takes down all that it started when either ends.

Runs as a process of its own (`python -I -S launcher.py`), so it imports little, and nothing of Rota. That process is
the nursery: it forks a launcher whenever the worker sends it descriptors, and ends with the worker. To a launcher the
worker sends what to run, then `T` (stop) or `K` (stop at once); the worker's own end is a `T` too. Answers are lines:
`launcher PID`, `started PID`, then one of `exited CODE`, `killed SIGNAL`, `refused REASON` and `short REASON` (of
something that there may be more of a little later), perhaps `left PIDS`.

A nursery that has the libraries of Python agents loaded (`python_nursery.py`) is this one with another way to begin.

In a sandbox each launcher is process 1 of a PID namespace: when it ends, the kernel kills whatever its program left.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # as typing has it, which takes as long to import as all the above
if TYPE_CHECKING or __package__:
    from rota.executors.confinement import Confinement
else:  # run as a script: Rota is not on the path
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from confinement import Confinement

    sys.path.pop()
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn

    Begin = Callable[[dict[str, Any], Sequence[int]], NoReturn]

PATIENCE = 10.0
STOP, AT_ONCE = b"T", b"K"
READY = b"R"  # what a nursery says that has to load something first
UNDER_TREE = sys.platform == "linux"  # elsewhere only the process group can be found
OOM_VICTIM = "500"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# ENOSPC and EUSERS: the machine has no further namespace to give.
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.ENOSPC, errno.EUSERS)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


# What the worker asks the nursery for: how many sockets the program is given besides, and their numbers there. The
# descriptors come with it: standard input, output and error, the launcher's line to the worker, and those sockets.
REQUEST = struct.Struct("!B4i")
MOST_SHARED, STANDARD = 4, 3


def execute(spec: dict[str, Any], _ours: Sequence[int]) -> NoReturn:
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # nosec B606 # noqa: S606


def nurse(
    line: socket.socket,
    begin: Begin = execute,
    *,
    patience: float | None = None,
    confinement: Confinement | None = None,
) -> None:
    """Fork a launcher for each request, until the worker is gone, or has asked for none for as long as `patience`.

    `begin` is how a program begins, in its own process; it is told the descriptors that are not the program's."""
    # Whoever stops the whole service signals launchers too; only the worker decides when an agent ends.
    # Blocked and not ignored: one that is sent between fork and exec must not be lost to the program.
    signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_US)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a launcher ended
    line.set_inheritable(False)
    if UNDER_TREE:
        import ctypes  # noqa: F401, PLC0415 - so that no launcher has to
    if confinement:
        confinement.prepare_fork_server()
    gc.collect()
    gc.freeze()  # what all launchers share stays shared
    line.settimeout(patience)
    while (request := receive(line)) is not None:
        fds, numbers = request
        if len(fds) == STANDARD + 1 + len(numbers):  # fewer if this process may not have as many open
            fork_launcher(line, fds, numbers, begin, confinement)
        for fd in fds:
            os.close(fd)


def receive(line: socket.socket) -> tuple[list[int], Sequence[int]] | None:
    try:
        message, fds, _, _ = socket.recv_fds(line, REQUEST.size, STANDARD + 1 + MOST_SHARED)
    except TimeoutError:
        line.shutdown(socket.SHUT_RD)  # who asks now is refused; who did a moment ago is still served
        return receive(line)
    if len(message) < REQUEST.size:  # a request is sent in one piece: the worker is gone
        return None
    count, *numbers = REQUEST.unpack(message)
    return fds, numbers[:count]


def fork_launcher(
    line: socket.socket, fds: list[int], numbers: Sequence[int], begin: Begin, confinement: Confinement | None
) -> None:
    try:
        launcher = os.fork()
    except OSError as failure:
        refuse(fds[STANDARD], failure)
        return
    if launcher == 0:
        try:
            line.close()
            os.setsid()
            control = arrange(fds, numbers)
            if confinement and confinement.namespaces:
                fork_into_namespaces(control, confinement)
            else:
                tell(control, f"launcher {os.getpid()}")
            launch(control, numbers, begin, confinement)
        finally:
            os._exit(0)  # there is nothing to tidy up, and the worker waits


def fork_into_namespaces(control: int, confinement: Confinement) -> None:
    """Return in process 1 of new namespaces only. The worker is told the process id that it can use itself."""
    try:
        launcher = confinement.enter_namespaces()
    except OSError as failure:
        refuse(control, failure)
        os._exit(0)
    if launcher:
        tell(control, f"launcher {launcher}")
        os._exit(0)


def arrange(fds: list[int], numbers: Sequence[int]) -> int:
    """Put what came under the numbers it is to have; the line to the worker."""
    above = max((STANDARD, *fds, *numbers)) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds]
    for fd in fds:
        os.close(fd)
    control = moved.pop(STANDARD)
    for fd, number in zip(moved, (*range(STANDARD), *numbers), strict=True):
        os.dup2(fd, number)
        os.close(fd)
    return control


def launch(control: int, shared: Sequence[int], begin: Begin, confinement: Confinement | None) -> None:
    adopt_orphans()
    wake, waker = watch_children()
    spec = read_spec(control)
    if spec is not None:
        try:
            if confinement and confinement.namespaces:
                confinement.mount_own_view(spec["directory"])
            program = start(spec, control, begin, (control, wake, waker), confinement)
        except OSError as failure:
            refuse(control, failure)
            return
        let_go(shared)
        Launcher(control, wake, program, spec["grace"]).run()


def read_spec(control: int) -> dict[str, Any] | None:
    length = read_exactly(control, 4)
    spec = read_exactly(control, int.from_bytes(length, "big")) if length else None
    return marshal.loads(spec) if spec else None  # nosec B302 # noqa: S302 - from the worker, which runs the same Python


def read_exactly(fd: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


def start(
    spec: dict[str, Any], control: int, begin: Begin, ours: Sequence[int], confinement: Confinement | None
) -> int:
    launcher = os.getpid()
    program = os.fork()
    if program == 0:
        become(spec, control, launcher, lambda: begin(spec, ours), confinement)
    with suppress(OSError):
        os.setpgid(program, program)  # in both processes: neither may go on before it is so
    return program


def become(
    spec: dict[str, Any], control: int, launcher: int, begin: Callable[[], NoReturn], confinement: Confinement | None
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        tell(control, f"started {os.getpid()}")  # here, so that the worker knows before the program can do harm
        restore_signals()
        die_with(launcher)
        apply_limits(spec["limits"])
        os.chdir(spec["directory"])
        if confinement:
            confinement.drop_privileges()
        begin()
    except BaseException as failure:  # this process is a copy: nothing may unwind into the launcher
        refuse(control, failure)
    finally:
        os._exit(127)


def restore_signals() -> None:
    for number in (*_IGNORED_BY_PYTHON, *_NOT_FOR_US):  # a shell ignores some for what it starts in the background
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def apply_limits(limits: list[tuple[int, int, int]]) -> None:
    """Set each kind's soft and hard limit, or the highest that this process may set."""
    for kind, soft, hard in limits:
        highest = resource.getrlimit(kind)[1]
        highest = hard if highest == resource.RLIM_INFINITY else min(hard, highest)
        resource.setrlimit(kind, (min(soft, highest), highest))


def adopt_orphans() -> None:
    if UNDER_TREE:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(launcher: int) -> None:
    """Should somebody kill the launcher, the program goes too. When memory is short it goes before Rota."""
    if not UNDER_TREE:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(127)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(OOM_VICTIM)


def prctl(option: int, value: int) -> None:
    import ctypes  # noqa: PLC0415 - not everywhere, and not cheap

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def let_go(shared: Sequence[int]) -> None:
    """Give up what the program was given, so that the worker sees the end of it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    for fd in shared:
        os.close(fd)


def watch_children() -> tuple[int, int]:
    """A descriptor that becomes readable when a child has ended, and the one that is written to then."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader, writer


class Launcher:
    """One program and its descendants, until none is left."""

    def __init__(self, control: int, wake: int, program: int, grace: float) -> None:
        self.control, self.wake, self.program, self.grace = control, wake, program, grace
        self.ended = self.told = self.hurry = self.gone = False
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.poll.register(wake, select.POLLIN)

    def run(self) -> None:
        while not (self.ended or self.told):
            self.wait(None)
        if not self.gone:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # a stopped process hears nothing else
        self.wait_until_gone(self.grace)
        self.kill()

    def wait_until_gone(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not (self.gone or self.hurry) and (left := deadline - time.monotonic()) > 0:
            self.wait(left)

    def kill(self) -> None:
        """Again and again, since some fork while we look; not for ever, since root's are not ours to kill."""
        deadline = time.monotonic() + PATIENCE
        while not self.gone:
            if time.monotonic() > deadline:
                tell(self.control, f"left {' '.join(str(pid) for pid, _ in descendants(os.getpid()))}")
                return
            self.signal(signal.SIGKILL)
            self.wait(0.01)

    def wait(self, seconds: float | None) -> None:
        """Until a child ends or the worker speaks."""
        events = dict(self.poll.poll(None if seconds is None else max(1, int(seconds * 1000))))
        if self.wake in events:
            os.read(self.wake, 4096)
        if self.control in events:
            self.listen()
        self.reap()

    def listen(self) -> None:
        try:
            said = os.read(self.control, 64)
        except ConnectionResetError:
            said = b""
        self.told = True
        self.hurry = self.hurry or AT_ONCE in said
        if not said:
            self.poll.unregister(self.control)

    def reap(self) -> None:
        """Orphans come to us, so having no children means that nothing is left."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.program:
                    self.report(ended[1])
        except ChildProcessError:
            self.gone = UNDER_TREE or not self.group_lives()

    def report(self, status: int) -> None:
        self.ended = True
        code = os.waitstatus_to_exitcode(status)
        tell(self.control, f"killed {-code}" if code < 0 else f"exited {code}")

    def signal(self, number: int) -> None:
        """The group at one stroke, then those that left it: nobody hears a signal twice."""
        send(os.killpg, self.program, number)
        for pid, group in descendants(os.getpid()):
            if group != self.program:
                send(os.kill, pid, number)

    def group_lives(self) -> bool:
        try:
            os.killpg(self.program, 0)
        except ProcessLookupError:
            return False
        return True


def send(how: Callable[[int, int], None], whom: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        how(whom, number)


def descendants(root: int) -> Iterator[tuple[int, int]]:
    """Process and group of everything below `root`, found through /proc."""
    children: dict[int, list[tuple[int, int]]] = {}
    for pid, parent, group in processes():
        children.setdefault(parent, []).append((pid, group))
    found = list(children.get(root, ()))
    for child in found:  # grows while we walk
        found += children.get(child[0], ())
    yield from found


def processes() -> Iterator[tuple[int, int, int]]:
    """Process, parent and group of all that runs here, the newest first, since those may not live long."""
    try:
        names = os.listdir("/proc") if UNDER_TREE else []
    except OSError:
        return
    for pid in sorted((int(name) for name in names if name.isdigit()), reverse=True):
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                _state, parent, group = stat.read().rpartition(b")")[2].split(maxsplit=3)[:3]
        except OSError:
            continue
        yield pid, int(parent), int(group)


def refuse(control: int, failure: BaseException) -> None:
    word = "short" if getattr(failure, "errno", None) in _PASSING else "refused"
    tell(control, f"{word} {getattr(failure, 'strerror', None) or failure}")


def tell(control: int, line: str) -> None:
    with suppress(OSError):  # when the worker is gone, nobody wants to know
        os.write(control, line.replace("\n", " ").encode(errors="replace") + b"\n")


if __name__ == "__main__":
    nurse(socket.socket(fileno=int(sys.argv[1])), confinement=Confinement.parse("".join(sys.argv[2:3])))
