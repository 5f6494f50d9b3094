"""How far what was spent can be summed up for good."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

QUARTER, MOST = timedelta(minutes=15), timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def quarter(moment: datetime) -> datetime:
    """The quarter of an hour that holds it."""
    return moment - (moment - EPOCH) % QUARTER


def made_at(run_id: UUID) -> datetime:
    """When an id was made, which it begins with."""
    return EPOCH + timedelta(milliseconds=run_id.int >> 80)


def closed_until(until: datetime, now: datetime, oldest: UUID | None) -> datetime:
    """The end of what nobody adds to any more: not the newest quarters, and none in which a run lives; at most a day
    at once."""
    ends = [quarter(now - QUARTER), until + MOST]
    ends += [quarter(made_at(oldest))] if oldest else []
    return max(min(ends), until)
