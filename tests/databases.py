"""Databases that live as long as who asked for them."""

import os
import secrets
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import make_conninfo


def database(server_url: str, template: str) -> Iterator[str]:
    """The URL of a copy of the template."""
    name = f"rota_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def owned_database(server_url: str, rights: str) -> Iterator[str]:
    """The URL of an empty database of an owner with these rights and no others."""
    name = f"rota_owner_{secrets.token_hex(4)}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}' {rights}".encode())
        conn.execute(f"CREATE DATABASE {name} OWNER {name} TEMPLATE template0")
        try:
            yield make_conninfo(server_url, dbname=name, user=name, password=name)
        finally:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")
            conn.execute(f"DROP ROLE IF EXISTS {name}_api")
            conn.execute(f"DROP ROLE {name}")
