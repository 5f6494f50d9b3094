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
