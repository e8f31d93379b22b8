"""The engine thread: takes requests, runs steps, and hands each event loop its streams' outputs once a step."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from lmtool.engine.block_allocator import BlockAllocator
from lmtool.engine.cuda.readback import arrival
from lmtool.engine.drawing import Choice
from lmtool.engine.flight import Drawn, Flight, draw
from lmtool.engine.handle import Handle, Wish
from lmtool.engine.masks import Masks
from lmtool.engine.opening import Opening
from lmtool.engine.outbox import Outbox
from lmtool.engine.prefix_cache import PrefixCache, PrefixCounts
from lmtool.engine.scheduler import Scheduler
from lmtool.engine.speculation import StepCost
from lmtool.engine.stream import Stream, failure
from lmtool.errors import LmtoolError, OutOfMemoryError, OverloadedError, ServerError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

    from lmtool.engine.model_runner import ModelRunner
    from lmtool.engine.plan import Limits, Plan
    from lmtool.interfaces import Guide, GuideCompiler, Sink
    from lmtool.types import GenerateRequest, ModelInfo, ScoreRequest, TokenOutput

_logger = logging.getLogger(__name__)

_Command = Callable[[], None]


class Engine:
    """A `TokenModel` over one loaded model: continuous batching in a thread of its own.

    Made by `load_engine`. An idle engine sleeps on a condition variable. What belongs to one stream (a bad request, a
    row of logits that are not numbers) ends that stream; a step that fails ends the streams of that step.
    """

    def __init__(
        self,
        runner: ModelRunner,
        limits: Limits,
        blocks: int,
        info: ModelInfo,
        threads: int | None = None,
        *,
        prefix_cache: bool = True,
        speculation: bool = False,
        jump_forward: bool = True,
        step_ahead: bool = False,
        max_logprobs: int | None = None,
    ) -> None:
        """Make an engine; call `start`.

        blocks: how many the runner's key-value cache has. threads: CPU threads of a step; None: torch's choice.
        The others: see `EngineConfig`. Speculation is lossless only over a runner whose rows do not depend on their
        neighbours; no step is begun ahead beside it, since guesses need ids.
        """
        self._runner: ModelRunner | None = runner
        self._info = info
        self._threads = threads
        self._prefixes = PrefixCache(limits.chunk_tokens) if prefix_cache else None
        self._scheduler = Scheduler(limits, BlockAllocator(blocks), self._prefixes)
        self._cost = StepCost() if speculation else None
        self._opening = Opening(info, runner.device, drafts=speculation, jumps=jump_forward, max_logprobs=max_logprobs)
        self._masks: Masks | None = None
        self._streams: dict[int, Stream] = {}
        self._step_ahead = step_ahead and not speculation
        self._flight: Flight | None = None
        """The next step, where it was begun ahead."""
        self._outbox = Outbox()
        self._inbox: deque[_Command] = deque()
        self._wake = threading.Condition()
        self._accepting = True
        self._closing = False
        self._stopped = False
        self._drained: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None

    @property
    def info_now(self) -> ModelInfo:
        """What is served, with the numbers of streams as they are now."""
        return replace(self._info, running=self._scheduler.running, waiting=self._scheduler.waiting)

    @property
    def prefix_counts(self) -> PrefixCounts:
        """What the prefix cache has brought since the start; all 0 without one."""
        return PrefixCounts() if self._prefixes is None else replace(self._prefixes.counts)

    async def info(self, model: str | None = None) -> ModelInfo:  # noqa: ARG002  # names are the host's business
        """What is served. The engine has one model and answers for it under any name."""
        return self.info_now

    def guide_by(self, guides: GuideCompiler) -> None:
        """Take constraints from now on, compiled by `guides`, which the engine closes with itself."""
        assert self._info.vocab_size is not None
        self._masks = Masks(guides, self._info.vocab_size)
        self._opening.guides = guides

    def start(self) -> None:
        """Start the engine thread; harmless when it runs already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"engine {self._info.model}", daemon=True)
            self._thread.start()

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> Handle:
        """Start a stream; call from a running event loop. See `TokenModel.submit`.

        The prompt must be token ids. GENERATE with an empty prompt starts from the model's bos id. A prompt must
        leave room for one token; a stream that reaches the end of the context ends with `length`. SCORE with an empty
        prompt gives 0.0 for the first token, a placeholder: nothing comes before it.
        """
        loop = asyncio.get_running_loop()
        try:
            if not self._accepting:
                raise OverloadedError("the server is shutting down and takes nothing new", "connect again later")
            stream = self._opening.open(request, sink, loop)
        except LmtoolError as problem:
            loop.call_soon(sink, [failure(request.stream_id, problem)])
            return Handle(_nothing)
        if not self._post(partial(self._begin, stream)):
            loop.call_soon(sink, [stream.failure(_stopped())])
        elif stream.compiling is not None:
            stream.compiling.add_done_callback(lambda _: self._post(partial(self._release, stream)))
        return Handle(lambda wish: self._post(partial(self._obey, stream, wish)))

    async def drain(self, seconds: float) -> int:
        """Accept nothing new and let running streams end; how many still run after so many seconds (0: none)."""
        self._accepting = False
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        if not self._post(lambda: self._drained.append(partial(_signal, loop, done))):
            return 0
        try:
            await asyncio.wait_for(done.wait(), seconds)
        except TimeoutError:
            return len(self._streams)
        return 0

    def close(self) -> None:
        """Stop after the current step, end what still runs with an error, and let go of the model. Blocks briefly."""
        self._accepting = False
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        if self._opening.guides is not None and self._masks is not None:
            self._masks.close()
            self._opening.guides.close()
        self._runner = None

    def _post(self, command: _Command) -> bool:
        """Have the engine thread carry out a command before its next step; False when it has ended."""
        with self._wake:
            if self._stopped:
                return False
            self._inbox.append(command)
            self._wake.notify()
        return True

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # the OpenMP setting is one of the thread, not of the process
        assert self._runner is not None
        if self._runner.device.type == "cuda":
            torch.cuda.set_device(self._runner.device)  # Triton launches where the thread is
        end = _stopped()
        try:
            self._work()
        except Exception as bug:  # a mistake of ours outside a step: nobody may wait for a thread that is gone
            _logger.exception("the engine failed and serves nothing more")
            end = _step_error(bug)
        with self._wake:
            self._stopped = True
        self._take_commands(wait=False)
        self._fail(list(self._streams.values()), end)
        self._flush()

    def _work(self) -> None:
        busy = False
        with torch.inference_mode():
            while self._take_commands(wait=not busy):
                busy = self._step()
                self._flush()
            assert self._runner is not None
            arrival(self._runner.device)()  # what was begun ahead uses the model's memory
            self._flight = None

    def _take_commands(self, *, wait: bool) -> bool:
        """Carry out what arrived; False when the engine closes. wait: sleep until something arrives."""
        with self._wake:
            while wait and not self._inbox and not self._closing:
                self._wake.wait()
            commands = list(self._inbox)
            self._inbox.clear()
        for command in commands:
            command()
        return not self._closing

    def _step(self) -> bool:
        """Compute a step, and send what it brings; False when there was nothing to compute.

        The pass of the step behind it is begun in between, where that can be: a GPU is computing it while this step's
        outcome is read, recorded and sent.
        """
        flight = None if self._flight is None else self._flight.due()
        self._flight = None
        plan = self._plan() if flight is None else flight.plan
        if not plan.spans:
            return False
        streams = [self._streams[span.sequence.number] for span in plan.spans]
        assert self._runner is not None
        try:
            began = time.perf_counter()
            drawn = self._compute(self._runner, plan, streams, flight)
            self._flight = self._run_ahead(self._runner, drawn)
            choices = drawn.choices()
            if self._cost is not None and not plan.chunks:
                self._cost.learn(plan.tokens, time.perf_counter() - began)
            self._finish_step(plan, streams, choices)
        except Exception as problem:
            _logger.exception("a step of %d streams failed", len(streams))
            self._flight = None
            self._fail([stream for stream in streams if self._alive(stream)], _step_error(problem))
        return True

    def _plan(self) -> Plan:
        if self._cost is not None:
            self._propose(self._cost)
        return self._scheduler.plan()

    def _propose(self, cost: StepCost) -> None:
        """Draft what each running stream may say next."""
        decoding = self._scheduler.decoding()
        share = cost.share(len(decoding))
        for sequence in decoding:
            sequence.draft = self._streams[sequence.number].propose(share)

    def _compute(self, runner: ModelRunner, plan: Plan, streams: list[Stream], flight: Flight | None) -> Drawn:
        """What the rows of logits of each stream give. flight: where the logits were begun ahead."""
        own = zip(plan.spans, streams, strict=True)
        drawing = [stream for span, stream in own if span.end >= len(span.sequence.tokens)]
        masks = dict if self._masks is None else self._masks.begin(drawing)
        logits = runner.run(plan) if flight is None else flight.logits
        return draw(plan, streams, logits, masks())

    def _run_ahead(self, runner: ModelRunner, drawn: Drawn) -> Flight | None:
        """Begin the step behind one whose outcome is not read yet, where it is known and no command could change it."""
        if not self._step_ahead or self._inbox or self._closing or len(drawn.counts) > runner.most_ahead:
            return None
        ahead = self._scheduler.plan_ahead(drawn.plan)
        try:
            return None if ahead is None else Flight(ahead, runner.run_ahead(ahead, drawn.ids(ahead)))
        except torch.OutOfMemoryError:
            return None  # as a step of its own it may be computed in parts

    def _finish_step(self, plan: Plan, streams: list[Stream], drawn: list[list[Choice | None]]) -> None:
        parts = [stream.take(own, self._info.model) for stream, own in zip(streams, drawn, strict=True)]
        reasons = self._scheduler.commit(plan, [[choice.token for choice in taken] for taken, _ in parts])
        for stream, (taken, problem), reason in zip(streams, parts, reasons, strict=True):
            last = len(taken) if problem is None else None
            for index, choice in enumerate(taken, start=1):
                self._send(stream, stream.output(choice, reason if index == last else None))
            if problem is not None:
                self._fail([stream], problem)
            elif reason is None and stream.ahead:
                self._jump(stream)
            if stream.guide is not None and stream.guide.slow and taken and self._alive(stream):
                self._look_ahead(stream, stream.guide)

    def _jump(self, stream: Stream) -> None:
        """Send the ids that can only come next, as far as they need no logits."""
        for output in stream.jump():
            if output.last:
                self._scheduler.remove(stream.sequence)
            self._send(stream, output)

    def _release(self, stream: Stream) -> None:
        """The stream's constraint is compiled, or cannot be."""
        if not self._alive(stream):
            return
        assert stream.compiling is not None
        problem = stream.compiling.exception()
        if problem is not None:
            assert isinstance(problem, LmtoolError)
            self._fail([stream], problem)
            return
        stream.guide = stream.compiling.result()
        if stream.guide.slow:
            self._look_ahead(stream, stream.guide)
        else:
            stream.sequence.held = False

    def _look_ahead(self, stream: Stream, guide: Guide) -> None:
        """Let a slow stream wait for its next mask by itself; only then its next step is computed."""
        assert self._masks is not None, "who has a guide has masks"
        stream.sequence.masking = not stream.sequence.held
        stream.looking = looking = self._masks.look_ahead(guide)
        looking.add_done_callback(lambda _: self._post(partial(self._go_on, stream, looking)))

    def _go_on(self, stream: Stream, looking: Future[Tensor]) -> None:
        """The stream's next mask is there."""
        if not self._alive(stream):
            return
        try:
            stream.mask = looking.result()
        except Exception as bug:
            _logger.exception("a mask could not be filled")
            self._fail([stream], _step_error(bug))
        stream.sequence.held = stream.sequence.masking = False

    def _begin(self, stream: Stream) -> None:
        """Queue a new stream, or end it at once if there is nothing to compute."""
        sequence = stream.sequence
        self._streams[sequence.number] = stream
        if sequence.scored:
            self._begin_score(stream)
        elif sequence.max_length == sequence.prompt_length:
            self._send(stream, stream.ending("length"))
        else:
            self._scheduler.add(sequence)

    def _begin_score(self, stream: Stream) -> None:
        sequence = stream.sequence
        if len(sequence.tokens) == sequence.prompt_length:
            self._send(stream, stream.ending("stop"))
            return
        last = sequence.remaining == 0
        if sequence.prompt_length == 0:
            token = sequence.tokens[0]
            top = None if stream.top_logprobs is None else ((token, 0.0),)
            self._send(stream, stream.output(Choice(token, 0.0, top), "stop" if last else None))
        if not last:
            self._scheduler.add(sequence)

    def _obey(self, stream: Stream, wish: Wish) -> None:
        stream.sequence.paused = wish == "pause"
        if wish == "cancel" and self._alive(stream):
            self._scheduler.remove(stream.sequence)
            self._send(stream, stream.ending("cancelled"))

    def _alive(self, stream: Stream) -> bool:
        return stream.sequence.number in self._streams

    def _fail(self, streams: list[Stream], problem: LmtoolError) -> None:
        for stream in streams:
            self._scheduler.remove(stream.sequence)
            self._send(stream, stream.failure(problem))

    def _send(self, stream: Stream, output: TokenOutput) -> None:
        self._outbox.put(stream.loop, stream.sink, output)
        if output.last:
            self._streams.pop(stream.sequence.number, None)
            for awaited in (stream.compiling, stream.looking):
                if awaited is not None:
                    awaited.cancel()

    def _flush(self) -> None:
        """Hand over the step's outputs; streams of a loop that is gone end here."""
        gone = self._outbox.flush()
        for stream in [s for s in self._streams.values() if s.loop in gone]:
            self._scheduler.remove(stream.sequence)
            del self._streams[stream.sequence.number]
        if not self._streams:
            for signal in self._drained:
                signal()
            self._drained.clear()


def _nothing(_wish: Wish) -> None:
    """A refused stream has ended already."""


def _signal(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(done.set)


def _stopped() -> LmtoolError:
    return ServerError("the server stopped before the stream's end", "connect again later")


def _step_error(problem: Exception) -> LmtoolError:
    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return OutOfMemoryError("the device ran out of memory in this step", "try again, or with fewer tokens")
    return ServerError(f"the model failed in this step: {type(problem).__name__}", "see the server's log")
