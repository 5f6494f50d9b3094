"""The API and its description agree, also at the borders of every field, for requests that differ each time."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from ..http import contract
from ..http.contract import Served

MANY = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)

described = schemathesis.openapi.from_dict(contract.document())


@pytest.fixture(scope="module")
def served(database_of_module: str) -> Iterator[Served]:
    with contract.served(database_of_module) as here:
        yield here


@described.parametrize()
@MANY
def test_every_answer_is_as_described_and_nothing_of_another_tenant(case: schemathesis.Case, served: Served) -> None:
    with served.tenant() as one, served.tenant() as other:
        served.judge(case, one, other)
