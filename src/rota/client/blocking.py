"""The same clients for programs without an event loop: the one implementation, run to its end at once."""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import wraps
from typing import Any

from rota.client.desk import AsyncDesk, given_here
from rota.client.rota import AsyncClient
from rota.client.wire import BlockingWire, bearer


def _finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits for an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("a blocking client must not suspend")


def _each(items: AsyncIterator[Any]) -> Iterator[Any]:
    try:
        while True:
            try:
                yield _finished(anext(items))  # type: ignore[arg-type]
            except StopAsyncIteration:
                return
    finally:
        _finished(items.aclose())  # type: ignore[attr-defined]


class _Blocking:
    """Every method of the client inside, without `await`."""

    _inside: AsyncClient | AsyncDesk

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inside, name)
        run: Callable[[Any], Any] = _each if inspect.isasyncgenfunction(method) else _finished

        @wraps(method)
        def called(*given: Any, **options: Any) -> Any:
            return run(method(*given, **options))

        return called

    def close(self) -> None:
        _finished(self._inside.close())

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(_Blocking):
    """`AsyncClient` without `await`."""

    def __init__(self, url: str, *, token: str, **options: Any) -> None:
        wire = BlockingWire(url, bearer(token))
        self._inside = AsyncClient(url, token=token, wire=wire, **options)

    def __enter__(self) -> "Client":
        return self


class Desk(_Blocking):
    """`AsyncDesk` without `await`."""

    def __init__(self, url: str, *, token: str = "", **options: Any) -> None:
        wire = BlockingWire(url, bearer(token))
        self._inside = AsyncDesk(url, token=token, wire=wire, **options)

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None, **options: Any) -> "Desk":
        return cls(**given_here(environment), **options)

    def __enter__(self) -> "Desk":
        return self
