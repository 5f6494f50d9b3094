"""Many values as one parameter, as PostgreSQL itself writes an array: psycopg would look at each of them."""

from collections.abc import Iterable, Sequence
from struct import Struct
from uuid import UUID

import psycopg
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

_HEAD = Struct("!iiIii")  # dimensions, whether any is null, type, how many, number of the first
_SIZE = Struct("!i")
_NULL = _SIZE.pack(-1)
_INTEGER = Struct("!ii")
_OF_UUID = _SIZE.pack(16)


class Array(bytes):
    type: int
    array: int

    @classmethod
    def _of(cls, count: int, body: bytes) -> "Array":
        return cls(_HEAD.pack(1, 1, cls.type, count, 1) + body if count else _HEAD.pack(0, 0, cls.type, 0, 0)[:12])


class Uuids(Array):
    type, array = psycopg.adapters.types["uuid"].oid, psycopg.adapters.types["uuid"].array_oid

    @classmethod
    def of(cls, ids: Iterable[UUID]) -> "Array":
        written = [each.bytes for each in ids]
        return cls._of(len(written), _OF_UUID + _OF_UUID.join(written))


class Integers(Array):
    type, array = psycopg.adapters.types["int4"].oid, psycopg.adapters.types["int4"].array_oid

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Array":
        return cls._of(len(numbers), b"".join([_INTEGER.pack(4, each) for each in numbers]))


class Texts(Array):
    type, array = psycopg.adapters.types["text"].oid, psycopg.adapters.types["text"].array_oid

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> "Array":
        written = [None if each is None else each.encode() for each in texts]
        parts = [_NULL if each is None else _SIZE.pack(len(each)) + each for each in written]
        return cls._of(len(parts), b"".join(parts))


class _AsItIs(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> Buffer:
        return obj


for _kind in (Uuids, Integers, Texts):
    psycopg.adapters.register_dumper(_kind, type(f"{_kind.__name__}AsItIs", (_AsItIs,), {"oid": _kind.array}))
