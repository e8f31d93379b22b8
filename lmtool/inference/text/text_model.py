"""A token model that also handles text: prompts and messages in, whole characters out, stop strings matched."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import LmtoolError, RequestError, ResourceError, ServerError
from lmtool.core.fingerprint import fingerprint
from lmtool.core.interfaces import LoadedModel, began_at, client_of, current_limits, place_of
from lmtool.core.model_usage import usage_of
from lmtool.core.prompt_limits import limits_of
from lmtool.core.streams import DeferredHandle, failure, refuse
from lmtool.core.types import ChatPrompt, GenerateRequest, SamplingParams, TokenOutput, Usage
from lmtool.inference.text.reasoning_parsers import find_parser
from lmtool.inference.text.stop_strings import StopStrings
from lmtool.inference.text.workers import LONG, prompt_size, run_in_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from lmtool.core.interfaces import (
        AnswerCheck,
        Detokenizer,
        QueuePlace,
        Sink,
        StreamHandle,
        Tokenizer,
        TokenModel,
        Verdict,
    )
    from lmtool.core.model_usage import ModelUsage
    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.core.reasoning import ThoughtMarks
    from lmtool.core.types import ModelInfo, ScoreRequest, StreamId
    from lmtool.inference.text.reasoning_parser import ThoughtReader


_TAIL = 16
"""Number of ids at the end of a prompt, before a prefill, searched for an open thought."""
_BYTES_PER_CHARACTER = 4
"""Most bytes of a character in UTF-8, and so most ids of a character."""


class PreparedRequest:
    """A request with ids in place of texts, and the state that turns its outputs back into text."""

    __slots__ = (
        "_tokenizer", "check", "constraint", "detokenizer", "marks", "prompt_tokens", "reader", "request",
        "shows_text", "stop_ids", "stops", "written",
    )  # fmt: skip

    def __init__(
        self, request: GenerateRequest | ScoreRequest, tokenizer: Tokenizer, check: AnswerCheck | None
    ) -> None:
        """Tokenize. Raises `RequestError` for messages that cannot be rendered and for invalid stop strings.

        check: validates the answer.
        """
        self._tokenizer = tokenizer
        sampling = request.sampling if isinstance(request, GenerateRequest) else SamplingParams()
        stops = sampling.stop
        self.stop_ids = sampling.stop_token_ids
        self.constraint = request.constraint if isinstance(request, GenerateRequest) else None
        self.check = check
        self.shows_text = request.text
        self.stops = StopStrings(stops) if stops else None
        prompt = request.prompt if isinstance(request.prompt, tuple) else tuple(tokenizer.encode_prompt(request.prompt))
        self.prompt_tokens = len(prompt)
        self.marks: dict[int, str] = {}
        """Special tokens that `reader` needs to see, by id."""
        self.reader: ThoughtReader | None = None
        """Separates thoughts from the answer; None if that was not requested or the model has none."""
        self.request: GenerateRequest | ScoreRequest
        if isinstance(request, GenerateRequest):
            marks = self._prepare_thought(request, prompt, tokenizer)
            sampling = replace(request.sampling, stop=())
            self.request = replace(
                request, prompt=prompt, sampling=sampling, text=False, reasoning=None, thought_marks=marks
            )
        else:
            scored = request.scored
            ids = tuple(tokenizer.encode_continuation(scored)) if isinstance(scored, str) else scored
            self.request = replace(request, prompt=prompt, scored=ids, text=False)
        self.detokenizer = tokenizer.detokenizer(prompt) if self.shows_text or stops or check or self.reader else None
        self.written = ""
        self._replay(request.generated if isinstance(request, GenerateRequest) else ())

    def _prepare_thought(
        self, request: GenerateRequest, prompt: tuple[int, ...], tokenizer: Tokenizer
    ) -> ThoughtMarks | None:
        """Set `reader` and `marks`; return the marks that constraint or budget need, or None."""
        form, reasoning = tokenizer.reasoning if request.reasoning is not None else None, request.reasoning
        parser = None if form is None else find_parser(form.name)
        if parser is None or reasoning is None:
            return None
        self.marks = tokenizer.special_marks(parser.marks)
        prefill = request.prompt.prefill if isinstance(request.prompt, ChatPrompt) else reasoning.prefill
        ids = prompt[-_TAIL - _BYTES_PER_CHARACTER * len(prefill) :]
        spelled = (self.marks.get(token, "").encode() or tokenizer.piece(token) for token in ids)
        tail = b"".join(spelled).decode(errors="replace")
        beginning = parser.beginning(tail.removesuffix(prefill) if prefill else tail, prefill)
        constrained, budget = request.constraint is not None, reasoning.budget
        self.reader = parser.reader(beginning, constrained=constrained)
        if not constrained and budget is None:
            return None
        return parser.thought_marks(beginning, tokenizer.encode_continuation, budget, constrained=constrained)

    def text_of(self, token: int) -> str:
        """Text that the stream's next token adds, including thoughts and their marks; pass it to `split`."""
        assert self.detokenizer is not None, "the stream's text is wanted"
        if token in self.marks:
            return self.marks[token]
        if self.reader is not None and not self._tokenizer.piece(token):
            self.reader.push_special()
        return self.detokenizer.push(token)

    def split(self, text: str, *, last: bool = False) -> tuple[str | None, str]:
        """Split a token's text into thought, None if the token is not part of it, and answer.

        last: no more text follows.
        """
        reader = self.reader
        if reader is None:
            return None, text
        inside = reader.thinking
        thought, answer = reader.push(text)
        if last:
            rest = reader.finish()
            thought, answer = thought + rest.reasoning, answer + rest.answer
        inside = (inside and not answer) or reader.thinking
        return (thought if inside or thought else None), answer

    def _replay(self, generated: Sequence[int]) -> None:
        """Replay generated ids through detokenizer and stop strings; sets `written` to the text they show.

        A character or possible stop string that is incomplete there is shown with the text that follows. Raises
        `RequestError` if the stream had ended before the last of the ids.
        """
        if self.detokenizer is None or not generated:
            return
        shown = []
        for index, token in enumerate(generated):
            if self.stops is not None and self.stops.matched is not None:
                raise RequestError(
                    f"generated goes on at index {index}, behind the stop string {self.stops.matched!r}",
                    "send the ids of one stream, as they came",
                )
            _, text = self.split(self.text_of(token))
            shown.append(text if self.stops is None else self.stops.push(text))
        self.written = "".join(shown)


Request: TypeAlias = "GenerateRequest | ScoreRequest"


class TextModel:
    """An `interfaces.TokenModel` with text over one that knows only ids.

    Strings and messages become ids; `scored` strings are tokenized as what follows the prompt. With `text`, each
    output carries the whole characters that its token completes; special tokens add none. A stop string ends its
    stream with `stop`: the token that completes it is the last output, with the text before the match; the inner
    stream is cancelled. Without `text`, stop strings work the same and no text is sent. A stream that a stop string, or
    a stop id, cuts before its constraint has ended it says so in its warnings. One that its constraint has ended is
    validated before its last output is handed on. Streams of ids that need none of this go straight to the inner
    model, sink and all. With `reasoning`, a thought comes apart: `text`, stop strings and validation are of the answer.

    Where a stop string cuts, the last output waits for the inner stream's end, whose usage has its cached tokens.
    """

    def __init__(self, inner: TokenModel, tokenizer: Tokenizer, check: AnswerCheck | None = None) -> None:
        """check: validates finished answers and is closed with the model; None skips validation."""
        self._inner = inner
        self._tokenizer = tokenizer
        self._isolated: bool = getattr(tokenizer, "isolates_chats", False)
        limits = limits_of(None, current_limits(inner))
        if limits is not None:
            tokenizer.limits = limits.with_text_limit(tokenizer.longest_token_bytes)
        self._check = check
        self._channels: dict[Sink, _Channel] = {}
        self._tokenizing: set[asyncio.Future[PreparedRequest | None]] = set()
        self._validating: set[asyncio.Future[Verdict]] = set()
        if tokenizer.has_chat_template:  # importing Jinja takes 0.1 s: not while streams run
            importlib.import_module("lmtool.inference.text.chat_template").prepare(isolated=self._isolated)

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream, see `interfaces.TokenModel.submit`; equal sinks count as one."""
        check = self._check_of(request)
        if check is None and _plain(request):
            return self._inner.submit(request, sink)
        try:
            if self._tokenizer.limits is not None:
                self._tokenizer.limits.check(request)
            size = _text_size(request, isolated=self._isolated)
            if size >= LONG:
                return self._submit_later(request, sink, size, check)
            return self._start(PreparedRequest(request, self._tokenizer, check), sink)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)

    @property
    def usage_now(self) -> ModelUsage:
        """See `model_usage.Measured`."""
        return usage_of(self._inner)

    @property
    def limits(self) -> LimitsByModel:
        """Limits on prompts, see `interfaces.Limited`."""
        return {} if self._tokenizer.limits is None else {None: self._tokenizer.limits}

    async def info(self, model: str | None = None) -> ModelInfo:
        """Return the inner model's description, with the tokenizer's identity; its fingerprint covers both."""
        info = await self._inner.info(model)
        own, whole = self._tokenizer, info.fingerprint
        if whole is not None:
            whole = fingerprint({"ids": whole, "text": own.digest})
        described = replace(info, tokenizer=own.info, chat_template=own.has_chat_template, tool_calls=own.tool_calls)
        return replace(described, reasoning=own.reasoning, fingerprint=whole)

    def tokenizer(self, model: str | None = None) -> Tokenizer:  # noqa: ARG002  # one model
        """The tokenizer, see `interfaces.Tokenized`."""
        return self._tokenizer

    async def drain(self, seconds: float) -> int:
        """Wait for prompts being tokenized and for the inner model's streams, see `interfaces.LoadedModel.drain`.

        Waits also for the answers that are being validated.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        running = 0
        await self._wait_for_work(seconds)
        if isinstance(self._inner, LoadedModel):
            running = await self._inner.drain(max(0.0, deadline - loop.time()))
            await self._wait_for_work(deadline - loop.time())
        return len(self._tokenizing) + len(self._validating) + running

    async def _wait_for_work(self, seconds: float) -> None:
        if work := self._tokenizing | self._validating:
            await asyncio.wait(work, timeout=max(0.0, seconds))

    def close(self) -> None:
        """Close the inner model, see `interfaces.LoadedModel.close`; prompts that wait are not tokenized any more."""
        for work in self._tokenizing:
            work.cancel()
        if isinstance(self._inner, LoadedModel):
            self._inner.close()
        if self._check is not None:
            self._check.close()

    def _check_of(self, request: Request) -> AnswerCheck | None:
        """Validator for a request's answer, or None."""
        constraint = request.constraint if isinstance(request, GenerateRequest) else None
        wanted = constraint is not None and self._check is not None and self._check.applies_to(constraint)
        return self._check if wanted else None

    def _start(self, prepared: PreparedRequest, sink: Sink) -> StreamHandle:
        if prepared.detokenizer is None:
            return self._inner.submit(prepared.request, sink)
        if prepared.stops is not None and prepared.stops.matched is not None:  # within the ids given as generated
            return _ended(prepared, prepared.stops.matched, sink)
        channel = self._channels.get(sink)
        if channel is None:
            on_empty = partial(self._channels.pop, sink, None)
            channel = self._channels[sink] = _Channel(sink, on_empty, self._validating)
        return channel.start(prepared, prepared.detokenizer, self._inner)

    def _submit_later(self, request: Request, sink: Sink, size: int, check: AnswerCheck | None) -> StreamHandle:
        """Tokenize in a worker thread, so that a long text does not delay other streams."""
        handle = DeferredHandle(request.stream_id, sink)
        work = run_in_worker(size, self._prepare, request, handle, check)
        self._tokenizing.add(work)
        work.add_done_callback(partial(self._tokenized, handle, sink))
        return handle

    def _prepare(self, request: Request, handle: DeferredHandle, check: AnswerCheck | None) -> PreparedRequest | None:
        """Tokenize; None if the stream was cancelled meanwhile."""
        return None if handle.ended else PreparedRequest(request, self._tokenizer, check)

    def _tokenized(self, handle: DeferredHandle, sink: Sink, work: asyncio.Future[PreparedRequest | None]) -> None:
        self._tokenizing.discard(work)
        if work.cancelled():
            handle.fail(ResourceError("the model was closed before the prompt was read"))
            return
        try:
            prepared = work.result()
        except LmtoolError as error:
            handle.fail(error)
            return
        if prepared is not None:
            handle.start(partial(self._start, prepared, sink))


class _Channel:
    """Streams of one sink: calls it once for each call by the inner model."""

    def __init__(self, sink: Sink, on_empty: Callable[[], object], validating: set[asyncio.Future[Verdict]]) -> None:
        """validating: set of running validations."""
        self.client = client_of(sink)
        self._sink = sink
        self._on_empty = on_empty
        self._validating = validating
        # Separate ids: after a stop string ended a stream, its id may be reused before the inner stream has ended.
        self._inner_ids = count()
        self._streams: dict[StreamId, _Stream] = {}

    def start(self, prepared: PreparedRequest, detokenizer: Detokenizer, inner: TokenModel) -> StreamHandle:
        inner_id = next(self._inner_ids)
        handle = inner.submit(replace(prepared.request, stream_id=inner_id), self)
        stream = self._streams[inner_id] = _Stream(prepared, detokenizer, handle, written=[prepared.written])
        return stream

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take the inner model's outputs of one step, see `Sink`."""
        shown = []
        for output in outputs:
            stream = self._streams[output.stream_id]
            if not stream.ended:
                event = stream.show(output)
                if stream.checking is not None:
                    self._await(output.stream_id, stream.checking, event)
                    continue
                if stream.cut is None:
                    shown.append(event)
            elif output.last and stream.cut is not None:
                shown.append(stream.end_cut(stream.cut, output))
            if output.last:
                del self._streams[output.stream_id]
        self._emit(shown)

    def _await(self, inner_id: StreamId, checking: Future[Verdict], last: TokenOutput) -> None:
        """Hold a stream's last output until its text is validated."""
        work = asyncio.wrap_future(checking)
        self._validating.add(work)
        work.add_done_callback(partial(self._checked, inner_id, last))

    def _checked(self, inner_id: StreamId, last: TokenOutput, work: asyncio.Future[Verdict]) -> None:
        self._validating.discard(work)
        stream = self._streams.pop(inner_id)
        if stream.cancelled:
            self._emit([TokenOutput(last.stream_id, finish_reason="cancelled", usage=last.usage)])
        elif (problem := _problem(work)) is not None:
            self._emit([failure(last.stream_id, problem)])
        else:
            self._emit([replace(last, warnings=last.warnings + work.result().warnings)])

    def _emit(self, shown: Sequence[TokenOutput]) -> None:
        if shown:
            self._sink(shown)
        if not self._streams:
            self._on_empty()


def _problem(work: asyncio.Future[Verdict]) -> LmtoolError | None:
    """Error that replaces the normal end of a stream, or None."""
    bug = None if work.cancelled() else work.exception()
    if work.cancelled() or bug is not None:
        asyncio.get_running_loop().call_exception_handler({"message": "an answer was not validated", "exception": bug})
        return ServerError("the answer could not be validated", "see the server's log")
    return work.result().error


@dataclass(eq=False, slots=True)
class _Stream:
    """State of one stream between ids and text; also its submitter's handle."""

    prepared: PreparedRequest
    detokenizer: Detokenizer
    handle: StreamHandle
    tokens: int = 0
    reasoning_tokens: int = 0
    written: list[str] = field(default_factory=list)
    """Text so far, if it will be validated."""
    checking: Future[Verdict] | None = None
    """Running validation of the complete text."""
    cut: TokenOutput | None = None
    """Last output of a stream cut by a stop string, held until the inner stream reports its usage."""
    cancelled: bool = False
    ended: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        if not self.ended:
            self.handle.cancel()

    def pause(self) -> None:
        if not self.ended:
            self.handle.pause()

    def resume(self) -> None:
        if not self.ended:
            self.handle.resume()

    def queue_place(self) -> QueuePlace | None:
        """See `interfaces.Queued`."""
        return None if self.ended else place_of(self.handle)

    def began_at(self) -> float | None:
        """See `interfaces.Timed`."""
        return began_at(self.handle)

    def show(self, output: TokenOutput) -> TokenOutput:
        """Return the submitter's view of the inner stream's next output; may end the stream.

        Once `checking` is set, the returned output is sent only if validation succeeds.
        """
        prepared = self.prepared
        if output.error is not None:
            self.ended = True
            return replace(output, stream_id=prepared.request.stream_id)
        thought, text = self._text(output)
        finish_reason, usage, stopped_by = output.finish_reason, output.usage, output.stopped_by
        if usage is not None and self.reasoning_tokens:
            usage = replace(usage, reasoning_tokens=self.reasoning_tokens)
        stops = prepared.stops
        if stops is not None and stops.matched is not None and finish_reason != "cancelled":
            finish_reason, stopped_by = "stop", stops.matched
        self.ended = finish_reason is not None
        cut = self.ended and not output.last
        if cut:
            self.handle.cancel()
        warnings = output.warnings
        if prepared.constraint is not None and stopped_by is not None:
            warnings += (_cut(stopped_by),)
        elif prepared.check is not None:
            self.written.append(text)
            if self._ends_constraint(output):
                self._begin_check(output.warnings)
        event = TokenOutput(
            prepared.request.stream_id,
            output.token,
            output.logprob,
            output.top_logprobs,
            text if prepared.shows_text else None,
            finish_reason,
            usage,
            warnings=warnings,
            stopped_by=stopped_by,
            seed=output.seed,
            reasoning=thought if prepared.shows_text else None,
        )
        if cut:
            self.cut = event
        return event

    def end_cut(self, last: TokenOutput, inner: TokenOutput) -> TokenOutput:
        """Return the last output of a cut stream, after the inner stream has ended."""
        cached = 0 if inner.usage is None else inner.usage.cached_tokens
        return replace(last, usage=Usage(self.prepared.prompt_tokens, self.tokens, cached, self.reasoning_tokens))

    def _text(self, output: TokenOutput) -> tuple[str | None, str]:
        """Text that an output adds to the thought, None if its token is outside it, and to the answer up to a stop."""
        text = ""
        if output.token is not None:
            self.tokens += 1
            if not self._ends_constraint(output):
                text = self.prepared.text_of(output.token)
        if output.last:
            text += self.detokenizer.finish()
        thought, text = self.prepared.split(text, last=output.last)
        self.reasoning_tokens += thought is not None and output.token is not None
        stops = self.prepared.stops
        if stops is None:
            return thought, text
        text = stops.push(text)
        return thought, text + stops.flush() if output.last and stops.matched is None else text

    def _ends_constraint(self, output: TokenOutput) -> bool:
        """True if an output ends the stream because its constraint is met: by an eos id that is not part of the text.

        A remote server does not report the id that ended the stream.
        """
        prepared = self.prepared
        if prepared.constraint is None or output.finish_reason != "stop" or output.stopped_by is not None:
            return False
        return prepared.check is not None or output.token not in prepared.stop_ids

    def _begin_check(self, warnings: Sequence[str]) -> None:
        prepared = self.prepared
        assert prepared.check is not None, "the text was kept to be validated"
        assert prepared.constraint is not None, "there is something to validate by"
        self.checking = prepared.check.begin(prepared.constraint, "".join(self.written), warnings)


def _cut(stopped_by: str | int) -> str:
    what = f"the stop string {stopped_by!r}" if isinstance(stopped_by, str) else f"the stop id {stopped_by}"
    return f"the answer was cut at {what}, before its constraint had ended it"


def _ended(prepared: PreparedRequest, matched: str, sink: Sink) -> StreamHandle:
    """End a stream whose given ids already contain its stop string."""
    usage = Usage(prepared.prompt_tokens, 0)
    handle = DeferredHandle(prepared.request.stream_id, sink)
    text = "" if prepared.shows_text else None
    handle.end(
        TokenOutput(prepared.request.stream_id, text=text, finish_reason="stop", usage=usage, stopped_by=matched)
    )
    return handle


def _plain(request: Request) -> bool:
    """True if a request has only ids and asks for no text."""
    if request.text or not isinstance(request.prompt, tuple):
        return False
    if isinstance(request, GenerateRequest) and request.reasoning is not None:
        return False
    return not (request.sampling.stop if isinstance(request, GenerateRequest) else isinstance(request.scored, str))


def _text_size(request: Request, *, isolated: bool) -> int:
    """Return the number of characters to tokenize."""
    if isinstance(request, GenerateRequest):
        return prompt_size(request.prompt, isolated=isolated) + len(request.generated)
    return prompt_size(request.prompt) + (len(request.scored) if isinstance(request.scored, str) else 0)
