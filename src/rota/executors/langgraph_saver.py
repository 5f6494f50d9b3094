"""Keeps the state of a graph at the desk, as one checkpoint of its session. Loaded only in a child."""

import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)

from rota.agent import GiveUp

if TYPE_CHECKING:
    from rota.agent import Reply

FORMAT = "rota-langgraph-1"
ROOT = ""
OF_A_TASK = ":"  # stands in the name of a space that belongs to one task, and is of no use once that has ended

Typed = tuple[str, bytes]


@dataclass(slots=True)
class Saved:
    """One checkpoint of a graph. Each write is its task, position, channel, value and path."""

    checkpoint: Typed | None = None
    metadata: Typed | None = None
    parent: str | None = None
    writes: list[tuple[str, int, str, Typed, str]] = field(default_factory=list)


Space = dict[str, Saved]  # of one graph or subgraph, by the checkpoint's id


class DeskSaver(BaseCheckpointSaver[int]):
    """Holds the latest checkpoint of each graph of the thread, and hands all of it to the desk whenever one changes.

    Nothing goes on from an earlier checkpoint, so none is kept, but those that a channel of differences is made of.
    """

    def __init__(self, keep: "Callable[[bytes], Reply]", run_id: str, stored: bytes | None = None) -> None:
        super().__init__()
        self._keep, self._run_id = keep, run_id
        self._lock = threading.Lock()  # nodes that are not async work in threads
        told = self._read(stored)
        self._begun_by = told.get("run_id")
        self.of_this_run = self._begun_by == run_id
        self._spaces: dict[tuple[str, str], Space] = {
            (thread, name): {key: _saved(value) for key, value in space.items()}
            for thread, name, space in told.get("spaces", ())
        }

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        where = _where(config)
        with self._lock:
            space = self._spaces.get(where, {})
            wanted = get_checkpoint_id(config) or _latest(space)
            found = space.get(wanted) if wanted else None
            return self._tuple(where, wanted, found) if wanted and found and found.checkpoint else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - as the library calls it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        with self._lock:
            known = [
                self._tuple(where, key, saved)
                for where, space in self._spaces.items()
                if config is None or where == _where(config)
                for key, saved in sorted(space.items(), reverse=True)
                if saved.checkpoint
            ]
        border = get_checkpoint_id(before) if before else None
        wanted = [
            each
            for each in known
            if (border is None or each.checkpoint["id"] < border)
            and all(each.metadata.get(name) == value for name, value in (filter or {}).items())
        ]
        yield from wanted[:limit]

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        _new: ChannelVersions,
    ) -> RunnableConfig:
        given, reply = self._put(config, checkpoint, metadata)
        self._heard(reply.result)
        return given

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        _new: ChannelVersions,
    ) -> RunnableConfig:
        given, reply = self._put(config, checkpoint, metadata)
        await self._aheard(reply)
        return given

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._heard(self._put_writes(config, writes, task_id, task_path).result)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._aheard(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._heard(self._delete(thread_id).result)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._aheard(self._delete(thread_id))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - as the library calls it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for each in self.list(config, filter=filter, before=before, limit=limit):
            yield each

    def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> "tuple[RunnableConfig, Reply]":
        where, told = _where(config), get_checkpoint_metadata(config, metadata)
        with self._lock:
            space = self._spaces.setdefault(where, {})
            saved = space.setdefault(checkpoint["id"], Saved())
            saved.checkpoint, saved.metadata = self.serde.dumps_typed(checkpoint), self.serde.dumps_typed(told)
            saved.parent = get_checkpoint_id(config)
            self._begun_by = self._run_id  # what is only written to an earlier run's checkpoint begins nothing
            self._forget(where, checkpoint, told)
            return _config(where, checkpoint["id"]), self._send()

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> "Reply":
        """As every saver has it: what a task wrote stays, but for the marks that it gets anew each time it is tried."""
        with self._lock:
            space = self._spaces.setdefault(_where(config), {})
            saved = space.setdefault(config["configurable"]["checkpoint_id"], Saved())
            known = {(each[0], each[1]): each for each in saved.writes}
            for number, (channel, value) in enumerate(writes):
                at = WRITES_IDX_MAP.get(channel, number)
                if at < 0 or (task_id, at) not in known:
                    known[task_id, at] = (task_id, at, channel, self.serde.dumps_typed(value), task_path)
            saved.writes = sorted(known.values(), key=lambda each: writes_sort_key(each[4], each[0], each[1]))
            return self._send()

    def _delete(self, thread_id: str) -> "Reply":
        with self._lock:
            self._spaces = {where: space for where, space in self._spaces.items() if where[0] != thread_id}
            return self._send()

    def _forget(self, where: tuple[str, str], latest: Checkpoint, metadata: CheckpointMetadata) -> None:
        """Let go of what nobody goes on from: earlier checkpoints, and what subgraphs of ended tasks held."""
        space, kept = self._spaces[where], {latest["id"]}
        lacking = set(metadata.get("counters_since_delta_snapshot") or ()) - set(latest["channel_values"])
        parent = space[latest["id"]].parent
        while lacking and parent in space and (earlier := space[parent]).checkpoint:
            kept.add(parent)
            lacking -= set(self.serde.loads_typed(earlier.checkpoint)["channel_values"])
            parent = earlier.parent
        self._spaces[where] = {key: saved for key, saved in space.items() if key in kept}
        thread, name = where
        if name == ROOT:
            for other in [each for each in self._spaces if each[0] == thread and OF_A_TASK in each[1]]:
                del self._spaces[other]

    def _tuple(self, where: tuple[str, str], key: str, saved: Saved) -> CheckpointTuple:
        assert saved.checkpoint
        assert saved.metadata
        return CheckpointTuple(
            config=_config(where, key),
            checkpoint=self.serde.loads_typed(saved.checkpoint),
            metadata=self.serde.loads_typed(saved.metadata),
            parent_config=_config(where, saved.parent) if saved.parent else None,
            pending_writes=[
                (task_id, channel, self.serde.loads_typed(value)) for task_id, _, channel, value, _ in saved.writes
            ],
        )

    def _read(self, stored: bytes | None) -> Mapping[str, Any]:
        """What an earlier attempt or an earlier run of the session stored. What another kind left is left alone."""
        try:
            told = self.serde.loads_typed(("msgpack", zlib.decompress(stored or b"")))
        except (zlib.error, ValueError, TypeError):
            return {}
        return told if isinstance(told, dict) and told.get("format") == FORMAT else {}

    def _send(self) -> "Reply":
        """Under the lock, so that the desk has the latest last."""
        spaces = [
            [*where, {key: asdict(saved) for key, saved in space.items()}] for where, space in self._spaces.items()
        ]
        _, data = self.serde.dumps_typed({"format": FORMAT, "run_id": self._begun_by, "spaces": spaces})
        try:
            return self._keep(zlib.compress(data, 1))
        except ValueError as refusal:
            raise _too_much(refusal) from refusal

    def _heard(self, result: Callable[[], Any]) -> None:
        try:
            result()
        except RuntimeError as refusal:
            raise _too_much(refusal) from refusal

    async def _aheard(self, reply: "Reply") -> None:
        try:
            await reply
        except RuntimeError as refusal:
            raise _too_much(refusal) from refusal


def _too_much(refusal: Exception) -> GiveUp:
    return GiveUp(f"The state of the graph cannot be kept: {refusal}")


def _saved(told: Mapping[str, Any]) -> Saved:
    return Saved(**{**told, "writes": [tuple(each) for each in told["writes"]]})


def _where(config: RunnableConfig) -> tuple[str, str]:
    given = config["configurable"]
    return str(given["thread_id"]), given.get("checkpoint_ns", ROOT)


def _config(where: tuple[str, str], key: str) -> RunnableConfig:
    thread, name = where
    return {"configurable": {"thread_id": thread, "checkpoint_ns": name, "checkpoint_id": key}}


def _latest(space: Space) -> str | None:
    return max((key for key, saved in space.items() if saved.checkpoint), default=None)
