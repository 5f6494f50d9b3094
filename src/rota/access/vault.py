"""Seals secrets with AES-256-GCM. What is sealed opens only in its own place, under a key of the ring."""

import hmac
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rota.access.key_ring import KeyRing, Keys, open_ring
from rota.errors import Broken

NONCE_BYTES = 12
MARKS = b"marks"  # so that what is made with a key of the ring is never of use for what it seals


class Vault:
    def __init__(self, ring: KeyRing | Keys) -> None:
        self._ring = ring if isinstance(ring, KeyRing) else KeyRing(ring)

    @property
    def newest(self) -> str:
        """The id of the key that seals. The ring is looked at anew: somebody may have turned it."""
        self._ring.refresh()
        return self._ring.newest

    @property
    def key_ids(self) -> list[str]:
        self._ring.refresh()
        return list(self._ring.keys)

    def seal(self, secret: str, place: str) -> bytes:
        """`place` names the row the secret belongs to; in another row it doesn't open."""
        nonce, key_id = os.urandom(NONCE_BYTES), self.newest
        box = AESGCM(self._ring.keys[key_id]).encrypt(nonce, secret.encode(), place.encode())
        return bytes([len(key_id)]) + key_id.encode() + nonce + box

    def unseal(self, sealed: bytes, place: str) -> str:
        size = sealed[0] if sealed else 0
        key_id, rest = sealed[1 : 1 + size].decode(errors="replace"), sealed[1 + size :]
        if key_id not in self._ring.keys:
            self._ring.refresh()
        if key_id not in self._ring.keys:
            raise Broken(
                f"The vault has no key {key_id!r}: give it the ring that sealed this secret.", code="vault_key_missing"
            )
        try:
            box = AESGCM(self._ring.keys[key_id])
            return box.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], place.encode()).decode()
        except (InvalidTag, ValueError):  # too short to have a nonce
            raise Broken("A sealed secret was changed or moved; it does not open.", code="vault_tampered") from None

    def marks(self, text: bytes) -> list[bytes]:
        """By which a text is known again and cannot be guessed at: one by each key of the ring, the newest first."""
        self._ring.refresh()
        return [hmac.digest(hmac.digest(key, MARKS, "sha256"), text, "sha256") for key in self._ring.keys.values()]


def open_vault(home: Path, keys: str = "", *, may_make: bool = True) -> Vault:
    """The vault of a home. Its ring is made at the first start, unless secrets are there that it could not open."""
    return Vault(open_ring(home, keys, may_make=may_make))
