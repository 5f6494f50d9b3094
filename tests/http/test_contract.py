"""The API and its description agree: whatever is sent to any route, as two tenants, is answered as it says.

More requests, at the borders of every field, are sent by `make soak`.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from . import contract
from .contract import Served, Tenant

DOCUMENT = contract.document()
ROUTES = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]
FEW = settings(max_examples=4, suppress_health_check=list(HealthCheck))

described = schemathesis.openapi.from_dict(DOCUMENT)


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


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_answer_is_as_described_and_nothing_of_another_tenant(
    served: Served, other: Tenant, reader: Tenant, method: str, path: str
) -> None:
    requests = described[path][method].as_strategy

    @FEW
    @given(requests() | requests(GenerationMode.NEGATIVE))
    def judged(case: schemathesis.Case) -> None:
        served.judge(case, one, other)

    with nullcontext(reader) if method == "get" else served.tenant() as one:  # where nothing was changed before
        judged()
