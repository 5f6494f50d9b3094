"""The API and its description agree: whatever is sent to any route, as two tenants, is answered as it says.

More requests, at the borders of every field, are sent by `make soak`.
"""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from support.api_contract import Served, document, served  # noqa: F401 — a fixture

DOCUMENT = document()
ROUTES = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]
FEW = settings(max_examples=2, suppress_health_check=list(HealthCheck))

described = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_answer_is_as_described_and_nothing_of_another_tenant(
    served: Served,  # noqa: F811
    method: str,
    path: str,
) -> None:
    requests = described[path][method].as_strategy

    @FEW
    @given(requests() | requests(GenerationMode.NEGATIVE))
    def judged(case: schemathesis.Case[Any]) -> None:
        served.judge(case, one)

    with served.asker(method) as one:
        judged()
