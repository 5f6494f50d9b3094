"""The API and its description agree, also at the borders of every field, for requests that differ each time."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from support.api_contract import Served, document, served  # noqa: F401 — a fixture

MANY = settings(settings.get_profile("anew"), max_examples=50, suppress_health_check=list(HealthCheck))

described = schemathesis.openapi.from_dict(document())


@described.parametrize()
@MANY
@pytest.mark.timeout(1200)  # each of fifty requests moves in anew
def test_every_answer_is_as_described_and_nothing_of_another_tenant(
    case: schemathesis.Case[Any],
    served: Served,  # noqa: F811
) -> None:
    with served.asker(case.method) as one:
        served.judge(case, one)
