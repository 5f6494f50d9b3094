"""The vault's keys: a ring by id, from the environment or from a file that may change while Rota runs."""

import base64
import binascii
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rota.errors import CannotStart, Conflict, Invalid

KEY_BYTES = 32
LONGEST_ID = 32
FILE = "vault.keys"

Keys = Mapping[str, bytes]
State = tuple[int, int, int]


class KeyRing:
    """The first key seals; every one of them opens what it sealed."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._file: Path | None = None
        self._seen: State | None = None

    @classmethod
    def of_file(cls, file: Path) -> "KeyRing":
        seen = _state(file)  # before it is read: a turn in between is noticed at the next look
        ring = cls(_from_file(file))
        ring._file, ring._seen = file, seen
        return ring

    @property
    def newest(self) -> str:
        return next(iter(self.keys))

    def refresh(self) -> bool:
        """Look whether somebody turned the ring. A file that cannot be read now leaves the keys as they are."""
        if self._file is None or (state := _state(self._file)) == self._seen or state is None:
            return False
        with suppress(OSError, CannotStart):
            self.keys, self._seen = _from_file(self._file), state
            return True
        return False


def from_text(text: str, source: str) -> Keys:
    """Keys like `id:base64`, with commas between them."""
    ring: dict[str, bytes] = {}
    for each in text.split(","):
        key_id, _, key = each.strip().partition(":")
        try:
            ring[key_id] = base64.b64decode(key, validate=True)
        except binascii.Error:
            ring[key_id] = b""
        if not key_id.isascii() or not 0 < len(key_id) <= LONGEST_ID or len(ring[key_id]) != KEY_BYTES:
            raise CannotStart(f"{source} must hold keys like id:base64 of {KEY_BYTES} bytes, with commas between them.")
    return ring


def open_ring(home: Path, given: str = "", *, may_make: bool = True) -> KeyRing:
    """The ring from the settings, or from its file in the home, which is made at the first start."""
    if given:
        return KeyRing(from_text(given, "ROTA_VAULT_KEYS"))
    file = home / FILE
    try:
        if may_make:
            _make(file)
        return KeyRing.of_file(file)
    except OSError as failure:
        raise CannotStart(f"Cannot keep the vault's keys in {file}: {failure.strerror}.", field="home") from None


def as_text(keys: Keys) -> str:
    """A line for each key, as in the file."""
    return "".join(f"{key_id}:{base64.b64encode(key).decode()}\n" for key_id, key in keys.items())


def refuse_other(home: Path, keys: Keys) -> None:
    """Raise if the home has other keys than these."""
    file = home / FILE
    if file.exists() and dict(_from_file(file)) != dict(keys):
        raise Conflict(
            f"{file} is there already, and holds other keys than the backup. Name a new home with --home.",
            code="not_empty",
        )


def put_back(home: Path, keys: Keys) -> bool:
    """Write the file as it was when it was backed up. False if it is there with the same keys."""
    file = home / FILE
    try:
        refuse_other(home, keys)
        if file.exists():
            return False
        made = _write(file, keys)
        try:
            os.link(made, file)
        finally:
            made.unlink()
        return True
    except OSError as failure:
        raise CannotStart(f"Cannot write the vault's keys to {file}: {failure.strerror}.", field="home") from None


def turn(home: Path) -> str:
    """Put a new key in front of those in the file; its id. Processes at work seal with it from now on."""
    with _rewriting(home / FILE) as keys:
        key_id, key = _new_key()
        before = dict(keys)
        keys.clear()
        keys.update({key_id: key, **before})
    return key_id


def forget(home: Path, key_id: str) -> None:
    """Take a key out of the file. Who calls has made sure that nothing is sealed with it."""
    with _rewriting(home / FILE) as keys:
        if key_id not in keys:
            raise Invalid(f"The ring has no key {key_id[:LONGEST_ID]!r}.", field="key")
        if len(keys) == 1:
            raise Invalid("This is the only key: `rota keys rotate` makes another.", field="key")
        del keys[key_id]


def _new_key() -> tuple[str, bytes]:
    """The id comes from the key, so that a ring made anew never passes for the one that was lost."""
    key = os.urandom(KEY_BYTES)
    return "k" + hashlib.sha256(b"id of " + key).hexdigest()[:8], key


def _make(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not file.exists():
        made = _write(file, dict([_new_key()]))
        try:
            os.link(made, file)  # whoever is first makes it, whole; the others read it
        except FileExistsError:
            pass
        finally:
            made.unlink()


def _write(file: Path, keys: Keys) -> Path:
    """Beside the file, for its owner only, and on the disk before anything is sealed with it. Under a name of its own:
    in containers that share a home every process has the same number."""
    made = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
        new.write(as_text(keys))
        new.flush()
        os.fsync(new.fileno())
    return made


@contextmanager
def _rewriting(file: Path) -> Iterator[dict[str, bytes]]:
    try:
        with os.fdopen(os.open(file.with_name(f"{file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = dict(_from_file(file))
            yield keys
            _write(file, keys).replace(file)
    except OSError as failure:
        raise CannotStart(f"Cannot change the vault's keys in {file}: {failure.strerror}.", field="home") from None


def _from_file(file: Path) -> Keys:
    return from_text(file.read_text().strip().replace("\n", ","), str(file))


def _state(file: Path | None) -> State | None:
    with suppress(OSError):
        found = file.stat() if file else None
        return (found.st_ino, found.st_mtime_ns, found.st_size) if found else None
    return None
