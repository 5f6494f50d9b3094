"""A scheduler in a process of its own, with a clock that runs faster: `replica.py URL START FACTOR UNTIL`."""

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta

from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.scheduler.tick import Scheduler

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


async def main(url: str, start: float, factor: float, minutes: float) -> None:
    """From the instant START each second counts FACTOR seconds from noon on, for so many minutes of that clock."""

    def clock() -> datetime:
        return NOON + timedelta(seconds=(time.time() - start) * factor)

    db = Database(url, size=2)
    await db.open()
    scheduler = Scheduler(db, Wakes(db, Listener(url)), clock=clock)
    await asyncio.sleep(max(0.0, start - time.time()))
    while clock() < NOON + timedelta(minutes=minutes):
        pause = await scheduler.once()
        await asyncio.sleep(min(pause / factor, 0.2))
    await scheduler.once()
    await db.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *(float(each) for each in sys.argv[2:5])))
