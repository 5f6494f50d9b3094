"""An agent that is called at a URL."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rota.errors import Invalid
from rota.model.address import SETTING, AllowList, Target, read_target
from rota.model.agent_config.headers import HEADER_NAME, read_header_value
from rota.model.config_fields import OUTPUT_LIMIT, Fields, open_secrets, otherwise, read_object, read_size, read_wait

CONNECT_TIMEOUT = timedelta(seconds=10)
# What says who is called, how the body is framed, or what Rota itself says about the attempt.
_OUR_HEADERS = re.compile(
    r"host|content-(length|type|encoding)|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|accept-encoding|idempotency-key|traceparent|(webhook|proxy)-.*"
)
_NOT_IN_HTTP = {
    "allow_private": f"an operator decides which private targets are called, by {SETTING}",
    "secret": "a secret does not belong here; give the agent a credential named ROTA_HTTP_SECRET",
}


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """`timeout` is for the connection; the others are the worker's own unless given. Header names are lower case."""

    target: Target
    headers: Mapping[str, str]
    timeout: timedelta
    header_timeout: timedelta | None
    idle_timeout: timedelta | None
    output_limit: int


def read_http(config: Mapping[str, Any]) -> HttpConfig:
    for name in read_object(config, "config"):
        if name in _NOT_IN_HTTP:
            raise Invalid(_NOT_IN_HTTP[name], field=f"config.{name}")
    fields = Fields(config, "url headers timeout header_timeout idle_timeout output_limit")
    return HttpConfig(
        target=read_target(config.get("url", ""), "config.url"),
        headers=fields.read("headers", _headers) or {},
        timeout=fields.read("timeout", read_wait) or CONNECT_TIMEOUT,
        header_timeout=fields.read("header_timeout", read_wait),
        idle_timeout=fields.read("idle_timeout", read_wait),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def check_http(config: Mapping[str, Any], allow: AllowList) -> list[str]:
    """Refuse a URL that every run would refuse before it resolves the name, and warn about secrets in headers."""
    read = read_http(config)
    if objection := allow.objection(read.target):
        raise Invalid(
            f"{read.target.authority} may not be called: {objection}. Use a public address on port 80 or 443, or ask "
            f"an operator to add this one to {SETTING}.",
            code="target_not_allowed",
            field="config.url",
        )
    return open_secrets(read.headers, "headers")


def _headers(value: object, at: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, text in read_object(value, at).items():
        headers[_header_name(name, at, headers)] = read_header_value(text, f"{at}.{name}")
    return headers


def _header_name(name: str, at: str, already: Mapping[str, str]) -> str:
    lower = name.lower()
    if not HEADER_NAME.fullmatch(name):
        raise Invalid(f"{name!r} is not the name of a header", field=at)
    if _OUR_HEADERS.fullmatch(lower):
        raise Invalid("this header is set by Rota", field=f"{at}.{name}")
    if lower in already:
        raise Invalid("this header is given twice", field=f"{at}.{name}")
    return lower
