"""Loads and unloads models in threads, several beside each other, within a budget."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import LmtoolError, ModelLoadError, OverloadedError, rebuilt
from lmtool.core.types import LoadProgress
from lmtool.inference.engine.model_budget import weight_bytes
from lmtool.net.subprocesses.resources import release_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lmtool.core.interfaces import LoadedModel
    from lmtool.inference.engine.model_budget import ModelBudget
    from lmtool.inference.engine.model_slot import ModelSlot

    Load: TypeAlias = Callable[[str, Callable[[LoadProgress], None]], LoadedModel]

_log = logging.getLogger(__name__)


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
        """Begin to load these models, as far as they fit beside each other; pinned ones go before."""
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
            shown = replace(progress, model=slot.name, phase="loading", message=message)
            loop.call_soon_threadsafe(slot.publish, shown)

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
