"""Messages between the roles of a session: who gets one, and how large it may be."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rota.errors import Invalid, TooLarge
from rota.model.ids import RunId, SessionId, WorkspaceId

AGENT = "agent"  # who has no other role
USER = "user"
ALL = "all"
LARGEST_BODY = 524_288
ROLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message as it is about to be published. With a `key`, a repeat of it is the same message."""

    workspace_id: WorkspaceId
    session_id: SessionId
    body: Any
    to: str = ALL
    sender: str = USER
    run_id: RunId | None = None
    attempt: int | None = None
    key: str | None = None

    @property
    def scope_id(self) -> SessionId | RunId:
        """Whose keys these are."""
        return self.run_id or self.session_id

    def data(self) -> dict[str, Any]:
        return {"from": self.sender, "to": self.to, "body": self.body}

    def body_hash(self) -> bytes:
        return hashlib.sha256(orjson.dumps([self.session_id, self.data()], option=orjson.OPT_SORT_KEYS)).digest()


def check_size(body: Any) -> int:
    """How many bytes the body takes as JSON, if it is not too large for a message."""
    size = len(orjson.dumps(body))
    if size > LARGEST_BODY:
        raise TooLarge(
            f"The message has {size:,} bytes; {LARGEST_BODY:,} is the most. Save it as an artifact and send its id.",
            code="message_too_large",
            field="body",
            limit=LARGEST_BODY,
        )
    return size


def recipients(to: str, sender: str, seats: Sequence[str]) -> list[str]:
    """Who gets a message: one role, or all others. `seats` are the roles of those who work in the session."""
    present = [*seats, USER]
    if sender not in (*present, AGENT):
        raise Invalid(_unknown(sender, present), code="unknown_role", field="from")
    if to == ALL:
        return [role for role in present if role != sender]
    if to not in present:
        raise Invalid(f"{_unknown(to, present)} `all` reaches everybody.", code="unknown_role", field="to")
    return [to]


def check_role(role: str, seats: Sequence[str]) -> None:
    present = [*seats, USER]
    if role not in present:
        raise Invalid(_unknown(role, present), code="unknown_role", field="role")


def _unknown(role: str, present: Sequence[str]) -> str:
    return f"This session has no role {role[:80]!r}; it has {', '.join(present)}."
