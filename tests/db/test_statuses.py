"""What belongs to each status of a run, as the table judges it."""

from enum import StrEnum

import psycopg

from rota.model.outcome import ErrorClass
from rota.model.run import TERMINAL, SkipReason, Source, Status
from support.run_state import find_checks


def words(known: type[StrEnum] | frozenset[Status]) -> str:
    return ", ".join(f"'{each}'" for each in known)


# One by one, as one would say it. The table has them folded together, since every claim and every end reads them all.
RULES = (
    f"status IN ({words(Status)})",
    f"source IN ({words(Source)})",
    f"skip_reason IN ({words(SkipReason)})",
    f"error_class IN ({words(ErrorClass)})",
    f"(status IN ({words(TERMINAL)})) = (finished_at IS NOT NULL)",
    "(status = 'skipped') = (skip_reason IS NOT NULL)",
    "(status IN ('failed', 'cancelled')) = (error_class IS NOT NULL)",
    "(status = 'cancelled') = (error_class IN ('cancelled_by_user', 'replaced'))",
    "status <> 'running' OR (worker_id IS NOT NULL AND lease_until IS NOT NULL AND attempt > 0)",
    "status = 'skipped' OR session_id IS NOT NULL",
)

RUNS = f"""
CREATE TEMPORARY TABLE every_run AS
SELECT *
  FROM unnest(ARRAY[{words(Status)}, 'odd']) status, unnest(ARRAY[NULL, now()]) finished_at,
       unnest(ARRAY[NULL, {words(SkipReason)}, 'odd']) skip_reason, unnest(ARRAY[NULL, {words(ErrorClass)}, 'odd']) error_class,
       unnest(ARRAY[NULL, gen_random_uuid()]) session_id,
       (VALUES (NULL, now(), 1), ('w', NULL, 1), ('w', now(), 0), ('w', now(), 1)) held(worker_id, lease_until, attempt),
       unnest(ARRAY[{words(Source)}, 'odd']) source
"""


def all_of(rules: tuple[str, ...]) -> str:
    """As PostgreSQL takes constraints: what is not false holds."""
    return " AND ".join(f"(({rule}) IS NOT FALSE)" for rule in rules)


def test_the_table_takes_exactly_the_runs_that_the_rules_allow(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        conn.execute(RUNS.encode())
        constraints = find_checks(conn)
        differing = f"SELECT * FROM every_run WHERE ({all_of(RULES)}) <> ({all_of(constraints)}) LIMIT 3"
        assert conn.execute(differing.encode()).fetchall() == []
        allowed = f"SELECT DISTINCT status FROM every_run WHERE {all_of(constraints)}"
        assert {status for (status,) in conn.execute(allowed.encode())} == set(Status)
