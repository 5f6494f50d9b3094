"""For operators: is it alive, is it ready, and the figures."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rota.db.migrate import missing
from rota.http.context import Shared
from rota.http.errors import of_database
from rota.service import failing

router = APIRouter(tags=["public"])


@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> str:
    """The process lives."""
    return "ok\n"


@router.get("/readyz", responses={503: {"description": "Not ready, and why"}})
async def readyz(shared: Shared) -> JSONResponse:
    """The database answers, takes writes and has every migration, and no part of this process fails all the time."""
    try:
        async with shared.db.connection() as conn:
            lacking = await missing(conn)
            unwritable = await shared.db.write_health.failure(conn)
    except Exception as failure:  # whatever is wrong with the database, the answer is "not ready" and why
        return JSONResponse({"ready": False, "database": type(failure).__name__}, 503)
    failed = {"failing": names} if (names := failing()) else {}
    told = of_database(unwritable) if unwritable else {}
    reason = {name: told[name] for name in ("code", "detail") if name in told}
    ready = not lacking and not failed and not reason
    return JSONResponse({"ready": ready, "missing_migrations": lacking, **failed, **reason}, 200 if ready else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics() -> Response:
    """Prometheus."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
