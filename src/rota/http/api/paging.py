"""What every list takes: a limit and a cursor."""

from typing import Annotated

from fastapi import Query

Limit = Annotated[int, Query(ge=1, le=100, description="How many items a page holds")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before")]
Owner = Annotated[
    str | None,
    Query(
        min_length=1, max_length=320, description="`me`, or the id of a member; admins may also send an e-mail address"
    ),
]
DEFAULT_LIMIT = 50
