"""Where a page of a list begins when no cursor says so.

Every list is read as `id < %(before)s ORDER BY id DESC LIMIT %(limit)s`, also its first page, where `before` is greater
than every id. It is never NULL: under row-level security `id < coalesce(%(before)s, …)` would be a filter instead of an
index condition, and a page would read all rows that are newer than its cursor.
"""

from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

T = TypeVar("T", UUID, int, datetime)

LARGEST_ID = UUID(int=2**128 - 1)
LARGEST_REVISION = 2**31 - 1
LARGEST_SEQ = 2**63 - 1
LATEST_TIME = datetime.max.replace(tzinfo=UTC)


def or_end(cursor: T | None, end_of_list: T) -> T:
    """The cursor, or for the first page the end of the list from which it is read."""
    return end_of_list if cursor is None else cursor
