"""The secrets of attempts: each claim offers as many as it may need, and what it did not use is offered again."""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LENGTH = 48


class Token(NamedTuple):
    secret: str
    hash: bytes  # as the run keeps it: whoever knows the secret is that attempt's agent


class Tokens:
    def __init__(self) -> None:
        self._spare: list[Token] = []

    def offer(self, count: int) -> Sequence[Token]:
        if (missing := count - len(self._spare)) > 0:
            self._spare += _new(missing)
        offered, self._spare = self._spare[:count], self._spare[count:]
        return offered

    def unused(self, tokens: Iterable[Token]) -> None:
        """Take these back. Of a claim whose answer was lost none come back: who knows what it wrote."""
        self._spare.extend(tokens)


def _new(count: int) -> list[Token]:
    """All from one call: each asks the kernel."""
    text = secrets.token_hex(LENGTH // 2 * count)
    pieces = (text[at : at + LENGTH] for at in range(0, len(text), LENGTH))
    return [Token(secret, hashlib.sha256(secret.encode()).digest()) for secret in pieces]
