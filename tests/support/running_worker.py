"""A worker of this process, at work until its block ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from rota.db.listener import Listener
from rota.service import Loop
from rota.trace.record import Recorder
from rota.worker.worker import Worker


@asynccontextmanager
async def at_work(worker: Worker, recorder: Recorder, listener: Listener) -> AsyncIterator[Loop]:
    loop = Loop(worker)
    tasks = [asyncio.create_task(each) for each in (recorder.run(), loop.run())]
    worker.listen(listener, loop)
    try:
        yield loop
    finally:
        loop.stop()
        await worker.drain(timedelta(seconds=0.01), asyncio.Event())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
