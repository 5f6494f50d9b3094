"""Pages for people."""

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from rota.http.errors import answer


def install(app: FastAPI) -> None:
    pass


async def problem_page(request: Request, told: dict[str, Any]) -> Response:
    return answer(told)
