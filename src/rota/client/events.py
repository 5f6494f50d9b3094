"""Server-sent events, out of the pieces in which they arrive."""

import json
from collections.abc import Iterator
from typing import Any


class Events:
    """Holds back what is not whole: a broken connection leaves no half event behind."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
        for block in whole:
            data = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
            if data:
                yield json.loads(b"\n".join(data))
