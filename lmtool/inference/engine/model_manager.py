"""Loads models on demand, queues their requests meanwhile, and unloads idle ones."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import LmtoolError, OverloadedError, RequestError, UnknownModelError, unnamed_model
from lmtool.core.interfaces import current_limits, tokenizer_of
from lmtool.core.model_usage import ModelUsage, usage_of
from lmtool.core.prompt_limits import limits_of, widest
from lmtool.core.streams import DeferredHandle, refuse
from lmtool.core.types import LoadProgress
from lmtool.inference.engine.model_budget import ModelBudget
from lmtool.inference.engine.model_slot import CountingSink, ModelSlot
from lmtool.inference.engine.model_transitions import ModelTransitions, copied, shutting_down

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.interfaces import Sink, StreamHandle, Tokenizer, Unsubscribe
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.prompt_limits import LimitsByModel, PromptLimits
    from lmtool.core.types import GenerateRequest, ModelInfo, ScoreRequest
    from lmtool.inference.engine.model_slot import ServedModel
    from lmtool.inference.engine.model_transitions import Load

    Request: TypeAlias = GenerateRequest | ScoreRequest

_PATH = re.compile(r"(?<=')/[^']*(?=')")
"""Of the folder that a client's own name was downloaded to: clients must not see paths."""
MAX_NAMES = 256
"""Most names that clients may make known, where that is allowed, beside the served ones."""


class ModelManager:
    """An `interfaces.TokenModel`, `ProgressSource`, `Catalogue` and `ModelControl` over any number of models.

    Loads run beside each other within the budget. Requests for a model on its way wait in order. A failed load fails
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
        """Begin to load these served models (None: all), in order, as far as they fit beside each other.

        Returns the names of those. Raises `UnknownModelError`.
        """
        slots = self._served if names is None else [self._find(name) for name in names]
        return [slot.name for slot in self._transitions.preload(slots)]

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream, see `interfaces.TokenModel.submit`; it waits while its model is on its way into memory."""
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
            raise OverloadedError(f"{slot.name} is on its way into memory", "unload it when it is there")
        if slot.model is not None and not slot.idle:
            count = "1 stream runs" if slot.streams == 1 else f"{slot.streams} streams run"
            use = count if slot.streams else "it is being described"
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
        """What each model in memory or on its way does and holds, by its name."""
        found = {}
        for slot in self._slots:
            if slot.model is not None or slot.waiting:
                own = ModelUsage(0, 0) if slot.model is None else usage_of(slot.model)
                waiting = own.waiting + len(slot.waiting)
                weights = None if slot.model is None else slot.memory_bytes
                found[slot.name] = own._replace(waiting=waiting, weights_bytes=weights)
        return found

    @property
    def can_answer(self) -> bool:
        """See `interfaces.Available`: not where the last load of each model has failed."""
        now = self._clock()
        entries = [slot.entry(now) for slot in self._served]
        return not entries or any(entry.phase != "failed" for entry in entries)

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
            raise UnknownModelError(f"{_short(name)} is no possible name of a model", "give a hub name")
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
