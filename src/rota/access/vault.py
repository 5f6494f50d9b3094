"""Seals secrets with AES-256-GCM. What is sealed opens only in its own place, under a key of the ring."""

import base64
import binascii
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rota.errors import Broken, CannotStart

KEY_BYTES, NONCE_BYTES = 32, 12
FILE = "vault.keys"


class Vault:
    """A ring of keys by id. The first seals; every one of them opens what it sealed."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._keys = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._newest = next(iter(keys))

    def seal(self, secret: str, place: str) -> bytes:
        """`place` names the row the secret belongs to; in another row it doesn't open."""
        nonce = os.urandom(NONCE_BYTES)
        key_id = self._newest.encode()
        return (
            bytes([len(key_id)])
            + key_id
            + nonce
            + self._keys[self._newest].encrypt(nonce, secret.encode(), place.encode())
        )

    def unseal(self, sealed: bytes, place: str) -> str:
        size = sealed[0]
        key_id, rest = sealed[1 : 1 + size].decode(), sealed[1 + size :]
        if key_id not in self._keys:
            raise Broken(
                f"The vault has no key {key_id!r}: give it the ring that sealed this secret.", code="vault_key_missing"
            )
        try:
            return self._keys[key_id].decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], place.encode()).decode()
        except InvalidTag:
            raise Broken("A sealed secret was changed or moved; it does not open.", code="vault_tampered") from None


def open_vault(home: Path, keys: str = "") -> Vault:
    """The ring from the settings, or from its file in the home, which is made at the first start."""
    return Vault(_read(keys, "ROTA_VAULT_KEYS") if keys else _from_file(home / FILE))


def _from_file(file: Path) -> dict[str, bytes]:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_name(f"{FILE}.{os.getpid()}")
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as new:
            new.write(f"k1:{base64.b64encode(os.urandom(KEY_BYTES)).decode()}\n")
        try:
            os.link(made, file)  # whoever is first makes it, whole; the others read it
        except FileExistsError:
            pass
        finally:
            made.unlink()
        return _read(file.read_text().strip().replace("\n", ","), str(file))
    except OSError as failure:
        raise CannotStart(f"Cannot keep the vault's keys in {file}: {failure.strerror}.", field="home") from None


def _read(text: str, source: str) -> dict[str, bytes]:
    ring = {}
    for each in text.split(","):
        key_id, _, key = each.strip().partition(":")
        try:
            ring[key_id] = base64.b64decode(key, validate=True)
        except binascii.Error:
            ring[key_id] = b""
        if not key_id or len(key_id) > 32 or len(ring[key_id]) != KEY_BYTES:
            raise CannotStart(f"{source} must hold keys like id:base64 of {KEY_BYTES} bytes, with commas between them.")
    return ring
