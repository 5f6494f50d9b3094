"""Every error that Rota raises on purpose, and what it means to the one who caused it.

RotaError
├── Refused            the caller can mend it
│   ├── Invalid        a value is wrong; names the field
│   ├── Unauthenticated
│   ├── Forbidden
│   ├── NotFound
│   ├── Conflict       right in itself, but not in the present state
│   ├── TooLarge
│   ├── TooSlow        the request did not arrive in time
│   ├── TooMany        too often; `retry_after` says in how many seconds to try again
│   └── Busy           no capacity at this moment; try again
├── Lost               another process won: stop quietly
└── Broken             ours, or the machine's
    ├── CannotStart    this process cannot begin its work; the message says what to change
    └── BrokeOff       this process cannot go on with its work, and starting it again may help
"""

from collections.abc import Mapping
from typing import Any


class RotaError(Exception):
    """The root. `code` is stable and part of the API; the message is for people."""

    code = "error"

    def __init__(self, message: str, /, *, code: str | None = None, field: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.field = field
        self.facts = facts


class Refused(RotaError):
    code = "refused"


class Invalid(Refused):
    code = "invalid"


class Unauthenticated(Refused):
    code = "unauthenticated"


class Forbidden(Refused):
    code = "forbidden"


class NotFound(Refused):
    code = "not_found"


class Conflict(Refused):
    code = "conflict"


class TooLarge(Refused):
    code = "too_large"


class TooSlow(Refused):
    code = "too_slow"


class TooMany(Refused):
    code = "too_many"


class Busy(Refused):
    code = "busy"


class Lost(RotaError):
    code = "lost"


class Broken(RotaError):
    code = "broken"


class CannotStart(Broken):
    code = "cannot_start"


class BrokeOff(Broken):
    code = "broke_off"


class NotYet(CannotStart):
    """What stands in the way ends by itself, so that a later start may succeed."""


class DatabaseAway(NotYet):
    """It may be there in a moment: it starts, restarts, or is not reached yet."""


STATUS: Mapping[type[RotaError], int] = {
    Refused: 400, Unauthenticated: 401, Forbidden: 403, NotFound: 404, TooSlow: 408, Conflict: 409, TooLarge: 413,
    Invalid: 422, TooMany: 429, Busy: 503,
}  # fmt: skip
"""Over HTTP, in both directions; whatever else is 500."""
