"""A token model that also speaks text: prompts and messages in, whole characters out, stop strings watched for."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias, cast

from lmtool.errors import LmtoolError, ResourceError
from lmtool.ports import DeferredHandle, LoadedModel, current_limits, refuse
from lmtool.prompt_limits import limits_of
from lmtool.text.stop_strings import StopStrings
from lmtool.text.worker import LONG, prompt_size, run_in_worker
from lmtool.types import ChatMessage, GenerateRequest, TokenOutput, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.ports import Detokenizer, Sink, StreamHandle, Tokenizer, TokenModel
    from lmtool.prompt_limits import LimitsByModel
    from lmtool.types import ModelInfo, Prompt, ScoreRequest, StreamId

Request: TypeAlias = "GenerateRequest | ScoreRequest"


class TextModel:
    """A `ports.TokenModel` over one that knows ids only.

    Strings and messages become ids; `scored` strings are tokenized as what follows the prompt. With `text`, each
    output carries the whole characters that its token completes; special tokens add none. A stop string ends its
    stream with `stop`: the token that completes it is the last output, with the text before the match; the inner
    stream is cancelled. Without `text`, stop strings work the same and no text is sent. Under a constraint they have no
    effect: cut there, the text would not match. Streams of ids that ask for neither go straight to the inner model,
    sink and all.

    `usage` where a stop string cuts counts prompt and completion; `cached_tokens`, which only the inner model's own
    last output could tell, is 0 there.
    """

    def __init__(self, inner: TokenModel, tokenizer: Tokenizer) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        limits = limits_of(None, current_limits(inner))
        if limits is not None:
            tokenizer.limits = limits.with_text_limit(tokenizer.longest_token_bytes)
        self._channels: dict[Sink, _Channel] = {}
        self._at_work: set[asyncio.Future[_Prepared | None]] = set()
        if tokenizer.has_chat_template:  # Jinja takes a tenth of a second to import: now, not while streams run
            importlib.import_module("lmtool.text.chat_template")

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream, see `ports.TokenModel.submit`; equal sinks count as one."""
        if _plain(request):
            return self._inner.submit(request, sink)
        try:
            if self._tokenizer.limits is not None:
                self._tokenizer.limits.check(request)
            size = _text_size(request)
            if size >= LONG:
                return self._submit_later(request, sink, size)
            return self._start(_Prepared(request, self._tokenizer), sink)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)

    @property
    def limits(self) -> LimitsByModel:
        """What its prompts may have, see `ports.Limited`."""
        return {} if self._tokenizer.limits is None else {None: self._tokenizer.limits}

    async def info(self, model: str | None = None) -> ModelInfo:
        """Return the inner model's description, with the tokenizer's identity."""
        info = await self._inner.info(model)
        return replace(info, tokenizer=self._tokenizer.info, chat_template=self._tokenizer.has_chat_template)

    async def drain(self, seconds: float) -> int:
        """Wait for prompts being tokenized and for the inner model's streams, see `ports.LoadedModel.drain`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=seconds)
        if not isinstance(self._inner, LoadedModel):
            return len(self._at_work)
        return len(self._at_work) + await self._inner.drain(max(0.0, deadline - loop.time()))

    def close(self) -> None:
        """Close the inner model, see `ports.LoadedModel.close`; prompts that wait are not tokenized any more."""
        for work in self._at_work:
            work.cancel()
        if isinstance(self._inner, LoadedModel):
            self._inner.close()

    def _start(self, prepared: _Prepared, sink: Sink) -> StreamHandle:
        if prepared.detokenizer is None:
            return self._inner.submit(prepared.request, sink)
        channel = self._channels.get(sink)
        if channel is None:
            channel = self._channels[sink] = _Channel(sink, on_empty=partial(self._channels.pop, sink, None))
        return channel.start(prepared, prepared.detokenizer, self._inner)

    def _submit_later(self, request: Request, sink: Sink, size: int) -> StreamHandle:
        """Tokenize in the worker thread, so that one long text does not stop everybody's streams."""
        handle = DeferredHandle(request.stream_id, sink)
        work = run_in_worker(size, self._prepare, request, handle)
        self._at_work.add(work)
        work.add_done_callback(partial(self._tokenized, handle, sink))
        return handle

    def _prepare(self, request: Request, handle: DeferredHandle) -> _Prepared | None:
        """Tokenize; None where nobody waits for it any more."""
        return None if handle.ended else _Prepared(request, self._tokenizer)

    def _tokenized(self, handle: DeferredHandle, sink: Sink, work: asyncio.Future[_Prepared | None]) -> None:
        self._at_work.discard(work)
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


class _Prepared:
    """A request with ids in place of texts, and what turns its outputs back into text."""

    __slots__ = ("detokenizer", "request", "shows_text", "stops")

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        """Tokenize. Raises `RequestError` for messages without a template, or refused by it, and for bad stops."""
        stops = () if _constrained(request) else _stops(request)
        self.shows_text = request.text
        self.stops = StopStrings(stops) if stops else None
        prompt = _prompt_ids(request.prompt, tokenizer)
        self.request: Request
        if isinstance(request, GenerateRequest):
            self.request = replace(request, prompt=prompt, sampling=replace(request.sampling, stop=()), text=False)
        else:
            scored = request.scored
            ids = tuple(tokenizer.encode_continuation(scored)) if isinstance(scored, str) else scored
            self.request = replace(request, prompt=prompt, scored=ids, text=False)
        self.detokenizer = tokenizer.detokenizer(prompt) if self.shows_text or stops else None


class _Channel:
    """The streams of one sink: one call of it for each call by the inner model."""

    def __init__(self, sink: Sink, on_empty: Callable[[], object]) -> None:
        self._sink = sink
        self._on_empty = on_empty
        # Ids of our own: once a stop string cut a stream, its id may be used again before the inner stream is gone.
        self._inner_ids = count()
        self._streams: dict[StreamId, _Stream] = {}
        self._inner_sink = self._take

    def start(self, prepared: _Prepared, detokenizer: Detokenizer, inner: TokenModel) -> StreamHandle:
        inner_id = next(self._inner_ids)
        handle = inner.submit(replace(prepared.request, stream_id=inner_id), self._inner_sink)
        stream = self._streams[inner_id] = _Stream(prepared, detokenizer, handle)
        return stream

    def _take(self, outputs: Sequence[TokenOutput]) -> None:
        shown = []
        for output in outputs:
            stream = self._streams.pop(output.stream_id) if output.last else self._streams[output.stream_id]
            if not stream.ended:
                shown.append(stream.show(output))
        if shown:
            self._sink(shown)
        if not self._streams:
            self._on_empty()


class _Stream:
    """One stream on its way from ids to text; its submitter's handle as well."""

    __slots__ = ("_detokenizer", "_handle", "_prompt_tokens", "_shows_text", "_stops", "_stream_id", "_tokens", "ended")

    def __init__(self, prepared: _Prepared, detokenizer: Detokenizer, handle: StreamHandle) -> None:
        self._stream_id = prepared.request.stream_id
        self._prompt_tokens = len(prepared.request.prompt)
        self._shows_text = prepared.shows_text
        self._stops = prepared.stops
        self._detokenizer = detokenizer
        self._handle = handle
        self._tokens = 0
        self.ended = False

    def cancel(self) -> None:
        if not self.ended:
            self._handle.cancel()

    def pause(self) -> None:
        if not self.ended:
            self._handle.pause()

    def resume(self) -> None:
        if not self.ended:
            self._handle.resume()

    def show(self, output: TokenOutput) -> TokenOutput:
        """Return the submitter's view of the inner stream's next output; may end the stream."""
        if output.error is not None:
            self.ended = True
            return replace(output, stream_id=self._stream_id)
        text = ""
        if output.token is not None:
            self._tokens += 1
            text = self._detokenizer.push(output.token)
        if output.last:
            text += self._detokenizer.finish()
        finish_reason, usage = output.finish_reason, output.usage
        if self._stops is not None:
            text = self._stops.push(text)
            if self._stops.matched is None:
                text += self._stops.flush() if output.last else ""
            elif finish_reason != "cancelled":
                finish_reason = "stop"
        self.ended = finish_reason is not None
        if self.ended and not output.last:
            usage = Usage(self._prompt_tokens, self._tokens)
            self._handle.cancel()
        return TokenOutput(
            self._stream_id,
            output.token,
            output.logprob,
            output.top_logprobs,
            text if self._shows_text else None,
            finish_reason,
            usage,
            warnings=output.warnings,
            stopped_by=self._stops.matched if self._stops is not None and finish_reason == "stop" else None,
        )


def _stops(request: Request) -> tuple[str, ...]:
    return request.sampling.stop if isinstance(request, GenerateRequest) else ()


def _constrained(request: Request) -> bool:
    """Whether a constraint decides where the stream's text ends: cut before, it would not match."""
    return isinstance(request, GenerateRequest) and request.constraint is not None


def _plain(request: Request) -> bool:
    """Whether a request has ids only and asks for no text."""
    if request.text or isinstance(request.prompt, str) or _messages(request.prompt):
        return False
    return not (request.sampling.stop if isinstance(request, GenerateRequest) else isinstance(request.scored, str))


def _messages(prompt: tuple[int, ...] | tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """Return the messages of a prompt that has some, else nothing; the first item tells, prompts of ids are long."""
    return prompt if prompt and isinstance(prompt[0], ChatMessage) else ()


def _text_size(request: Request) -> int:
    """Return how many characters must be tokenized."""
    scored = "" if isinstance(request, GenerateRequest) else request.scored
    return prompt_size(request.prompt) + (len(scored) if isinstance(scored, str) else 0)


def _prompt_ids(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt))
    if prompt and isinstance(prompt[0], ChatMessage):
        return tuple(tokenizer.encode_chat(prompt))
    return cast("tuple[int, ...]", prompt)
