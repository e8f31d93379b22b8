"""Loads models on demand within a budget, queues their requests meanwhile, and unloads idle models."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import (
    LmtoolError,
    ModelLoadError,
    OverloadedError,
    RequestError,
    UnknownModelError,
    rebuilt,
    unnamed_model,
)
from lmtool.core.interfaces import client_of, current_limits, tokenizer_of
from lmtool.core.logprobs.numbers import size
from lmtool.core.model_entry import ModelEntry
from lmtool.core.model_usage import ModelUsage, usage_of
from lmtool.core.prompt_limits import limits_of, widest
from lmtool.core.streams import DeferredHandle, refuse
from lmtool.core.types import LoadProgress
from lmtool.net.subprocesses.resources import release_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from lmtool.core.interfaces import LoadedModel, Sink, StreamHandle, Tokenizer, Unsubscribe
    from lmtool.core.model_entry import ModelPhase
    from lmtool.core.prompt_limits import LimitsByModel, PromptLimits
    from lmtool.core.types import GenerateRequest, ModelInfo, ScoreRequest, TokenOutput

    Waiting: TypeAlias = tuple[DeferredHandle, GenerateRequest | ScoreRequest, Sink]
    Load: TypeAlias = Callable[[str, Callable[[LoadProgress], None]], LoadedModel]
    Request: TypeAlias = GenerateRequest | ScoreRequest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and the names under which clients may ask for it."""

    source: str
    """A hub name or folder, as typed: what is loaded."""
    names: tuple[str, ...]
    """The first one is the name shown, in place of the source wherever that would show."""
    aliases: tuple[str, ...] = ()
    """Other names that clients may see: configured names, never paths."""
    pinned: bool = False
    """True if it stays in memory once it is there."""
    size_bytes: int | None = None
    """Size of the weight files; None if not known before they are read."""


@dataclass(eq=False, slots=True)
class ModelSlot:
    """One model: the state of its load, and the requests that wait for it."""

    served: ServedModel
    phase: ModelPhase = "unloaded"
    model: LoadedModel | None = None
    """Set while `phase` is `ready`."""
    failure: LmtoolError | None = None
    """Error of the last load."""
    retry_at: float = 0.0
    """Earliest time of the next load, by the manager's clock."""
    last_used: float = 0.0
    """Time at which a stream last ended, by the manager's clock."""
    references: int = 0
    """Callers that need the model in memory beside its streams."""
    waiting: deque[Waiting] = field(default_factory=deque)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a load has succeeded or failed."""
    size_bytes: int | None = None
    """Size of the weights on disk."""
    memory_bytes: int | None = None
    """Size of the weights in memory; their size on disk until a load has measured it."""
    context_length: int | None = None
    """By its last description."""
    architecture: str | None = None
    sampling_defaults: Mapping[str, float] | None = None
    sinks: dict[Sink, CountingSink] = field(default_factory=dict)
    """Counting sinks with running streams, by the sink that they wrap."""
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
        """True if the model is in memory and unused."""
        return self.model is not None and not self.sinks and not self.references

    @property
    def streams(self) -> int:
        """Streams that run, and requests that wait for the load."""
        return sum(sink.running for sink in self.sinks.values()) + len(self.waiting)

    def entry(self, now: float) -> ModelEntry:
        """The model's entry in the catalogue. now: by the manager's clock."""
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


_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 34 / 32, "int4": 18 / 32}


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """Limits on the number of models in memory and on the total size of their weights."""

    max_loaded: int | None = None
    memory_bytes: int | None = None
    max_loading: int = 4
    """Most loads at once."""

    def has_room(self, slot: ModelSlot, resident: Sequence[ModelSlot]) -> bool:
        """True if a model fits beside these, by what is known of their sizes."""
        if self.max_loaded is not None and len(resident) >= self.max_loaded:
            return False
        return self.memory_bytes is None or _bytes([*resident, slot]) <= self.memory_bytes

    def may_load(self, slot: ModelSlot, slots: Iterable[ModelSlot]) -> bool:
        """True if the load of a model may begin now, beside the others as they are."""
        resident = [one for one in slots if one.phase in {"loading", "ready", "unloading"}]
        return sum(one.phase == "loading" for one in resident) < self.max_loading and self.has_room(slot, resident)

    def victim(self, slots: Iterable[ModelSlot], incoming: ModelSlot | None = None) -> ModelSlot | None:
        """The model to unload now: the one unused longest, where there is too little room; None: none, or none can go.

        incoming: the model that needs room; None: nothing does, and only what is beyond the budget goes.
        """
        staying = [one for one in slots if one.phase in {"loading", "ready"}]
        within = self.memory_bytes is None or _bytes(staying) <= self.memory_bytes
        enough = within if incoming is None else self.has_room(incoming, staying)
        idle = [one for one in staying if one.idle and not one.served.pinned]
        return None if enough else min(idle, key=lambda one: one.last_used, default=None)

    def refusal(self, slot: ModelSlot, slots: Iterable[ModelSlot]) -> ModelLoadError | None:
        """Error for a model that does not fit even if all unpinned models are unloaded; None if it fits."""
        pinned = [one for one in slots if one.served.pinned and one is not slot]
        if self.memory_bytes is None or _bytes([*pinned, slot]) <= self.memory_bytes:
            return None
        rest = f", of which pinned models take {size(_bytes(pinned))}" if pinned else ""
        needed, limit = size(_bytes([slot])), size(self.memory_bytes)
        return ModelLoadError(
            f"{slot.name} takes {needed}, and all models together may take {limit}{rest}",
            "start the server with a larger --memory",
        )


def _bytes(slots: Iterable[ModelSlot]) -> int:
    return sum(slot.memory_bytes or 0 for slot in slots)


def weight_bytes(info: ModelInfo) -> int | None:
    """Bytes of a loaded model's weights; None where the number or the type of its parameters is not known."""
    size = _ITEM_BYTES.get(info.dtype or "")
    return None if size is None or info.parameters is None else int(size * info.parameters)


class ModelTransitions:
    """Queue of loads: each begins when there is room, in order; the model unused longest makes it.

    Everything is called in one event loop.
    """

    def __init__(
        self,
        load: Load,
        slots: Sequence[ModelSlot],
        budget: ModelBudget,
        *,
        retry_seconds: float,
        clock: Callable[[], float],
        on_settled: Callable[[ModelSlot], None],
    ) -> None:
        """load, retry_seconds, clock: see `ModelManager`. slots: all models, a list that may grow.

        on_settled: called when a load has succeeded or failed, with `slot.model` or `slot.failure` set.
        """
        self._load = load
        self._slots = slots
        self._budget = budget
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._on_settled = on_settled
        self._queue: deque[ModelSlot] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        """Loads and unloads in progress."""
        self._unloads: dict[ModelSlot, asyncio.Task[None]] = {}
        self._pool = ThreadPoolExecutor(budget.max_loading + 1, thread_name_prefix="lmtool-load")
        """One thread more than loads, so that an unload waits for none of them."""
        self._closing = False

    def preload(self, slots: Sequence[ModelSlot]) -> list[ModelSlot]:
        """Begin to load these models, as many as fit at once; pinned ones go before."""
        chosen: list[ModelSlot] = []
        for slot in sorted(slots, key=lambda one: not one.served.pinned):
            if not chosen or self._budget.has_room(slot, chosen):
                chosen.append(slot)
        begun = [slot for slot in slots if slot in chosen]
        for slot in begun:
            if slot.phase == "unloaded":
                self._enqueue(slot)
        self.advance()
        return begun

    def ensure_loading(self, slot: ModelSlot) -> None:
        """Start a load unless there is one. Raises the error of the last load while it is too early for another."""
        if slot.phase != "unloaded":
            return
        if slot.failure is not None and self._clock() < slot.retry_at:
            raise copied(slot.failure)
        self._enqueue(slot)
        self.advance()

    def _enqueue(self, slot: ModelSlot) -> None:
        slot.phase = "queued"
        slot.failure = None
        slot.settled.clear()
        self._queue.append(slot)
        slot.publish(LoadProgress(slot.name, "waiting"))

    def advance(self) -> None:
        """Begin the loads that have room, and the unloads that make room."""
        while not self._closing and self._step():
            pass

    def _step(self) -> bool:
        """Begin one load or unload; False when there is nothing to begin."""
        head = self._queue[0] if self._queue else None
        if head is not None and self._budget.may_load(head, self._slots):
            slot = self._queue.popleft()
            slot.phase = "loading"
            slot.publish(LoadProgress(slot.name, "loading"))
            self._begin(self._carry_out_load(slot))
            return True
        if head is not None and (refusal := self._budget.refusal(head, self._slots)) is not None:
            self._queue.popleft()
            self._fail(head, refusal)
            return True
        victim = self._budget.victim(self._slots, head)
        if victim is not None:
            self.begin_unload(victim)
        if victim is not None and head is not None:
            head.publish(LoadProgress(head.name, "unloading", message="another model is unloaded to make room"))
        return victim is not None

    def _begin(self, transition: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(transition)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry_out_load(self, slot: ModelSlot) -> None:
        loop = asyncio.get_running_loop()

        def report(progress: LoadProgress) -> None:
            message = progress.message.replace(slot.served.source, slot.name)  # clients must not see paths
            renamed = replace(progress, model=slot.name, phase="loading", message=message)
            loop.call_soon_threadsafe(slot.publish, renamed)

        try:
            model = await loop.run_in_executor(self._pool, self._load, slot.served.source, report)
            try:
                await self._measure(slot, model)
            except BaseException:
                await self._close(model)
                raise
        except Exception as error:  # noqa: BLE001  # whatever a loader raises is this model's failure, not the server's
            self._fail(slot, error)
        else:
            self._succeed(slot, model)
        self.advance()

    async def _measure(self, slot: ModelSlot, model: LoadedModel) -> None:
        """Take note of what the model takes. Raises `ModelLoadError` for one that has no room at all."""
        info = await model.info()
        slot.context_length, slot.architecture = info.context_length, info.architecture
        slot.memory_bytes = weight_bytes(info) or slot.memory_bytes or slot.size_bytes
        if (refusal := self._budget.refusal(slot, self._slots)) is not None:
            raise refusal

    def _succeed(self, slot: ModelSlot, model: LoadedModel) -> None:
        slot.phase = "ready"
        slot.model = model
        slot.last_used = self._clock()
        slot.publish(replace(slot.progress, phase="ready", done_bytes=slot.progress.total_bytes, message=""))
        self._settle(slot)
        if self._closing:
            self.begin_unload(slot)

    def _fail(self, slot: ModelSlot, error: Exception) -> None:
        slot.phase = "unloaded"
        if isinstance(error, LmtoolError):
            slot.failure = error
        else:
            _log.error("loading %s failed", slot.served.source, exc_info=error)
            slot.failure = ModelLoadError(
                f"{slot.name} cannot be loaded: {type(error).__name__}: {error}", "see the server's log"
            )
        slot.retry_at = self._clock() + self._retry_seconds
        slot.publish(replace(slot.progress, phase="failed", message=slot.failure.message))
        self._settle(slot)

    def _settle(self, slot: ModelSlot) -> None:
        slot.settled.set()
        self._on_settled(slot)

    def begin_unload(self, slot: ModelSlot) -> asyncio.Task[None]:
        """Take a model that is ready out of memory; the task ends when that is done."""
        assert slot.model is not None
        model, slot.model = slot.model, None
        slot.phase = "unloading"
        self._unloads[slot] = task = self._begin(self._carry_out_unload(slot, model))
        return task

    async def unloaded(self, slot: ModelSlot) -> None:
        """Return when no unload of this model is under way."""
        if (task := self._unloads.get(slot)) is not None:
            await asyncio.wait([task])

    async def _carry_out_unload(self, slot: ModelSlot, model: LoadedModel) -> None:
        try:
            await self._close(model)
        except Exception:  # noqa: BLE001  # a device may be gone; the model is out of use in any case
            _log.exception("unloading %s failed", slot.served.source)
        del model
        await asyncio.get_running_loop().run_in_executor(self._pool, release_memory)
        del self._unloads[slot]
        slot.phase = "unloaded"
        slot.progress = LoadProgress(slot.name, "waiting")
        if not self._closing and (slot.waiting or slot.references):
            self._enqueue(slot)
        self.advance()

    async def _close(self, model: LoadedModel) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, model.close)

    def stop(self) -> None:
        """Begin no further load."""
        self._closing = True
        self._queue.clear()

    async def close(self) -> None:
        """Wait for loads under way, which cannot be stopped; unload all models."""
        self.stop()
        for slot in self._slots:
            if slot.model is not None:
                self.begin_unload(slot)
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._pool.shutdown(wait=False)


def copied(error: LmtoolError) -> LmtoolError:
    """An equal error, to be raised afresh."""
    kind, again, seconds = type(error), error.retryable, error.retry_after
    return rebuilt(kind, error.sentence, error.hints, retryable=again, retry_after=seconds)


def shutting_down() -> OverloadedError:
    """The error of all that a server which ends does not begin."""
    return OverloadedError("the server is shutting down", "send the request again when it is back")


_PATH = re.compile(r"(?<=')/[^']*(?=')")
"""Path of a downloaded model in its constructor: clients must not see paths."""
MAX_NAMES = 256
"""Most names that clients may make known, where that is allowed, beside the served ones."""


class ModelManager:
    """An `interfaces.TokenModel`, `ProgressSource`, `Catalogue` and `ModelControl` over any number of models.

    Loads run concurrently within the budget. Requests for a model being loaded wait in order. A failed load fails
    all that wait for it; requests within `retry_seconds` get the same error at once, the first one after that tries
    again. Where there is no room, the model that was unused longest makes it, as soon as one has no running stream.
    Everything is called in one event loop.
    """

    def __init__(
        self,
        load: Load,
        served: Sequence[ServedModel],
        *,
        on_demand: Callable[[str], ServedModel] | None = None,
        budget: ModelBudget | None = None,
        idle_seconds: float | None = None,
        retry_seconds: float = 10.0,
        max_waiting: int = 1024,
        sampling_defaults: Callable[[str], Mapping[str, float]] = lambda _source: {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve these models, each loaded on its first request (or by `preload`).

        load: called in a thread with a model's source and a listener for its progress; blocks until the model is
        ready, raises `LmtoolError`. on_demand: returns the model of any other name that a client sends, at once;
        raises `UnknownModelError` for one that is not to be loaded. idle_seconds: unload a model that was unused so
        long. max_waiting: most requests that wait for one model. sampling_defaults: those of a loaded model, by its
        source. clock: seconds.
        """
        self._on_demand = on_demand
        self._idle_seconds = idle_seconds
        self._max_waiting = max_waiting
        self._sampling_defaults = sampling_defaults
        self._clock = clock
        self._served = [ModelSlot(model) for model in served]
        self._slots = list(self._served)
        self._by_name = {name: slot for slot in reversed(self._served) for name in slot.served.names}
        self._transitions = ModelTransitions(
            load,
            self._slots,
            budget or ModelBudget(),
            retry_seconds=retry_seconds,
            clock=clock,
            on_settled=self._settled,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    def preload(self, names: Sequence[str] | None = None) -> list[str]:
        """Begin to load these served models (None: all), in order, as many as fit at once.

        Returns the names of those. Raises `UnknownModelError`.
        """
        slots = self._served if names is None else [self._find(name) for name in names]
        return [slot.name for slot in self._transitions.preload(slots)]

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream, see `interfaces.TokenModel.submit`; it waits while its model is being loaded."""
        try:
            slot = self._find(request.model)
            if slot.model is None:
                self._transitions.ensure_loading(slot)
                self._check_room(slot)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)
        if request.model is not None:
            request = replace(request, model=None)
        if slot.model is not None:
            return self._submit_ready(slot, request, sink)
        handle = DeferredHandle(request.stream_id, sink)
        slot.waiting.append((handle, request, sink))
        return handle

    @property
    def limits(self) -> LimitsByModel:
        """Limits of prompts of the models in memory, see `interfaces.Limited`."""
        limits: dict[str | None, PromptLimits] = {}
        for slot in self._slots:
            own = None if slot.model is None else limits_of(None, current_limits(slot.model))
            limits |= dict.fromkeys(slot.served.names, own) if own is not None else {}
        if self._on_demand is None and all(slot.name in limits for slot in self._slots):
            limits[None] = widest(limits.values())  # no other model could come
        return limits

    def tokenizer(self, model: str | None = None) -> Tokenizer | None:
        """The tokenizer of a model in memory, see `interfaces.Tokenized`. Raises `UnknownModelError`."""
        slot = self._find(model)
        return None if slot.model is None else tokenizer_of(slot.model)

    async def info(self, model: str | None = None) -> ModelInfo:
        """Return what is served under this name, once it is loaded.

        Raises `UnknownModelError` for a name not served, the load's error (`ModelLoadError`, ...) when it fails.
        """
        slot = self._find(model)
        if slot.model is None:
            self._transitions.ensure_loading(slot)
        slot.references += 1
        try:
            if slot.model is None:
                await slot.settled.wait()
            if slot.model is None:
                raise copied(slot.failure) if slot.failure else shutting_down()
            info = await slot.model.info()
            slot.context_length = info.context_length
        finally:
            slot.references -= 1
            self._used(slot)
        constructor = info.constructor.replace(slot.served.source, slot.name)
        constructor = _PATH.sub(slot.name, constructor)
        defaults = slot.sampling_defaults or info.sampling_defaults
        return replace(info, model=slot.name, constructor=constructor, sampling_defaults=defaults)

    async def load(self, name: str) -> None:
        """See `interfaces.ModelControl.load`."""
        await self.info(name)

    async def unload(self, name: str) -> None:
        """See `interfaces.ModelControl.unload`."""
        slot = self._by_name.get(name)
        if slot is None:
            raise UnknownModelError(f"model {_short(name)} is not in memory here", *self._names())
        if slot.served.pinned:
            raise RequestError(f"{slot.name} is pinned: it stays in memory", "start the server without its --pin")
        if slot.phase in {"queued", "loading"}:
            raise OverloadedError(f"{slot.name} is being loaded", "unload it when it is ready")
        if slot.model is not None and not slot.idle:
            count = "1 stream runs" if slot.streams == 1 else f"{slot.streams} streams run"
            use = count if slot.streams else "a client is reading its description"
            raise OverloadedError(f"{slot.name} is in use: {use}", "unload it when that has ended")
        if slot.model is not None:
            self._transitions.begin_unload(slot)
        await self._transitions.unloaded(slot)

    def models(self) -> list[ModelEntry]:
        """See `interfaces.Catalogue.models`."""
        now = self._clock()
        return [slot.entry(now) for slot in self._slots if self._listed(slot)]

    def entry(self, name: str | None) -> ModelEntry:
        """See `interfaces.Catalogue.entry`."""
        slot = None if name is None else self._by_name.get(name)
        if name is not None and self._on_demand is not None and (slot is None or not self._listed(slot)):
            raise UnknownModelError(f"model {_short(name)} is not in memory", "a request that names it may load it")
        return (slot or self._find(name)).entry(self._clock())

    def usage(self) -> dict[str, ModelUsage]:
        """Usage of each model that is in memory or being loaded, by name."""
        usages = {}
        for slot in self._slots:
            if slot.model is not None or slot.waiting:
                own = ModelUsage(0, 0) if slot.model is None else usage_of(slot.model)
                waiting = own.waiting + len(slot.waiting)
                weights = None if slot.model is None else slot.memory_bytes
                usages[slot.name] = own._replace(waiting=waiting, weights_bytes=weights)
        return usages

    @property
    def can_answer(self) -> bool:
        """See `interfaces.Available`: not where the last load of each model has failed."""
        now = self._clock()
        entries = [slot.entry(now) for slot in self._served]
        return not entries or any(entry.phase != "failed" for entry in entries)

    def _listed(self, slot: ModelSlot) -> bool:
        """True if the catalogue lists it: not a client's own name that could not be loaded."""
        return slot in self._served or slot.phase != "unloaded"

    def subscribe(self, model: str | None, listener: Callable[[LoadProgress], None]) -> Unsubscribe:
        """Tell `listener` how the model's load proceeds, see `interfaces.ProgressSource`; an unknown name has `failed`.

        The first call comes before this returns. Asking does not start a load.
        """
        try:
            slot = self._find(model)
        except RequestError as error:
            listener(LoadProgress(model or "", "failed", message=error.message))
            return lambda: None  # nothing to unsubscribe
        return slot.subscribe(listener)

    def sweep(self) -> None:
        """Unload what was idle for `idle_seconds`; a timer calls this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idle_seconds is None:
            return
        now = self._clock()
        for slot in [slot for slot in self._slots if self._may_go(slot) and slot.last_used + self._idle_seconds <= now]:
            self._transitions.begin_unload(slot)
        due = [slot.last_used + self._idle_seconds - now for slot in self._slots if self._may_go(slot)]
        if due and not self._closing:
            self._timer = asyncio.get_running_loop().call_later(max(0.1, min(due)), self.sweep)

    def _may_go(self, slot: ModelSlot) -> bool:
        return slot.idle and not slot.served.pinned

    async def drain(self, seconds: float) -> int:
        """Refuse new requests and those that wait for a load, let running streams end.

        Returns how many still run after this many seconds (0: none).
        """
        self._stop()
        models = [slot.model for slot in self._slots if slot.model is not None]
        return sum(await asyncio.gather(*(model.drain(seconds) for model in models)))

    async def close(self) -> None:
        """Refuse new requests, wait for loads under way, close all models."""
        self._stop()
        await self._transitions.close()

    # Choosing a model

    def _find(self, name: str | None) -> ModelSlot:
        if self._closing:
            raise shutting_down()
        if name is not None:
            slot = self._by_name.get(name)
            if slot is not None and self._on_demand is not None and not self._listed(slot):
                self._on_demand(name)  # whether it may be loaded is decided at each request that would load it
            return slot or self._add(name)
        known = self._served if self._on_demand is None else [slot for slot in self._slots if slot.model is not None]
        if len(known) != 1:
            raise unnamed_model(len(known), *self._names())
        return known[0]

    def _add(self, name: str) -> ModelSlot:
        if self._on_demand is None:
            raise UnknownModelError(f"model {_short(name)} is not served here", *self._names())
        if not name or len(name) > 256 or not name.isprintable():
            raise UnknownModelError(f"{_short(name)} is not a possible model name", "give a hub name")
        served = self._on_demand(name)
        if len(self._slots) >= len(self._served) + MAX_NAMES:
            self._forget()
        slot = self._by_name[name] = ModelSlot(served)
        self._slots.append(slot)
        return slot

    def _forget(self) -> None:
        """Drop the first unused name that a client brought up."""
        for slot in self._slots[len(self._served) :]:
            if slot.phase == "unloaded":
                self._slots.remove(slot)
                del self._by_name[slot.name]
                return
        raise OverloadedError(f"{MAX_NAMES} models are in use here", "name one of them, or try again later")

    def _names(self) -> tuple[str, ...]:
        names = ", ".join(slot.name for slot in self._slots if slot in self._served or slot.model is not None)
        return (f"served here: {names}" if names else "name the model to load",)

    # Running streams

    def _check_room(self, slot: ModelSlot) -> None:
        if len(slot.waiting) >= self._max_waiting:
            slot.waiting = deque(entry for entry in slot.waiting if not entry[0].ended)
        if len(slot.waiting) >= self._max_waiting:
            raise OverloadedError(
                f"{len(slot.waiting)} requests wait for {slot.name} to load already", "try again when it is ready"
            )

    def _submit_ready(self, slot: ModelSlot, request: Request, sink: Sink) -> StreamHandle:
        assert slot.model is not None
        counting = slot.sinks.get(sink)
        if counting is None:
            counting = slot.sinks[sink] = CountingSink(sink, on_empty=partial(self._sink_empty, slot, sink))
        handle = slot.model.submit(request, counting)
        counting.running += 1
        return handle

    def _sink_empty(self, slot: ModelSlot, sink: Sink) -> None:
        slot.sinks.pop(sink, None)
        self._used(slot)

    def _settled(self, slot: ModelSlot) -> None:
        """Begin the requests that waited for a load, or fail them."""
        if slot.model is not None:
            slot.sampling_defaults = self._sampling_defaults(slot.served.source)
        for handle, request, sink in slot.take_waiting():
            if slot.failure is not None:
                handle.fail(slot.failure)
            else:
                handle.start(partial(self._submit_ready, slot, request, sink))
        self._used(slot)

    def _used(self, slot: ModelSlot) -> None:
        slot.last_used = self._clock()
        self._transitions.advance()
        if self._idle_seconds is not None and self._timer is None and self._may_go(slot):
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self.sweep)

    def _stop(self) -> None:
        """Refuse everything that has not started."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transitions.stop()
        for slot in self._slots:
            for handle, _, _ in slot.take_waiting():
                handle.fail(shutting_down())
            slot.settled.set()


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "...")
