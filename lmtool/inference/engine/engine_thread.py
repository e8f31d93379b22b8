"""The engine's thread: runs commands and steps, delivers outputs to event loops, frees memory while idle."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from lmtool.core.errors import LmtoolError, ServerError
from lmtool.core.interfaces import Sink
from lmtool.core.types import TokenOutput
from lmtool.inference.engine.device import arrival, step_error
from lmtool.net.subprocesses.resources import release_memory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from lmtool.inference.engine.kv_cache import KVCache
    from lmtool.inference.engine.scheduler import Scheduler


_logger = logging.getLogger(__name__)

Command: TypeAlias = Callable[[], None]
_Outputs: TypeAlias = dict[Sink, list[TokenOutput]]


class Rest(NamedTuple):
    """Work for a time without steps."""

    seconds: float
    """Idle time before this work starts, counted from the end of the work before it."""
    work: Callable[[Callable[[], bool]], None]
    """Is given what tells whether the thread is interrupted, and ends soon then."""


class EngineThread:
    """Runs commands and steps in turn; rests, then sleeps on a condition variable, while there is nothing to do."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        threads: int | None,
        *,
        step: Callable[[], bool],
        finish: Callable[[LmtoolError, Exception | None], None],
        rests: Sequence[Rest] = (),
    ) -> None:
        """threads: CPU threads of a step; None: torch's choice.

        step: computes one step; False when there was nothing to compute. finish: called last, with why nothing more
        will be computed, and with what the thread has failed of. rests: what is done while there is nothing to compute,
        one after the other.
        """
        self._device = device
        self._threads = threads
        self._step = step
        self._finish = finish
        self._rests = rests
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def start(self) -> None:
        """Start the thread; harmless when it runs already."""
        if not self._started:
            self._started = True
            self._thread.start()

    def post(self, command: Command) -> bool:
        """Have the thread run a command before its next step; False when it has ended."""
        with self._wake:
            if self._stopped:
                return False
            self._commands.append(command)
            self._wake.notify()
        return True

    @property
    def interrupted(self) -> bool:
        """True if a command waits, or the thread is to end."""
        return bool(self._commands) or self._closing

    def close(self) -> None:
        """End the thread after the current step. Blocks until it has ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._started:
            self._thread.join()

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # the OpenMP setting is one of the thread, not of the process
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # Triton launches where the thread is
        reason, failure = stopped_error(), None
        try:
            self._work()
        except BaseException as problem:  # a lost device, or a bug of ours: no caller may wait for a dead thread
            _logger.exception("the engine failed and serves nothing more")
            reason = step_error(problem)
            failure = (
                problem if isinstance(problem, Exception) else RuntimeError(f"{type(problem).__name__}: {problem}")
            )
        with self._wake:
            self._stopped = True
        self._run_commands(wait=False)
        self._finish(reason, failure)

    def _work(self) -> None:
        busy = False
        with torch.inference_mode():
            while self._run_commands(wait=not busy):
                busy = self._step()
            arrival(self._device)()  # a step begun ahead uses the model's memory

    def _sleep(self) -> None:
        """Return when something was posted, or the thread is to end; do meanwhile what is for times of rest."""
        for rest in self._rests:
            if self._interrupted_within(rest.seconds):
                return
            rest.work(lambda: self.interrupted)
        self._interrupted_within(None)

    def _interrupted_within(self, seconds: float | None) -> bool:
        with self._wake:
            return self._wake.wait_for(lambda: self.interrupted, seconds)

    def _run_commands(self, *, wait: bool) -> bool:
        """Run what was posted; False when the thread is to end. wait: sleep until something is posted."""
        if wait:
            self._sleep()
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()
        return not self._closing


def stopped_error() -> LmtoolError:
    """Error of streams that end with the engine."""
    return ServerError("the server stopped before the stream's end", "connect again later")


class Outbox:
    """A step's outputs by event loop and sink, in order within a sink: one call into each loop, one of each sink."""

    def __init__(self) -> None:
        self._outputs: dict[asyncio.AbstractEventLoop, _Outputs] = defaultdict(dict)

    def put(self, loop: asyncio.AbstractEventLoop, sink: Sink, output: TokenOutput) -> None:
        """Store an output until the next `flush`."""
        outputs = self._outputs[loop]
        if sink in outputs:
            outputs[sink].append(output)
        else:
            outputs[sink] = [output]

    def flush(self) -> set[asyncio.AbstractEventLoop]:
        """Hand everything over; returns the loops that are closed, whose outputs are lost."""
        closed = {loop for loop, outputs in self._outputs.items() if not _hand_over(loop, outputs)}
        self._outputs.clear()
        return closed


def _hand_over(loop: asyncio.AbstractEventLoop, outputs: _Outputs) -> bool:
    try:
        loop.call_soon_threadsafe(_deliver, loop, outputs)
    except RuntimeError:  # the loop closed, perhaps just now
        if loop.is_closed():
            return False
        raise
    return True


def _deliver(loop: asyncio.AbstractEventLoop, outputs: _Outputs) -> None:
    """In the loop. A sink must not raise; one that does costs its neighbours nothing."""
    for sink, own in outputs.items():
        loop.call_soon(sink, own)


def signal(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    """Set an event of a loop from any thread, unless the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(done.set)


REST_SECONDS = 5.0
"""Without a step, after which memory that no stream needs goes, all but that of the last prompts."""
LONG_REST_SECONDS = 600.0
"""Further seconds, after which that goes too."""
KEPT_CONTEXTS = 8
"""Number of full contexts of keys and values kept in between, for prompts that begin like the last ones."""


@dataclass(frozen=True, slots=True)
class IdleMemory:
    """Keys and values of streams that have ended, and what the C library keeps."""

    scheduler: Scheduler
    cache: KVCache
    context_blocks: int
    """Blocks of a full context."""

    def rests(self) -> Sequence[Rest]:
        """Work of an engine's thread while it is idle."""
        some = partial(self._give_back, KEPT_CONTEXTS * self.context_blocks)
        return Rest(REST_SECONDS, some), Rest(LONG_REST_SECONDS, partial(self._give_back, 0))

    def _give_back(self, keep_blocks: int, interrupted: Callable[[], bool]) -> None:
        """Keep at most so many blocks for prompts that begin alike."""
        for first, count in self.scheduler.forget(keep_blocks):
            self.cache.give_back(first, count)
            if interrupted():
                return
        release_memory()
