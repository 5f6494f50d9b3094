"""Databases that live as long as who asked for them."""

import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

GUESTS = "SELECT FROM pg_stat_activity WHERE datname = %s LIMIT 1"
GONE_WITHIN = 0.1


def database(server_url: str, template: str) -> Iterator[str]:
    """The URL of a copy of the template."""
    name = f"rota_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            _drop(conn, name)


def owned_database(server_url: str, rights: str) -> Iterator[str]:
    """The URL of an empty database of an owner with these rights and no others."""
    name = f"rota_owner_{secrets.token_hex(4)}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}' {rights}".encode())
        conn.execute(f"CREATE DATABASE {name} OWNER {name} TEMPLATE template0")
        try:
            yield make_conninfo(server_url, dbname=name, user=name, password=name)
        finally:
            _drop(conn, name)
            conn.execute(f"DROP ROLE IF EXISTS {name}_api")
            conn.execute(f"DROP ROLE {name}")


def roll_back() -> None:
    """Raise `Rollback`, which ends a `transaction()` block silently; after a plain `raise`, mypy calls the rest unreachable."""
    raise psycopg.Rollback


def _drop(conn: psycopg.Connection[Any], name: str) -> None:
    """Once those who were connected have gone, which takes milliseconds: PostgreSQL looks for them ten times a second,
    and there are a thousand databases. Who stays is thrown out."""
    until = time.monotonic() + GONE_WITHIN
    while conn.execute(GUESTS, [name]).rowcount and time.monotonic() < until:
        time.sleep(0.002)
    conn.execute(f"DROP DATABASE {name} WITH (FORCE)")
