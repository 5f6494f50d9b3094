"""Pages of lists, and the cursors between them."""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel

from rota.errors import Invalid
from rota.model.memory import KEY

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = None


def cursor_of(value: object) -> str:
    return base64.urlsafe_b64encode(str(value).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> UUID | None:
    """Where a page goes on: the id of the last row shown, which no two rows share."""
    return None if cursor is None else _read_cursor(cursor, UUID)


def read_number_cursor(cursor: str | None, *, largest: int) -> int | None:
    """The same for rows that are numbered: the number of the last one shown."""

    def read(text: str) -> int:
        if not (text.isdigit() and len(text) <= 19 and int(text) <= largest):
            raise ValueError
        return int(text)

    return None if cursor is None else _read_cursor(cursor, read)


def read_text_cursor(cursor: str | None) -> str | None:
    """The same for rows that are told apart by a key."""

    def read(text: str) -> str:
        if not KEY.fullmatch(text):
            raise ValueError
        return text

    return None if cursor is None else _read_cursor(cursor, read)


def read_day_cursor(cursor: str | None) -> tuple[date, UUID] | None:
    """The same for what is counted by day: the last day and automation shown."""

    def read(text: str) -> tuple[date, UUID]:
        day, _, subject = text.partition("/")
        return date.fromisoformat(day), UUID(subject)

    return None if cursor is None else _read_cursor(cursor, read)


def _read_cursor(cursor: str, read: Callable[[str], T]) -> T:
    try:
        return read(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii"))
    except (ValueError, binascii.Error, UnicodeDecodeError):
        raise Invalid(
            "This cursor is none of ours; start again without it.", code="invalid_cursor", field="cursor"
        ) from None


def page_of(rows: Sequence[dict[str, Any]], limit: int, shape: type[T]) -> "Page[T]":
    """`rows` holds one more than `limit` if there is a next page."""
    items = [shape.model_validate(row) for row in rows[:limit]]  # type: ignore[attr-defined]
    return Page(items=items, next_cursor=cursor_of(rows[limit - 1]["id"]) if len(rows) > limit else None)
