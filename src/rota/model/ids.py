"""Names for every kind of id, and UUIDv7: ordered by the time they were made, so that newest first is one index."""

import random
import threading
import time
from datetime import datetime
from typing import NewType
from uuid import UUID

WorkspaceId = NewType("WorkspaceId", UUID)
UserId = NewType("UserId", UUID)
TokenId = NewType("TokenId", UUID)
AccountId = NewType("AccountId", UUID)
GrantId = NewType("GrantId", UUID)
AgentId = NewType("AgentId", UUID)
AutomationId = NewType("AutomationId", UUID)
CredentialId = NewType("CredentialId", UUID)
TriggerId = NewType("TriggerId", UUID)
SessionId = NewType("SessionId", UUID)
RunId = NewType("RunId", UUID)
ApprovalId = NewType("ApprovalId", UUID)
TaskId = NewType("TaskId", UUID)
WorkerId = NewType("WorkerId", str)

_lock = threading.Lock()
_random = random.Random()  # nosec B311 # noqa: S311 — ids need not be secret, only different; the system seeds it
_last = 0


def new_id() -> UUID:
    """A UUIDv7 that is greater than every one this process made before.

    The 12 bits after the milliseconds hold their fraction, so ids of one process keep their order within a
    millisecond, also when the clock steps back.
    """
    global _last  # noqa: PLW0603
    nanoseconds = time.time_ns()
    tick = (nanoseconds // 1_000_000 << 12) | ((nanoseconds % 1_000_000) << 12) // 1_000_000
    with _lock:
        _last = tick = max(tick, _last + 1)
    return UUID(int=(tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | _random.getrandbits(62))


def id_at(moment: datetime) -> UUID:
    """The least id that can be made at this moment: what is older has a smaller one."""
    return UUID(int=max(int(moment.timestamp() * 1000), 0) << 80)


LAST_ID = UUID(int=2**128 - 1)  # where a list begins: every id is less


def as_uuid(ref: str) -> UUID | None:
    """A reference is an id or a slug; this is the id, if it is one."""
    try:
        return UUID(ref)
    except ValueError:
        return None
