"""Credentials: what they may be called and hold, and how agents and automations name them."""

import re
from collections.abc import Mapping
from typing import Any

from rota.errors import Invalid
from rota.model.config_fields import env_name
from rota.model.ids import as_uuid
from rota.model.redaction import MASK, SHORTEST

LONGEST = 32_768
MOST_USES = 50
HTTP_SECRET = "ROTA_HTTP_SECRET"  # noqa: S105 - the name of one

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(
            "A credential's name has 1 to 63 small letters, digits, dots, hyphens and underscores,"
            " and begins with a letter or a digit.",
            code="invalid_name",
            field="name",
        )
    if as_uuid(name):  # addresses take either
        raise Invalid("This name looks like an id; use one that does not.", code="invalid_name", field="name")
    return name


def checked_value(value: str) -> str:
    """What can be given to a program, and found again in what it says. No refusal repeats any of it."""
    if len(value.strip()) < SHORTEST:
        raise _unfit(f"must have at least {SHORTEST} characters: a shorter one could not be told from ordinary words")
    if len(value.encode(errors="replace")) > LONGEST:
        raise _unfit(f"must have at most {LONGEST:,} bytes")
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise _unfit("holds a character that no program can be given")
    if value.strip() in MASK:
        raise _unfit("is a part of what stands where secrets were taken out")
    return value


def _unfit(reason: str) -> Invalid:
    return Invalid(f"The value {reason}.", code="invalid_value", field="value")


def check_http_secret(executor: str, uses: Mapping[str, Any]) -> None:
    """Rota signs with it what it posts to an agent of kind `http`; no other kind knows what to do with it."""
    if HTTP_SECRET in uses and executor != "http":
        raise Invalid("Only agents of the kind http have it.", field=f"credentials.{HTTP_SECRET}")


def checked_uses(uses: Mapping[str, Any]) -> dict[str, str]:
    """Names of variables, each with the name of a credential."""
    if len(uses) > MOST_USES:
        raise Invalid(f"At most {MOST_USES} credentials can be given.", field="credentials")
    for variable, name in uses.items():
        if variable != HTTP_SECRET:
            env_name(variable, "credentials")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Invalid(
                "Give the name of a credential, never its value.", code="invalid_name", field=f"credentials.{variable}"
            )
    return dict(uses)
