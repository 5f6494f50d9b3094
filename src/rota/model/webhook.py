"""Standard Webhooks signatures: id, timestamp and body, HMAC-SHA256, several secrets while rotating. Pure."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from datetime import datetime, timedelta

from rota.errors import Unauthenticated

PREFIX = "whsec_"
TOLERANCE = timedelta(minutes=5)
LONGEST_ID = 200


def new_secret(random: bytes) -> str:
    return PREFIX + base64.b64encode(random).decode()


def sign(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """The signature as it stands in the header, with its version."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    digest = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify(
    secrets: Iterable[str],
    *,
    message_id: str | None,
    timestamp: str | None,
    signatures: str | None,
    body: bytes,
    now: datetime,
) -> str:
    """The message's id, once it is proved that a holder of one of the secrets sent it just now."""
    if not message_id or not timestamp or not signatures:
        raise _refuse("Send the headers webhook-id, webhook-timestamp and webhook-signature.", "missing_signature")
    if len(message_id) > LONGEST_ID or not message_id.isprintable() or not message_id.isascii():
        told = f"A webhook-id has 1 to {LONGEST_ID} printable ASCII characters."
        raise _refuse(told, "invalid_signature", "webhook-id")
    _check_time(timestamp, now)
    given = [each for each in signatures.split(" ")[:20] if each.startswith("v1,")]
    expected = [sign(secret, message_id, timestamp, body) for secret in secrets]
    if not any(_equal(one, other) for one in expected for other in given):
        raise _refuse("The signature does not match the body.", "invalid_signature", "webhook-signature")
    return message_id


def _check_time(timestamp: str, now: datetime) -> None:
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise _refuse("The webhook-timestamp must be seconds since 1970.", "invalid_signature", "webhook-timestamp")
    if abs(now.timestamp() - int(timestamp)) > TOLERANCE.total_seconds():
        raise _refuse("The webhook-timestamp is over five minutes off: a replay?", "stale_webhook", "webhook-timestamp")


def _equal(one: str, other: str) -> bool:
    try:
        return hmac.compare_digest(base64.b64decode(one[3:]), base64.b64decode(other[3:], validate=True))
    except (binascii.Error, ValueError):
        return False


def _refuse(message: str, code: str, field: str | None = None) -> Unauthenticated:
    return Unauthenticated(message, code=code, field=field)
