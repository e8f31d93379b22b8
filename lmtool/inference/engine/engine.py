"""The engine: takes requests, runs steps in its thread, and hands each event loop its streams' outputs once a step."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from lmtool.core.errors import LmtoolError, OverloadedError, ServerError
from lmtool.core.interfaces import QueuePlace
from lmtool.core.model_usage import ModelUsage
from lmtool.core.streams import refuse
from lmtool.inference.engine.device import raise_if_lost, release, step_error
from lmtool.inference.engine.engine_thread import EngineThread, IdleMemory, Outbox, signal, stopped_error
from lmtool.inference.engine.prefix_cache import BlockAllocator, PrefixCache
from lmtool.inference.engine.queue_estimate import QueueEstimate
from lmtool.inference.engine.request_checks import clamp_logprobs
from lmtool.inference.engine.sampling_result import SampledToken, SamplingResult
from lmtool.inference.engine.scheduler import Scheduler
from lmtool.inference.engine.speculation import StepCost
from lmtool.inference.engine.step import MaskFiller, RunAheadStep, SampledStep, run_ahead, sample_step
from lmtool.inference.engine.stream import Handle, StreamFactory

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from torch import Tensor

    from lmtool.core.interfaces import Guide, GuideCompiler, Sink, StreamHandle
    from lmtool.core.types import GenerateRequest, ModelInfo, ScoreRequest, TokenOutput
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.model_runner import ModelRunner
    from lmtool.inference.engine.plan import Limits, Plan
    from lmtool.inference.engine.stream import Control, Stream

_logger = logging.getLogger(__name__)


class Engine:
    """A `TokenModel` over one loaded model: continuous batching in a thread of its own.

    Made by `load_engine`. What belongs to one stream (a bad request, a row of logits that are not numbers) ends that
    stream; a step that fails ends the streams of that step. A device that is lost for good ends all, see `on_lost`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        limits: Limits,
        blocks: int,
        info: ModelInfo,
        config: EngineConfig,
    ) -> None:
        """Make an engine; call `start`.

        blocks: of the runner's key-value cache. config: `threads` and all that is up to the engine itself. Speculation,
        which needs rows that are independent, excludes running ahead.
        """
        self._runner: ModelRunner | None = runner
        self._info = replace(info, max_top_logprobs=clamp_logprobs(2**31, info, config.max_logprobs))
        prefixes = PrefixCache(limits.chunk_tokens) if config.prefix_cache else None
        self._scheduler = Scheduler(limits, BlockAllocator(blocks), prefixes)
        self._cost = StepCost() if config.speculation else None
        self._estimate = QueueEstimate(limits.max_streams)
        self._factory = StreamFactory(info, runner.device, config)
        self._masks: MaskFiller | None = None
        self._streams: dict[int, Stream] = {}
        self._step_ahead = config.step_ahead and not config.speculation
        self._next_step: RunAheadStep | None = None
        """The next step, where it was begun ahead."""
        self._outbox = Outbox()
        self._accepting = True
        self._on_drained: list[Callable[[], None]] = []
        self._on_lost: Callable[[Exception], None] | None = None
        idle = IdleMemory(self._scheduler, runner.cache, -(-(info.context_length or 0) // limits.block_tokens))
        step, finish, name = self._step_and_flush, self._end_all, f"engine {info.model}"
        self._thread = EngineThread(name, runner.device, config.threads, step=step, finish=finish, rests=idle.rests())

    @property
    def info_now(self) -> ModelInfo:
        """The model's description, with the current numbers of streams."""
        return replace(self._info, running=self._scheduler.running, waiting=self._scheduler.waiting)

    @property
    def usage_now(self) -> ModelUsage:
        """Current usage, see `model_usage.Measured`."""
        size = None if self._runner is None else self._runner.block_bytes
        held = () if size is None else (count * size for count in self._scheduler.blocks)
        return ModelUsage(self._scheduler.running, self._scheduler.waiting, *held)

    async def info(self, model: str | None = None) -> ModelInfo:  # noqa: ARG002  # names are the host's business
        """The model's description. The engine has one model and answers for it under any name."""
        return self.info_now

    def set_guide_compiler(self, guides: GuideCompiler) -> None:
        """Accept constraints from now on, compiled by `guides`, which the engine closes with itself."""
        assert self._info.vocab_size is not None
        self._masks = MaskFiller(guides, self._info.vocab_size)
        self._factory.guides = guides

    def on_lost(self, listener: Callable[[Exception], None]) -> None:
        """Call `listener` once, in the engine thread, when nothing can be computed any more, with the reason."""
        self._on_lost = listener

    def start(self) -> None:
        """Start the engine thread; harmless when it runs already."""
        self._thread.start()

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream; call from a running event loop. See `TokenModel.submit`.

        The prompt must be token ids. GENERATE with an empty prompt starts from the model's bos id. A prompt must
        leave room for one token; a stream that reaches the end of the context ends with `length`. SCORE with an empty
        prompt gives 0.0 for the first token, a placeholder: nothing comes before it.
        """
        loop = asyncio.get_running_loop()
        try:
            if not self._accepting:
                raise OverloadedError("the server is shutting down and takes nothing new", "connect again later")
            stream = self._factory.create(request, sink, loop)
        except LmtoolError as problem:
            return refuse(request.stream_id, sink, problem)
        if not self._post(stream, self._begin):
            return refuse(request.stream_id, sink, stopped_error())
        if stream.pending_guide is not None:
            stream.pending_guide.add_done_callback(lambda _: self._post(stream, self._guide_ready))
        return Handle(partial(self._post, stream, self._control), partial(self._place, stream), stream)

    def _post(self, stream: Stream, command: Callable[..., None], *arguments: object) -> bool:
        """Have the thread carry out a command about a stream before its next step; False where it has ended."""
        return self._thread.post(partial(self._carry_out, stream, command, *arguments))

    def _place(self, stream: Stream) -> QueuePlace | None:
        place = self._scheduler.place(stream.sequence)
        return None if place is None else QueuePlace(place, self._estimate.seconds(place))

    async def drain(self, seconds: float) -> int:
        """Accept nothing new and let running streams end; how many still run after this many seconds (0: none)."""
        self._accepting = False
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        if not self._thread.post(lambda: self._on_drained.append(partial(signal, loop, done))):
            return 0
        try:
            await asyncio.wait_for(done.wait(), seconds)
        except TimeoutError:
            return len(self._streams)
        return 0

    def close(self) -> None:
        """Stop after the current step, end running streams with an error, and release the model. Blocks briefly."""
        self._accepting = False
        self._thread.close()
        if self._factory.guides is not None and self._masks is not None:
            self._masks.close()
            self._factory.guides.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
            release()

    # All below runs in the engine thread.

    def _step_and_flush(self) -> bool:
        busy = self._step()
        self._flush()
        return busy

    def _carry_out(self, stream: Stream, command: Callable[..., None], *arguments: object) -> None:
        """Run a command; an error here, outside a step, ends this stream alone."""
        try:
            command(stream, *arguments)
        except BaseException as bug:  # a panic of a library in Rust is no `Exception`
            _logger.exception("a stream failed between two steps")
            if self._alive(stream):
                self._fail([stream], step_error(bug))

    def _end_all(self, reason: LmtoolError, failure: Exception | None) -> None:
        self._next_step = None
        self._fail(list(self._streams.values()), reason)
        self._flush()
        if failure is not None and self._on_lost is not None:
            self._on_lost(failure)

    def _step(self) -> bool:
        """Compute a step and put its outputs out; False when there was nothing to compute.

        The pass of the step after it is begun in between, where that can be: a GPU is computing it while this step's
        outcome is read, recorded and sent.
        """
        ahead = None if self._next_step is None else self._next_step.still_valid()
        self._next_step = None
        plan = self._plan() if ahead is None else ahead.plan
        if not plan.spans:
            return False
        streams = [self._streams[span.sequence.number] for span in plan.spans]
        assert self._runner is not None
        try:
            began = time.perf_counter()
            step = self._compute(self._runner, plan, streams, ahead)
            self._next_step = self._run_ahead(self._runner, step)
            tokens = step.read()
            if self._cost is not None and not plan.chunks:
                self._cost.learn(plan.tokens, time.perf_counter() - began)
            self._finish_step(plan, streams, tokens)
        except BaseException as problem:  # a panic of a library in Rust is no `Exception`
            _logger.exception("a step of %d streams failed", len(streams))
            self._next_step = None
            raise_if_lost(self._runner.device, problem)
            self._fail([stream for stream in streams if self._alive(stream)], step_error(problem))
        return True

    def _plan(self) -> Plan:
        if self._cost is not None:
            decoding = self._scheduler.decoding()
            share = self._cost.share(len(decoding))
            for sequence in decoding:
                sequence.draft = self._streams[sequence.number].propose(share)
        admissions, plan, now = self._scheduler.admissions, self._scheduler.plan(), time.perf_counter()
        if self._scheduler.admissions > admissions:
            for span in plan.spans:
                stream = self._streams[span.sequence.number]
                stream.began_at = stream.began_at or now
        self._estimate.learn(self._scheduler, plan, now)
        return plan

    def _compute(
        self, runner: ModelRunner, plan: Plan, streams: list[Stream], ahead: RunAheadStep | None
    ) -> SampledStep:
        """Sample from the logits of each stream. ahead: where the step was begun ahead, perhaps sampled, too."""
        outcome = None if ahead is None else ahead.outcome
        if isinstance(outcome, SamplingResult):
            return SampledStep(plan, [1] * len(streams), outcome)
        masks: Callable[[], dict[Stream, Tensor]] = dict
        if self._masks is not None:
            spans = zip(plan.spans, streams, strict=True)
            masks = self._masks.start([s for span, s in spans if s.guide and span.end >= len(s.sequence.tokens)])
        return sample_step(plan, streams, runner.run(plan) if outcome is None else outcome, masks())

    def _run_ahead(self, runner: ModelRunner, step: SampledStep) -> RunAheadStep | None:
        """Begin the step after one whose outcome is not read yet, where it is known and no command could change it."""
        if not self._step_ahead or self._thread.interrupted or len(step.counts) > runner.max_ahead_rows:
            return None
        plan = self._scheduler.plan_ahead(step.plan)
        if plan is None:
            return None
        streams = [self._streams[span.sequence.number] for span in plan.spans]
        try:
            return run_ahead(runner, step, plan, streams)
        except torch.OutOfMemoryError:
            return None  # as a step of its own it may be computed in parts

    def _finish_step(self, plan: Plan, streams: list[Stream], tokens: list[list[SampledToken | None]]) -> None:
        model, put = self._info.model, self._outbox.put
        parts = [stream.accept(own, model) for stream, own in zip(streams, tokens, strict=True)]
        reasons = self._scheduler.commit(plan, [[one.token for one in accepted] for accepted, _ in parts])
        for stream, (accepted, problem), reason in zip(streams, parts, reasons, strict=True):
            last = accepted.pop() if accepted and reason is not None and problem is None else None
            for one in accepted:
                put(stream.loop, stream.sink, stream.output(one, None))
            if problem is not None:
                if isinstance(problem, ServerError):  # what its keys and values are, too, is not known
                    self._scheduler.discard(stream.sequence)
                self._fail([stream], problem)
            elif reason is not None:
                self._send(stream, stream.ending(reason) if last is None else stream.output(last, reason))
            elif stream.forced_tokens:
                self._send_forced(stream)
            if stream.guide is not None and stream.guide.slow and accepted and self._alive(stream):
                self._prefetch_mask(stream, stream.guide)

    def _send_forced(self, stream: Stream) -> None:
        """Send the ids that the constraint forces, as far as they need no logits."""
        for output in stream.take_forced_tokens():
            if output.last:
                self._scheduler.remove(stream.sequence)
            self._send(stream, output)

    def _guide_ready(self, stream: Stream) -> None:
        """Go on with a stream whose constraint is compiled, or cannot be."""
        if not self._alive(stream):
            return
        assert stream.pending_guide is not None
        problem = stream.pending_guide.exception()
        if problem is not None:
            assert isinstance(problem, LmtoolError)
            self._fail([stream], problem)
            return
        stream.guide = stream.pending_guide.result()
        if stream.resumes:
            self._resume(stream)
        if not self._alive(stream):
            return
        if stream.guide.slow:
            self._prefetch_mask(stream, stream.guide)
        else:
            stream.sequence.awaiting_constraint = False

    def _resume(self, stream: Stream) -> None:
        """Queue a constrained stream that continues, its constraint advanced over what it has, or end it."""
        problem = stream.advance_over_generated()
        if problem is not None:
            self._fail([stream], problem)
            return
        stream.sequence.awaiting_constraint = False
        self._queue(stream)
        if self._alive(stream):
            self._send_forced(stream)

    def _prefetch_mask(self, stream: Stream, guide: Guide) -> None:
        """Let a slow stream wait for its next mask by itself; only then its next step is computed."""
        assert self._masks is not None, "a stream with a guide needs masks"
        stream.sequence.awaiting_mask = not stream.sequence.awaiting_constraint
        stream.pending_mask = pending = self._masks.prefetch(guide)
        pending.add_done_callback(lambda _: self._post(stream, self._mask_ready, pending))

    def _mask_ready(self, stream: Stream, pending: Future[Tensor]) -> None:
        if not self._alive(stream):
            return
        try:
            stream.mask = pending.result()
        except Exception as bug:
            _logger.exception("a mask could not be filled")
            self._fail([stream], step_error(bug))
        stream.sequence.awaiting_constraint = stream.sequence.awaiting_mask = False

    def _begin(self, stream: Stream) -> None:
        """Queue a new stream, or end it at once if there is nothing to compute."""
        sequence = stream.sequence
        self._streams[sequence.number] = stream
        if sequence.scoring:
            self._begin_score(stream)
        elif not (stream.resumes and sequence.awaiting_constraint):  # else once that is known to allow what it has
            self._queue(stream)

    def _queue(self, stream: Stream) -> None:
        """Let a GENERATE wait for its turn, or end it at once if there is nothing to compute."""
        sequence = stream.sequence
        none_left = sequence.max_length == sequence.prompt_length
        reason = "length" if none_left else sequence.finish_reason(recorded=stream.resumes)
        if reason is None:
            self._scheduler.add(sequence)
        else:
            self._send(stream, stream.ending(reason))

    def _begin_score(self, stream: Stream) -> None:
        sequence = stream.sequence
        if len(sequence.tokens) == sequence.prompt_length:
            self._send(stream, stream.ending("stop"))
            return
        last = sequence.remaining == 0
        if sequence.prompt_length == 0:
            token = sequence.tokens[0]
            top = None if stream.top_logprobs is None else ((token, 0.0),)
            self._send(stream, stream.output(SampledToken(token, 0.0, top), "stop" if last else None))
        if not last:
            self._scheduler.add(sequence)

    def _control(self, stream: Stream, control: Control) -> None:
        stream.sequence.paused = control == "pause"
        if control == "cancel" and self._alive(stream):
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
            for pending in (stream.pending_guide, stream.pending_mask):
                if pending is not None:
                    pending.cancel()

    def _flush(self) -> None:
        """Hand over the step's outputs; streams of a closed loop end here."""
        closed = self._outbox.flush()
        for stream in [s for s in self._streams.values() if s.loop in closed] if closed else ():
            self._scheduler.remove(stream.sequence)
            del self._streams[stream.sequence.number]
        if not self._streams:
            for signal in self._on_drained:
                signal()
            self._on_drained.clear()
