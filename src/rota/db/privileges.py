"""Becomes an unprivileged user and then another program, since PostgreSQL refuses to be started by root."""

import ctypes
import os
import sys

DAC_OVERRIDE, DAC_READ_SEARCH, SETPCAP = 1, 2, 8
SET_KEEPCAPS, GET_SECUREBITS, SET_SECUREBITS, CAP_AMBIENT, AMBIENT_RAISE = 8, 27, 28, 47, 2
NO_SETUID_FIXUP = 1 << 2
CAPABILITY_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def command(uid: int, gid: int, *, needed: list[str], program: list[str]) -> list[str]:
    """The command by which root starts `program` as that user, who needs to reach the `needed` paths.

    A program of its own, because Python code between fork and exec (preexec_fn) may deadlock beside threads.
    Without a `program` it only tries whether the paths can be reached.
    """
    return [sys.executable, "-I", "-S", __file__, str(uid), str(gid), *needed, "--", *program]


def become(uid: int, gid: int) -> None:
    if sys.platform == "linux":
        _prctl(SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def open_the_way(needed: list[str]) -> bool:
    """Keep one capability, the smallest that does, if this user cannot reach these paths without any."""
    if _reaches(needed):
        return True
    if sys.platform != "linux":
        return False
    for capability in (DAC_READ_SEARCH, DAC_OVERRIDE):
        if _would_do(capability, needed):
            _keep(capability)
            return True
    return False


def blocked_at(needed: list[str]) -> str:
    """The first directory on the way that this user may not enter."""
    path = next(path for path in needed if not _reaches([path]))
    parts = path.split("/")
    ways = ["/".join(parts[:count]) or "/" for count in range(1, len(parts) + 1)]
    return next(way for way in ways if not _reaches([way]))


def _reaches(paths: list[str]) -> bool:
    return all(os.access(path, os.X_OK, effective_ids=True) for path in paths)


def _would_do(capability: int, needed: list[str]) -> bool:
    bit, permitted = 1 << capability, _permitted()
    if not permitted & bit:
        return False
    _set_capabilities(_Sets(effective=bit, permitted=permitted, inheritable=0))
    enough = _reaches(needed)
    _set_capabilities(_Sets(effective=0, permitted=permitted, inheritable=0))
    return enough


def _keep(capability: int) -> None:
    bit = 1 << capability
    _let_it_count_for_access()
    _set_capabilities(_Sets(effective=bit, permitted=bit, inheritable=bit))
    _prctl(CAP_AMBIENT, AMBIENT_RAISE, capability)


def _let_it_count_for_access() -> None:
    """Else access() forgets them for anybody but root, and by access() initdb looks for postgres."""
    permitted, setpcap = _permitted(), 1 << SETPCAP
    if permitted & setpcap:
        _set_capabilities(_Sets(effective=setpcap, permitted=permitted, inheritable=0))
        _prctl(SET_SECUREBITS, _libc.prctl(GET_SECUREBITS, 0, 0, 0, 0) | NO_SETUID_FIXUP)


def _permitted() -> int:
    sets = (_Sets * 2)()
    _checked(_libc.capget(ctypes.byref(_Header(CAPABILITY_VERSION_3, 0)), sets))
    return int(sets[0].permitted)


def _set_capabilities(low: _Sets) -> None:
    # Capabilities from 32 on live in the second word; none of them is wanted.
    _checked(_libc.capset(ctypes.byref(_Header(CAPABILITY_VERSION_3, 0)), (_Sets * 2)(low, _Sets())))


def _prctl(option: int, *values: int) -> None:
    padded = [*values, 0, 0, 0, 0][:4]
    _checked(_libc.prctl(option, *(ctypes.c_ulong(value) for value in padded)))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(uid: str, gid: str, *rest: str) -> None:
    border = rest.index("--")
    needed, program = list(rest[:border]), list(rest[border + 1 :])
    try:
        become(int(uid), int(gid))
        open_way = open_the_way(needed)
    except OSError as error:
        sys.exit(f"the system does not allow it ({error.strerror})")
    if not open_way:
        sys.exit(f"it may not enter {blocked_at(needed)}")
    if program:
        os.execv(program[0], program)  # nosec B606 # noqa: S606 - to become this program is the purpose


_libc = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
