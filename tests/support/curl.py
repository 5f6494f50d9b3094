"""Shell commands of the documentation, read and carried out as curl would, without needing curl."""

import re
import shlex
from collections.abc import Iterator, Mapping

from httpx import AsyncClient, Response


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command. A quotation may go on over several lines."""
    held = ""
    for line in block.splitlines():
        held = f"{held}\n{line}" if held else line
        try:
            words = shlex.split(held, comments=True)
        except ValueError:
            continue
        held = ""
        if words:
            yield words


def filled(word: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: variables[name[1]], word)


async def curl(client: AsyncClient, arguments: list[str], variables: Mapping[str, str]) -> Response:
    """Like curl, it calls data a form unless it is told otherwise."""
    url, method, data = "", "", None
    headers: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        match word:
            case "-s" | "-N" | "-sN":
                pass
            case "-X":
                method = next(rest)
            case "-d":
                data = next(rest)
                headers.setdefault("content-type", "application/x-www-form-urlencoded")
            case "--json":
                data = next(rest)
                headers.setdefault("content-type", "application/json")
            case "-H":
                name, _, value = filled(next(rest), variables).partition(": ")
                headers[name.lower()] = value
            case _:
                assert not word.startswith("-"), f"curl {word} is not known here"
                url = filled(word, variables)
    return await client.request(method or ("GET" if data is None else "POST"), url, content=data, headers=headers)
