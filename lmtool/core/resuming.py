"""A token model over another that goes on with streams whose connection was lost, or that have fallen silent."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lmtool.core.errors import ConnectError, OverloadedError, TimeLimitError
from lmtool.core.greedy_continuation import follows_from_ids, rest_as_prompt
from lmtool.core.interfaces import began_at, client_of, place_of
from lmtool.core.streams import Deadlines, error_of, failure, renamed
from lmtool.core.types import GenerateRequest, TokenOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.core.interfaces import QueuePlace, Sink, StreamHandle, TokenModel
    from lmtool.core.types import ModelInfo, ScoreRequest, StreamId, Usage

    Request = GenerateRequest | ScoreRequest

_MOST_DOUBLINGS = 30
_JITTER = 0.25
"""Part of a pause by which it may be longer, so that many clients do not return at once."""


STREAM_SECONDS = 600.0
"""Longest silence of a server about a stream, by default."""


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """When a stream is repeated."""

    retries: int = 4
    """Most repetitions in a row that bring no token; 0 repeats nothing."""
    token_timeout: float | None = 60.0
    """Seconds without a token, after the first one, before a stream is cancelled and repeated; None: any number."""
    first_token_timeout: float = STREAM_SECONDS
    """The same before the first token, and without a notice of load or queue: kept by the client that hears those."""
    backoff: float = 1.0
    """Seconds before the second repetition in a row, twice as long before each further one; the first is at once."""
    longest_pause: float = 30.0
    """Seconds before any repetition, at most."""
    park_after: float | None = None
    """Seconds after which a paused stream ends where it runs, to go on when it is resumed; None: it waits here."""


@runtime_checkable
class Rerouting(Protocol):
    """A `TokenModel` over several servers, which decides whether and where a stream goes on."""

    def may_go_on(self, handle: StreamHandle, error: LmtoolError, *, has_output: bool) -> bool:
        """True if a stream may be submitted again. handle: of the attempt that ended so.

        has_output: whether it has brought anything, so that another server must give it the same bits.
        """

    def go_on(self, request: Request, sink: Sink, handle: StreamHandle, *, has_output: bool) -> StreamHandle:
        """Submit what is missing of a stream, as `submit`; the two others as in `may_go_on`."""


class Resuming:
    """An `interfaces.TokenModel` over one that may lose its connection, such as `lmtp.client.LmtpClient`.

    A stream that ends with the error `connection` is begun again from where it stood, with `generated` and the seed
    that the server has told (SPEC.md, GEN-17 and GEN-18), so that its reader gets each token once, as if nothing had
    happened; a deadline counts over all attempts. A SCORE is repeated whole. Of a stream that has brought tokens and
    whose server told no seed, because it cannot go on with one, a greedy one is sent again as prompt plus received ids,
    see `greedy_continuation`; any other ends with the error.
    """

    def __init__(
        self,
        inner: TokenModel,
        options: ResumeOptions | None = None,
        on_repeat: Callable[[LmtoolError], None] | None = None,
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> None:
        """inner: connects again by itself, or is `Rerouting`. on_repeat: called with the reason of each repetition.

        may_repeat: whether there is a server to go on with, such as `LmtpClient.answered`: where none was ever reached
        errors are handed on as they come.
        """
        self.inner = inner
        self.rerouting = inner if isinstance(inner, Rerouting) else None
        self.may_repeat = may_repeat
        self.options = options or ResumeOptions()
        self.on_repeat = on_repeat
        self._channels: dict[Sink, _Channel] = {}

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream, see `interfaces.TokenModel.submit`; equal sinks count as one."""
        unlimited = self.options.retries == 0 and self.options.token_timeout is None
        if unlimited or (isinstance(request, GenerateRequest) and request.prefill_only):
            return self.inner.submit(request, sink)
        channel = self._channels.get(sink)
        if channel is None:
            channel = self._channels[sink] = _Channel(self, sink, partial(self._channels.pop, sink, None))
        return channel.start(request)

    async def info(self, model: str | None = None) -> ModelInfo:
        """The inner model's description."""
        return await self.inner.info(model)


@dataclass(eq=False)
class _Channel:
    """The streams of one sink: one call of it for each call by the inner model."""

    owner: Resuming
    sink: Sink
    on_empty: Callable[[], object]

    def __post_init__(self) -> None:
        self.client = client_of(self.sink)
        self._numbers = count()
        self._attempts: dict[StreamId, _Stream] = {}
        """Streams by the id of their present attempt: what an attempt sends after it was given up is dropped."""
        self._deadlines = Deadlines()
        self._running = 0

    def start(self, request: Request) -> StreamHandle:
        """Begin a new stream."""
        self._running += 1
        stream = _Stream(self, request)
        stream.begin()
        self._deadlines.start(request, stream)
        return stream

    def enter(self, stream: _Stream) -> StreamId:
        """A new attempt of a stream; its id for the inner model."""
        number = next(self._numbers)
        self._attempts[number] = stream
        return number

    def leave(self, attempt: StreamId) -> None:
        """Give an attempt up."""
        self._attempts.pop(attempt, None)

    def end(self, outputs: Sequence[TokenOutput]) -> None:
        """Hand on outputs; forget the streams that end with them."""
        if outputs:
            self.sink(self._deadlines.apply(outputs))
        self._running -= sum(output.last for output in outputs)
        if not self._running:
            self.on_empty()

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take the inner model's outputs of one step, see `Sink`."""
        shown = []
        for output in outputs:
            stream = self._attempts.get(output.stream_id)
            if stream is not None and (event := stream.show(output)) is not None:
                shown.append(event)
        self.end(shown)


class _Stream:
    """One stream, over all its attempts; its submitter's handle as well."""

    def __init__(self, channel: _Channel, request: Request) -> None:
        self._channel = channel
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._ids: list[int] = []
        """Tokens handed on."""
        self._begun = False
        """True if anything was handed on."""
        self._seed: int | None = None
        """What the server has told; None where it cannot go on with the stream."""
        self._repetitions = 0  # in a row, without an output between
        self._before = 0
        """Tokens that were handed on before the present attempt."""
        self._thoughts = self._thoughts_before = 0  # tokens of a thought, in all and before the present attempt
        self._repeated_outputs = 0
        """Outputs of the present attempt that were handed on before: of a SCORE, which is repeated whole."""
        self._attempt: StreamId = None
        self._handle: StreamHandle | None = None
        """Of the present attempt; None between two."""
        self._last_handle: StreamHandle | None = None  # of the attempt before
        self._pause_timer: asyncio.TimerHandle | None = None  # begins the next attempt
        self._silence_timer: asyncio.TimerHandle | None = None
        self._park_timer: asyncio.TimerHandle | None = None
        self._last_output = 0.0  # when it came, in the loop's time
        self._paused = self._parked = self._cancelled = self._ended = False

    # The submitter's handle.

    def cancel(self) -> None:
        """End the stream."""
        if self._cancelled or self._ended:
            return
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()
            return
        _stop(self._pause_timer)
        self._loop.call_soon(self._end_between_attempts)

    def pause(self) -> None:
        """Produce nothing more until `resume`."""
        self._paused = True
        if self._handle is not None:
            self._handle.pause()
            seconds = self._channel.owner.options.park_after
            if seconds is not None and self._park_timer is None and isinstance(self._request, GenerateRequest):
                self._park_timer = self._loop.call_later(seconds, self._park)

    def _park(self) -> None:
        handle, self._park_timer = self._handle, None
        if handle is not None and self._can_go_on and not self._cancelled:
            self._leave()
            self._parked = True
            handle.cancel()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        self._last_output = self._loop.time()
        _stop(self._park_timer)
        self._park_timer = None
        if self._parked and not self._cancelled:
            self._parked = False
            self.begin()
        elif self._handle is not None:
            self._handle.resume()

    def queue_place(self) -> QueuePlace | None:
        """Where the present attempt waits, see `interfaces.Queued`."""
        return place_of(self._handle)

    def began_at(self) -> float | None:
        """When the turn of the present attempt came, or of the last one; see `interfaces.Timed`."""
        return began_at(self._handle or self._last_handle)  # outputs of one step are handed on behind its last one

    def begin(self) -> None:
        """Submit the stream from where it stands."""
        self._pause_timer = None
        self._attempt = self._channel.enter(self)
        self._before, self._thoughts_before = len(self._ids), self._thoughts
        self._repeated_outputs = 0 if isinstance(self._request, GenerateRequest) else len(self._ids)
        self._handle = self._submit(self._request_now(), self._channel)
        if self._paused:
            self.pause()
        self._watch()

    def _submit(self, request: Request, sink: Sink) -> StreamHandle:
        last, self._last_handle = self._last_handle, None
        if last is None or self._channel.owner.rerouting is None:
            return self._channel.owner.inner.submit(request, sink)
        return self._channel.owner.rerouting.go_on(request, sink, last, has_output=self._begun)

    def _request_now(self) -> Request:
        """The request for what is missing."""
        request = self._request
        if not isinstance(request, GenerateRequest):
            return replace(request, stream_id=self._attempt)
        sampling = request.sampling
        if self._ids:
            sampling = replace(sampling, seed=self._seed)
        generated = (*request.generated, *self._ids)
        if self._ids and self._seed is None:
            return replace(rest_as_prompt(request, self._ids), stream_id=self._attempt)
        resumable = request.resumable or self._channel.owner.options.retries > 0
        return replace(request, stream_id=self._attempt, sampling=sampling, generated=generated, resumable=resumable)

    def show(self, output: TokenOutput) -> TokenOutput | None:
        """The submitter's view of the present attempt's next output; None where there is none, or it is repeated."""
        if output.error is not None:
            return self._fail(error_of(output), output)
        if self._repeated_outputs and output.token is not None:
            self._repeated_outputs -= 1
            return None
        self._repetitions = 0
        seed = self._told_seed(output)
        self._begun = True
        if output.token is not None:
            self._ids.append(output.token)
            self._thoughts += output.reasoning is not None
        if output.last:
            self._close()
        else:
            self._watch()
        usage = self._usage(output)
        if usage is output.usage and seed == output.seed:
            return renamed(output, self._request.stream_id)
        return replace(output, stream_id=self._request.stream_id, usage=usage, seed=seed)

    def _told_seed(self, output: TokenOutput) -> int | None:
        """Learn the seed; return it where the submitter asked for it and has not been told."""
        if output.seed is not None:
            self._seed = output.seed
        asked = isinstance(self._request, GenerateRequest) and self._request.resumable
        return self._seed if asked and not self._begun else None

    def _usage(self, output: TokenOutput) -> Usage | None:
        """The usage of all attempts: tokens that earlier ones brought are not part of the last one's."""
        usage = output.usage
        if usage is None or not self._before or not isinstance(self._request, GenerateRequest):
            return usage
        prompt = usage.prompt_tokens - (self._before if self._seed is None else 0)
        tokens, thoughts = usage.completion_tokens + self._before, usage.reasoning_tokens + self._thoughts_before
        return replace(usage, prompt_tokens=prompt, completion_tokens=tokens, reasoning_tokens=thoughts)

    def _fail(self, error: LmtoolError, output: TokenOutput) -> TokenOutput | None:
        """Repeat the stream, or end it with the error."""
        if self._cancelled:
            self._close()
            return TokenOutput(self._request.stream_id, finish_reason="cancelled")
        if self._may_repeat(error):
            self._repeat(error)
            return None
        self._close()
        return replace(output, stream_id=self._request.stream_id)

    def _may_repeat(self, error: LmtoolError) -> bool:
        """Not after a pause that is longer than the options allow, nor where the server says that it is of no use.

        An overloaded server is on its way down or up, or a balancer without a worker.
        """
        options, rerouting = self._channel.owner.options, self._channel.owner.rerouting
        if self._repetitions >= options.retries or not self._can_go_on or not self._channel.owner.may_repeat():
            return False
        if rerouting is not None and self._handle is not None:
            return rerouting.may_go_on(self._handle, error, has_output=self._begun)
        lost = isinstance(error, ConnectError | TimeLimitError | OverloadedError)
        return lost and error.retryable and error.retry_after <= options.longest_pause

    @property
    def _can_go_on(self) -> bool:
        """True if another attempt would bring the rest and nothing else."""
        request = self._request
        if not self._begun or self._seed is not None or not isinstance(request, GenerateRequest):
            return True
        return self._channel.owner.rerouting is None and follows_from_ids(request)

    def _repeat(self, error: LmtoolError) -> None:
        self._leave()
        self._repetitions += 1
        options = self._channel.owner.options
        doubled = options.backoff * 2 ** min(self._repetitions - 2, _MOST_DOUBLINGS)
        pause = 0.0 if self._repetitions == 1 else min(doubled, options.longest_pause)
        asked = 0 if self._channel.owner.rerouting is not None else error.retry_after  # by the server that is left
        pause = max(pause, asked) * (1 + random.random() * _JITTER)  # noqa: S311  # no secret
        self._pause_timer = self._loop.call_later(pause, self.begin)
        if self._channel.owner.on_repeat is not None:
            self._channel.owner.on_repeat(error)

    def _leave(self) -> None:
        """Give the present attempt up."""
        self._channel.leave(self._attempt)
        self._last_handle, self._handle = self._handle, None
        _stop(self._silence_timer, self._park_timer)
        self._silence_timer = self._park_timer = None

    def _close(self) -> None:
        self._leave()
        self._ended = True

    def _end_between_attempts(self) -> None:
        self._close()
        self._channel.end([TokenOutput(self._request.stream_id, finish_reason="cancelled")])

    def _watch(self) -> None:
        """Note that something came, or was asked for, and see to it that silence is noticed."""
        self._last_output = self._loop.time()
        timeout = self._channel.owner.options.token_timeout
        if self._silence_timer is None and timeout is not None and self._begun:
            self._silence_timer = self._loop.call_later(timeout, self._listen)

    def _listen(self) -> None:
        """Cancel and repeat the stream if it has been silent for too long; else listen on."""
        timeout, self._silence_timer = self._channel.owner.options.token_timeout, None
        if timeout is None or self._cancelled:
            return
        silent = 0.0 if self._paused else self._loop.time() - self._last_output
        if silent < timeout:
            self._silence_timer = self._loop.call_later(timeout - silent, self._listen)
            return
        handle, error = self._handle, TimeLimitError(f"no token within {timeout:g} s")
        self._channel.leave(self._attempt)
        if handle is not None:
            handle.cancel()
        if (output := self._fail(error, failure(self._request.stream_id, error))) is not None:
            self._channel.end([output])


def _stop(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
