"""The API and its description agree, also at the borders of every field, for requests that differ each time."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from ..http import contract
from ..http.contract import Served, Tenant

MANY = settings(settings.get_profile("anew"), max_examples=50, suppress_health_check=list(HealthCheck))

described = schemathesis.openapi.from_dict(contract.document())


@pytest.fixture(scope="module")
def served(database_of_module: str) -> Iterator[Served]:
    with contract.served(database_of_module) as here:
        yield here


@pytest.fixture(scope="module")
def other(served: Served) -> Iterator[Tenant]:
    with served.tenant() as one:
        yield one


@pytest.fixture(scope="module")
def reader(served: Served) -> Iterator[Tenant]:
    with served.tenant() as one:
        yield one


@described.parametrize()
@MANY
def test_every_answer_is_as_described_and_nothing_of_another_tenant(
    case: schemathesis.Case, served: Served, other: Tenant, reader: Tenant
) -> None:
    with nullcontext(reader) if case.method == "GET" else served.tenant() as one:  # where nothing was changed before
        served.judge(case, one, other)
