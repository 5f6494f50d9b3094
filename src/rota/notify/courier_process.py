"""Starts the process that loads Apprise: to send a message, or to learn which services there are."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from rota.model.outward import ALWAYS_KNOWN, WEB, unknown_service
from rota.notify.courier import SECONDS

log = logging.getLogger(__name__)

KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")

_schemes: frozenset[str] = frozenset()  # of this machine's Apprise, once it was asked


async def run_courier(given: Mapping[str, object], *arguments: str) -> dict[str, Any]:
    """What the process says. `error` if it does not come to an end."""
    # No proxies: they would look up names themselves. -P: nor is anything imported from where Rota was started.
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "rota.notify.courier", *arguments, env=environment,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS + 5):
            told, _ = await child.communicate(json.dumps(given).encode())
        answer: dict[str, Any] = json.loads(told)
        return answer
    except (TimeoutError, ValueError):
        late = child.returncode in {None, -14}
        return {"error": f"it did not end within {SECONDS} seconds" if late else "the sender broke"}
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def check_service(url: str, scheme: str) -> None:
    """Refuse a URL that Apprise has no service for. Apprise takes a second and 40 MB to load, so a process of its own
    is asked for all schemes, once. The address of a web page needs to be looked at each time."""
    global _schemes  # noqa: PLW0603 - one for each process, like the installed Apprise
    if scheme in ALWAYS_KNOWN or scheme in _schemes:
        return
    if _schemes and scheme not in WEB:
        raise unknown_service(scheme, _schemes)
    told = await run_courier({"url": url}, "examine")
    if "error" in told:  # a test will say so
        log.warning("notification.unexamined", extra={"error": told["error"]})
        return
    _schemes = frozenset(told["schemes"])
    if scheme not in _schemes and not (scheme in WEB and told["understood"]):
        raise unknown_service(scheme, _schemes)
