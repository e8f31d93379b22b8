"""One served model: its names, the state of its load, and the requests that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.interfaces import client_of
from lmtool.core.model_entry import ModelEntry
from lmtool.core.types import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.core.interfaces import LoadedModel, Sink, Unsubscribe
    from lmtool.core.model_entry import ModelPhase
    from lmtool.core.streams import DeferredHandle
    from lmtool.core.types import GenerateRequest, ScoreRequest, TokenOutput

    Waiting: TypeAlias = tuple[DeferredHandle, GenerateRequest | ScoreRequest, Sink]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and the names under which clients may ask for it."""

    source: str
    """A hub name or folder, as typed: what is loaded."""
    names: tuple[str, ...]
    """The first one is the name shown, in place of the source wherever that would show."""
    aliases: tuple[str, ...] = ()
    """Those of the others that clients are shown as well: configured names, and no paths."""
    pinned: bool = False
    """Whether it stays in memory once it is there."""
    size_bytes: int | None = None
    """Of the files with its weights; None: not known before they are read."""


@dataclass(eq=False, slots=True)
class ModelSlot:
    """One model: the state of its load, and the requests that wait for it."""

    served: ServedModel
    phase: ModelPhase = "unloaded"
    model: LoadedModel | None = None
    """Set while `phase` is `ready`."""
    failure: LmtoolError | None = None
    """Why the last load failed."""
    retry_at: float = 0.0
    """When the next load may be tried, by the manager's clock."""
    last_used: float = 0.0
    """When a stream last ended, by the manager's clock."""
    references: int = 0
    """Callers that need the model in memory beside its streams."""
    waiting: deque[Waiting] = field(default_factory=deque)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a load has succeeded or failed."""
    size_bytes: int | None = None
    """Of the weights on disk."""
    memory_bytes: int | None = None
    """Of the weights in memory: what they take on disk, until a load has shown it."""
    context_length: int | None = None
    """By its last description."""
    architecture: str | None = None
    sampling_defaults: Mapping[str, float] | None = None
    sinks: dict[Sink, CountingSink] = field(default_factory=dict)
    """Those with running streams, by the sink that they wrap."""
    progress: LoadProgress = field(init=False)
    _listeners: dict[object, Callable[[LoadProgress], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.progress = LoadProgress(self.name, "waiting")
        self.size_bytes = self.memory_bytes = self.served.size_bytes

    @property
    def name(self) -> str:
        """The name that clients are shown."""
        return self.served.names[0]

    @property
    def idle(self) -> bool:
        """Whether the model is in memory and unused."""
        return self.model is not None and not self.sinks and not self.references

    @property
    def streams(self) -> int:
        """Streams that run, and requests that wait for the load."""
        return sum(sink.running for sink in self.sinks.values()) + len(self.waiting)

    def entry(self, now: float) -> ModelEntry:
        """What a catalogue lists. now: by the manager's clock."""
        failure = self.failure if self.phase == "unloaded" else None
        return ModelEntry(
            self.name,
            self.served.aliases,
            self.phase if failure is None else "failed",
            self.size_bytes,
            self.context_length,
            round(now - self.last_used, 3) if self.idle else None,
            self.served.pinned,
            None if failure is None else failure.sentence.replace(self.served.source, self.name),  # no paths
            self.architecture,
            self.sampling_defaults,
        )

    def take_waiting(self) -> list[Waiting]:
        """Return the requests that wait, in order; they wait here no longer."""
        waiting, self.waiting = list(self.waiting), deque()
        return waiting

    def subscribe(self, listener: Callable[[LoadProgress], None]) -> Unsubscribe:
        """Call `listener` now, and at each change until the phase is `ready` or `failed`."""
        key = object()
        if self.progress.phase not in {"ready", "failed"}:
            self._listeners[key] = listener
        listener(self.progress)

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def publish(self, progress: LoadProgress) -> None:
        """Store the progress of the load and notify the listeners."""
        self.progress = progress
        self.size_bytes = progress.total_bytes or self.size_bytes
        listeners = list(self._listeners.values())
        if progress.phase in {"ready", "failed"}:
            self._listeners.clear()
        for listener in listeners:
            listener(progress)


class CountingSink:
    """A sink that knows how many of its streams are running."""

    __slots__ = ("_on_empty", "_sink", "client", "running")

    def __init__(self, sink: Sink, on_empty: Callable[[], None]) -> None:
        self.client = client_of(sink)
        self._sink = sink
        self._on_empty = on_empty
        self.running = 0

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Pass outputs on, then count those that end a stream."""
        self._sink(outputs)
        if ended := sum(output.last for output in outputs):
            self.running -= ended
            if not self.running:
                self._on_empty()
