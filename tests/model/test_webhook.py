"""Standard Webhooks: the known vector, rotation, and everything that must be refused."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rota.errors import Unauthenticated
from rota.model.webhook import new_secret, sign, verify

VECTOR = json.loads((Path(__file__).parent.parent / "vectors" / "security.json").read_text())[
    "standard_webhooks_vector"
]
SENT = datetime.fromtimestamp(int(VECTOR["webhook-timestamp"]), UTC)


def check(secrets: list[str], **changes: object) -> str:
    given: dict[str, object] = {
        "message_id": VECTOR["webhook-id"],
        "timestamp": VECTOR["webhook-timestamp"],
        "signatures": VECTOR["webhook-signature"],
        "body": VECTOR["body"].encode(),
        "now": SENT,
    }
    return verify(secrets, **(given | changes))  # type: ignore[arg-type]


def test_the_known_vector_verifies_and_is_what_we_would_sign() -> None:
    assert check([VECTOR["secret"]]) == VECTOR["webhook-id"]
    signed = sign(VECTOR["secret"], VECTOR["webhook-id"], VECTOR["webhook-timestamp"], VECTOR["body"].encode())
    assert signed == VECTOR["webhook-signature"]


def test_any_of_several_secrets_and_any_of_several_signatures_will_do() -> None:
    others = [new_secret(bytes(24)), VECTOR["secret"]]
    assert check(others, signatures=f"v1,AAAA v2,zzz {VECTOR['webhook-signature']}")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"body": b'{"test": 2432232315}'}, "invalid_signature"),
        ({"message_id": "msg_other"}, "invalid_signature"),
        ({"message_id": None}, "missing_signature"),
        ({"message_id": "x" * 201}, "invalid_signature"),
        ({"signatures": ""}, "missing_signature"),
        ({"signatures": "v1,not base64!"}, "invalid_signature"),
        ({"signatures": "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, "invalid_signature"),
        ({"timestamp": "yesterday"}, "invalid_signature"),
        ({"timestamp": "-1614265330"}, "invalid_signature"),
        ({"timestamp": "9" * 400}, "invalid_signature"),
        ({"now": SENT + timedelta(minutes=5, seconds=1)}, "stale_webhook"),
        ({"now": SENT - timedelta(minutes=5, seconds=1)}, "stale_webhook"),
    ],
)
def test_anything_else_is_refused_with_its_code(changes: dict[str, object], code: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        check([VECTOR["secret"]], **changes)
    assert refused.value.code == code


def test_an_id_that_is_none_is_told_what_one_is() -> None:
    with pytest.raises(Unauthenticated, match="1 to 200 printable ASCII characters"):
        check([VECTOR["secret"]], message_id="x" * 201)


def test_a_webhook_without_a_secret_lets_nobody_in() -> None:
    with pytest.raises(Unauthenticated):
        check([])
