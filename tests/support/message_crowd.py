"""Publishers and subscribers of one session, each a process of its own, that reach Rota through its client.

publish: so many messages, several at a time, each with a key that the client makes.
follow:  reads "after N" and writes down what it sees. work: reads what is unacknowledged, writes it down, acknowledges.
Both end with the message "the end".
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

from rota.client import AsyncClient

AT_A_TIME = 16
PATIENCE = 90.0
END = "the end"


async def publish(client: AsyncClient, session: str, name: str, count: str) -> None:
    numbers = iter(range(int(count)))

    async def one_after_the_other() -> None:
        for number in numbers:
            await client.publish(session, f"{name} {number}", to="agent")

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_A_TIME)))


async def follow(client: AsyncClient, session: str, file: str) -> None:
    after = 0
    with open(file, "w") as out:  # noqa: ASYNC230 — nobody else runs here
        while True:
            for each in await client.messages(session, after=after, wait=20):
                after = each["id"]
                tell(out, "seen", each)
                if each["body"] == END:
                    return


async def work(client: AsyncClient, session: str, file: str) -> None:
    with open(file, "w") as out:  # noqa: ASYNC230 — nobody else runs here
        while True:
            page = await client.messages(session, role="agent", unacked=True, wait=20)
            for each in page:
                tell(out, "seen", each)
            await asyncio.gather(*(client.ack(session, each["id"], role="agent") for each in page))
            for each in page:
                tell(out, "acked", each)
            if any(each["body"] == END for each in page):
                return


def tell(out: TextIO, what: str, message: dict[str, Any]) -> None:
    out.write(json.dumps([what, message["id"], message["body"]]) + "\n")
    out.flush()


async def main(what: str, url: str, token: str, *given: str) -> None:
    async with AsyncClient(url, token=token, patience=PATIENCE) as client:
        parts: dict[str, Callable[..., Awaitable[None]]] = {"publish": publish, "follow": follow, "work": work}
        await parts[what](client, *given)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
