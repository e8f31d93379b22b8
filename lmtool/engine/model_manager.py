"""Loads models on demand, queues their requests meanwhile, and unloads idle ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from lmtool.engine.model_slot import CountingSink, ModelSlot, ServedModel
from lmtool.errors import LmtoolError, ModelLoadError, OverloadedError, RequestError, UnknownModelError
from lmtool.interfaces import current_limits, tokenizer_of
from lmtool.prompt_limits import limits_of, widest
from lmtool.streams import DeferredHandle, refuse
from lmtool.types import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.interfaces import LoadedModel, Sink, StreamHandle, Tokenizer, Unsubscribe
    from lmtool.prompt_limits import LimitsByModel, PromptLimits
    from lmtool.types import GenerateRequest, ModelEntry, ModelInfo, ScoreRequest

    Load: TypeAlias = Callable[[str, Callable[[LoadProgress], None]], LoadedModel]
    Request: TypeAlias = GenerateRequest | ScoreRequest

MAX_NAMES = 256
"""Most names that clients may make known under `any_name`, beside the served ones."""

_log = logging.getLogger(__name__)


class ModelManager:
    """An `interfaces.TokenModel`, `interfaces.ProgressSource` and `interfaces.Catalogue` over any number of models.

    Loads and unloads happen one at a time in a thread of their own. Requests for a model on its way wait in order. A
    failed load fails all that wait for it; requests within `retry_seconds` get the same error at once, the first one
    after that tries again. With `max_loaded` models in memory, the one that was unused longest makes room, as soon as
    one has no running stream. Everything is called in one event loop.
    """

    def __init__(
        self,
        load: Load,
        served: Sequence[ServedModel],
        *,
        any_name: bool = False,
        max_loaded: int | None = None,
        idle_seconds: float | None = None,
        retry_seconds: float = 10.0,
        max_waiting: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve these models, each loaded on its first request (or by `preload`).

        load: called in a thread with a model's source and a listener for its progress; blocks until the model is
        ready, raises `LmtoolError`. any_name: load whatever else a client names. max_loaded: most models in memory
        at once. idle_seconds: unload a model that was unused so long. max_waiting: most requests that wait for one
        model. clock: seconds.
        """
        self._load = load
        self._any_name = any_name
        self._max_loaded = max_loaded
        self._idle_seconds = idle_seconds
        self._retry_seconds = retry_seconds
        self._max_waiting = max_waiting
        self._clock = clock
        self._served = [ModelSlot(model) for model in served]
        self._slots = list(self._served)
        self._by_name = {name: slot for slot in reversed(self._served) for name in slot.served.names}
        self._queue: deque[ModelSlot] = deque()
        self._transitions: set[asyncio.Future[LoadedModel] | asyncio.Future[None]] = set()
        """Loads and unloads in progress."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="lmtool-load")
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    def preload(self, names: Sequence[str] | None = None) -> list[str]:
        """Begin to load these served models (None: all), in order, as far as they fit beside each other.

        Returns the names of those. Raises `UnknownModelError`.
        """
        slots = self._served if names is None else [self._find(name) for name in names]
        for slot in slots[: self._max_loaded]:
            self._ensure_loading(slot)
        return [slot.name for slot in slots[: self._max_loaded]]

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream, see `interfaces.TokenModel.submit`; it waits while its model is on its way into memory."""
        try:
            slot = self._find(request.model)
            if slot.model is None:
                self._ensure_loading(slot)
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
        if not self._any_name and all(slot.name in limits for slot in self._slots):
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
            self._ensure_loading(slot)
        slot.pins += 1
        try:
            if slot.model is None:
                await slot.settled.wait()
            if slot.model is None:
                raise _copy(slot.failure) if slot.failure else _shutting_down()
            info = await slot.model.info()
            slot.context_length = info.context_length
        finally:
            slot.pins -= 1
            self._used(slot)
        constructor = info.constructor.replace(slot.served.source, slot.name)
        return replace(info, model=slot.name, constructor=constructor)

    def models(self) -> list[ModelEntry]:
        """See `interfaces.Catalogue.models`."""
        now = self._clock()
        return [slot.entry(now) for slot in self._slots if self._listed(slot)]

    def entry(self, name: str | None) -> ModelEntry:
        """See `interfaces.Catalogue.entry`."""
        slot = None if name is None else self._by_name.get(name)
        if name is not None and self._any_name and (slot is None or not self._listed(slot)):
            raise UnknownModelError(f"model {_short(name)} is not in memory", "a request that names it loads it")
        return (slot or self._find(name)).entry(self._clock())

    def _listed(self, slot: ModelSlot) -> bool:
        """Whether the catalogue lists it: not a client's own name that could not be loaded."""
        return slot in self._served or slot.phase != "unloaded"

    def subscribe(self, model: str | None, listener: Callable[[LoadProgress], None]) -> Unsubscribe:
        """Tell `listener` how the model's load proceeds, see `interfaces.ProgressSource`; an unknown name has `failed`.

        The first call comes before this returns. Asking does not start a load.
        """
        try:
            slot = self._find(model)
        except RequestError as error:
            listener(LoadProgress(model or "", "failed", message=error.message))
            return _nothing
        return slot.subscribe(listener)

    def sweep(self) -> None:
        """Unload what was idle for `idle_seconds`; a timer calls this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idle_seconds is None:
            return
        now = self._clock()
        for slot in [slot for slot in self._slots if slot.idle and slot.last_used + self._idle_seconds <= now]:
            self._unload(slot)
        due = [slot.last_used + self._idle_seconds - now for slot in self._slots if slot.idle]
        if due and not self._closing:
            self._timer = asyncio.get_running_loop().call_later(max(0.1, min(due)), self.sweep)

    async def drain(self, seconds: float) -> int:
        """Refuse new requests and those that wait for a load, let running streams end.

        Returns how many still run after this many seconds (0: none).
        """
        self._stop()
        models = [slot.model for slot in self._slots if slot.model is not None]
        return sum(await asyncio.gather(*(model.drain(seconds) for model in models)))

    async def close(self) -> None:
        """Refuse new requests, wait for a load under way, close all models."""
        self._stop()
        for slot in self._slots:
            if slot.model is not None:
                self._unload(slot)
        while self._transitions:
            await asyncio.wait(self._transitions)
        self._worker.shutdown(wait=False)

    # Choosing a model

    def _find(self, name: str | None) -> ModelSlot:
        if self._closing:
            raise _shutting_down()
        if name is not None:
            return self._by_name.get(name) or self._add(name)
        known = self._served or [slot for slot in self._slots if slot.model is not None]
        if len(known) != 1:
            raise UnknownModelError(f"the request names no model, and {len(known)} are served", *self._names())
        return known[0]

    def _add(self, name: str) -> ModelSlot:
        if not self._any_name:
            raise UnknownModelError(f"model {_short(name)} is not served here", *self._names())
        if not name or len(name) > 256 or not name.isprintable():
            raise UnknownModelError(f"{_short(name)} is no possible name of a model", "give a hub name or a folder")
        if len(self._slots) >= len(self._served) + MAX_NAMES:
            self._forget()
        slot = self._by_name[name] = ModelSlot(ServedModel(name, (name,)))
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
        if self._max_loaded is None and self._idle_seconds is None:
            return slot.model.submit(request, sink)
        counting = slot.sinks.get(sink)
        if counting is None:
            counting = slot.sinks[sink] = CountingSink(sink, on_empty=partial(self._sink_empty, slot, sink))
        handle = slot.model.submit(request, counting)
        counting.running += 1
        return handle

    def _sink_empty(self, slot: ModelSlot, sink: Sink) -> None:
        slot.sinks.pop(sink, None)
        self._used(slot)

    def _used(self, slot: ModelSlot) -> None:
        slot.last_used = self._clock()
        self._advance()
        if self._idle_seconds is not None and self._timer is None and slot.idle:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self.sweep)

    # Loading and unloading

    def _ensure_loading(self, slot: ModelSlot) -> None:
        """Start a load unless there is one. Raises the error of the last load while it is too early for another."""
        if slot.phase != "unloaded":
            return
        if slot.failure is not None and self._clock() < slot.retry_at:
            raise _copy(slot.failure)
        self._enqueue(slot)
        self._advance()

    def _enqueue(self, slot: ModelSlot) -> None:
        slot.phase = "queued"
        slot.failure = None
        slot.settled.clear()
        self._queue.append(slot)
        slot.publish(LoadProgress(slot.name, "waiting"))

    def _advance(self) -> None:
        """Begin the next load, or the unload that makes room for it, unless another is in progress."""
        if self._transitions or not self._queue or self._closing:
            return
        loaded = [slot for slot in self._slots if slot.model is not None]
        if self._max_loaded is None or len(loaded) < self._max_loaded:
            self._begin_load(self._queue.popleft())
        elif idle := [slot for slot in loaded if slot.idle]:
            self._unload(min(idle, key=lambda slot: slot.last_used))

    def _begin_load(self, slot: ModelSlot) -> None:
        slot.phase = "loading"
        slot.publish(LoadProgress(slot.name, "loading"))
        loop = asyncio.get_running_loop()

        def report(progress: LoadProgress) -> None:
            message = progress.message.replace(slot.served.source, slot.name)  # clients must not see paths
            shown = replace(progress, model=slot.name, phase="loading", message=message)
            loop.call_soon_threadsafe(slot.publish, shown)

        work = loop.run_in_executor(self._worker, self._load, slot.served.source, report)
        self._transitions.add(work)
        work.add_done_callback(partial(self._loaded, slot))

    def _loaded(self, slot: ModelSlot, work: asyncio.Future[LoadedModel]) -> None:
        self._transitions.discard(work)
        if error := work.exception():
            self._failed(slot, error)
        else:
            slot.phase = "ready"
            slot.model = work.result()
            slot.last_used = self._clock()
            read = slot.progress.total_bytes
            slot.publish(replace(slot.progress, phase="ready", done_bytes=read, message=""))
            for handle, request, sink in slot.take_waiting():
                handle.start(partial(self._submit_ready, slot, request, sink))
            if self._closing:
                self._unload(slot)
        slot.settled.set()
        self._used(slot)

    def _failed(self, slot: ModelSlot, error: BaseException) -> None:
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
        for handle, _, _ in slot.take_waiting():
            handle.fail(slot.failure)

    def _unload(self, slot: ModelSlot) -> None:
        assert slot.model is not None
        model, slot.model = slot.model, None
        slot.phase = "unloading"
        work = asyncio.get_running_loop().run_in_executor(self._worker, model.close)
        self._transitions.add(work)
        work.add_done_callback(partial(self._unloaded, slot))

    def _unloaded(self, slot: ModelSlot, work: asyncio.Future[None]) -> None:
        self._transitions.discard(work)
        if error := work.exception():
            _log.error("unloading %s failed", slot.served.source, exc_info=error)
        slot.phase = "unloaded"
        slot.progress = LoadProgress(slot.name, "waiting")
        if not self._closing and (slot.waiting or slot.pins):
            self._enqueue(slot)
        self._advance()

    def _stop(self) -> None:
        """Refuse everything that has not started."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        for slot in self._slots:
            for handle, _, _ in slot.take_waiting():
                handle.fail(_shutting_down())
            slot.settled.set()


def _copy(error: LmtoolError) -> LmtoolError:
    """Return an equal error, to be raised afresh."""
    return type(error)(error.message, *error.hints)


def _shutting_down() -> OverloadedError:
    return OverloadedError("the server is shutting down", "send the request again when it is back")


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "...")


def _nothing() -> None:
    """Nothing to unsubscribe."""
