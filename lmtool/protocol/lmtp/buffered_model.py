"""A token model over another, for one connection: puts the ids of buffers in place of their names (SPEC.md, BUF)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import ContextOverflowError, LmtoolError, RequestError
from lmtool.core.interfaces import client_of, current_limits, tokenizer_of
from lmtool.core.prompt_limits import limits_of
from lmtool.core.streams import DeferredHandle, refuse
from lmtool.core.types import BufferSlice, GenerateRequest, MixedPrompt
from lmtool.protocol.lmtp.buffers import ID_BYTES, Buffers, names_of
from lmtool.protocol.lmtp.messages import BufferRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lmtool.core.interfaces import Sink, StreamHandle, TokenModel
    from lmtool.core.types import ModelInfo, Prompt, ScoreRequest, StreamId, TokenOutput
    from lmtool.protocol.lmtp.config import ServerConfig

Request: TypeAlias = "GenerateRequest | ScoreRequest"


class BufferedModel:
    """An `interfaces.TokenModel` over another, with the buffers of one connection, which `close` frees.

    Requests that name a buffer take effect in the order of the calls: one behind a text that is still being tokenized
    waits for it. Requests without buffers go straight to the inner model, sink and all. Belongs to one event loop.
    """

    def __init__(self, inner: TokenModel, config: ServerConfig) -> None:
        self._inner = inner
        self._buffers = Buffers(config.max_buffers, config.max_buffer_bytes)
        self._max_ids = config.max_buffer_bytes // ID_BYTES
        self._pending: dict[str, asyncio.Task[object]] = {}
        """The last request of each buffer that waits, by the buffer's name."""
        self._tasks: set[asyncio.Task[int]] = set()
        """All that wait."""
        self._channels: dict[Sink, _Channel] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def info(self, model: str | None = None) -> ModelInfo:
        """The inner model's description."""
        return await self._inner.info(model)

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream, see `interfaces.TokenModel.submit`; equal sinks count as one."""
        names = names_of(request)
        if not names:
            return self._inner.submit(request, sink)
        if not any(name in self._pending for name in names):
            return self._start(request, sink)
        handle = DeferredHandle(request.stream_id, sink)
        self._queue(names, partial(self._start_deferred, handle, request, sink))
        return handle

    def change(self, request: BufferRequest) -> asyncio.Future[int]:
        """Append to a buffer, drop it, or let it expire; the result is its length then.

        The result's exception is an `LmtoolError` for the client: nothing was changed.
        """
        texts = any(isinstance(part, str) for part in request.append or ())
        if texts or request.name in self._pending:
            return self._queue([request.name], partial(self._change, request))
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self._apply(request, _ids(request.append or ())))
        except LmtoolError as error:
            done.set_exception(error)
        return done

    async def change_buffer(
        self,
        name: str,
        append: Sequence[str | tuple[int, ...]] | None = None,
        *,
        drop: bool = False,
        ttl: float | None = None,
        model: str | None = None,
    ) -> int:
        """As `change`, see `lmtool.core.buffer.BufferKeeper`; raises the error."""
        parts = None if append is None else tuple(append)
        return await self.change(BufferRequest("", name, parts, drop, ttl, model))

    def buffer_length(self, name: str) -> int:
        """Ids of a buffer, 0 of one that is not there."""
        return self._buffers.length(name)

    @property
    def memory_bytes(self) -> int:
        """Of all buffers together."""
        return self._buffers.memory_bytes

    def close(self) -> None:
        """Free the buffers; what waits is dropped."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self._buffers = Buffers(0, 0)

    # The order of requests.

    def _queue(self, names: Sequence[str], action: Callable[[], Awaitable[int]]) -> asyncio.Task[int]:
        """Do something once all that waits for these buffers is done."""
        before = {self._pending[name] for name in names if name in self._pending}
        task = asyncio.get_running_loop().create_task(_after(before, action))
        self._tasks.add(task)
        for name in names:
            self._pending[name] = task
        task.add_done_callback(partial(self._done, names))
        return task

    def _done(self, names: Sequence[str], task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        for name in names:
            if self._pending.get(name) is task:
                del self._pending[name]

    # Changes.

    async def _change(self, request: BufferRequest) -> int:
        return self._apply(request, await self._tokenized(request))

    async def _tokenized(self, request: BufferRequest) -> Sequence[int]:
        """The ids to append: each text is tokenized by itself, as a text's start where the buffer begins with it."""
        parts = request.append or ()
        if not any(isinstance(part, str) for part in parts):
            return _ids(parts)
        await self._inner.info(request.model)  # waits for the model's load
        tokenizer = tokenizer_of(self._inner, request.model)
        if tokenizer is None:
            raise RequestError(f"buffer {request.name!r} takes token ids here: there is no tokenizer", "send ids")
        limits = limits_of(request.model, current_limits(self._inner))
        if limits is not None:
            limits.check_text("".join(part for part in parts if isinstance(part, str)))
        before: tuple[tuple[int, ...], ...] = ((),) if self._buffers.length(request.name) else ()
        return await tokenizer.tokenize(MixedPrompt((*before, *parts)))

    def _apply(self, request: BufferRequest, ids: Sequence[int]) -> int:
        """Carry out a change. Raises `RequestError`, and has changed nothing then."""
        now, name = self._now(), request.name
        limits = limits_of(request.model, current_limits(self._inner))
        if limits is not None:
            limits.check_ids(ids, "append")
        if request.drop:
            self._buffers.drop(name, now)
        elif request.append is not None:
            self._buffers.append(name, ids, now)
        if request.ttl is not None:
            self._buffers.set_ttl(name, request.ttl, now)
            self._watch()
        return self._buffers.length(name)

    # Streams.

    async def _start_deferred(self, handle: DeferredHandle, request: Request, sink: Sink) -> int:
        handle.start(partial(self._start, request, sink))
        return 0

    def _start(self, request: Request, sink: Sink) -> StreamHandle:
        now = self._now()
        try:
            prompt = self._resolved(request, now)
            if not isinstance(request, GenerateRequest) or request.into is None:
                return self._inner.submit(replace(request, prompt=prompt), sink)
            self._buffers.reserve(request.into, self._most_tokens(request), now)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)
        finally:
            self._watch()
        channel = self._channels.get(sink)
        if channel is None:
            on_empty = partial(self._channels.pop, sink, None)
            channel = self._channels[sink] = _Channel(sink, self._end_into, on_empty)
        collected = channel.begin(request)
        return self._inner.submit(replace(request, prompt=prompt, into=None), collected)

    def _resolved(self, request: Request, now: float) -> Prompt:
        """The prompt with ids in place of its buffers."""
        prompt = request.prompt
        if not isinstance(prompt, MixedPrompt):
            return prompt
        self._check_size(request, prompt)
        parts = tuple(
            tuple(self._buffers.ids(one, now)) if isinstance(one, BufferSlice) else one for one in prompt.parts
        )
        if any(isinstance(part, str) for part in parts):
            return MixedPrompt(parts)
        return tuple(_ids(parts))

    def _check_size(self, request: Request, prompt: MixedPrompt) -> None:
        """Refuse a prompt that is far too long before it is made: a few names may stand for any number of ids."""
        ids = sum(self._buffers.size(one) for one in prompt.parts if isinstance(one, BufferSlice))
        ids += sum(len(one) for one in prompt.parts if isinstance(one, tuple))
        limits = limits_of(request.model, current_limits(self._inner))
        if limits is not None:
            limits.check_count(ids, room=0)
        elif ids > self._max_ids:
            raise ContextOverflowError.of(ids, self._max_ids)

    def _most_tokens(self, request: GenerateRequest) -> int:
        limits = limits_of(request.model, current_limits(self._inner))
        most = request.sampling.max_tokens
        return most if limits is None else min(most, limits.context_length)

    def _end_into(self, name: str, ids: Sequence[int] | None) -> None:
        """A stream that appends to a buffer has ended. ids: None where it has failed or was cancelled."""
        if self._closed:
            return
        if ids is None:
            self._buffers.release(name, self._now())
        else:
            self._buffers.append_reserved(name, ids, self._now())
        self._watch()

    # Time.

    def _watch(self) -> None:
        """See to it that the next buffer that expires does so in time."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if (at := self._buffers.next_expiry()) is not None:
            self._expiry = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        self._buffers.expire(self._now())
        self._watch()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _Channel:
    """The streams of one sink that append to buffers: one call of it for each call by the inner model."""

    def __init__(
        self, sink: Sink, end: Callable[[str, Sequence[int] | None], None], on_empty: Callable[[], object]
    ) -> None:
        self.client = client_of(sink)
        self._sink = sink
        self._end = end
        self._on_empty = on_empty
        self._streams: dict[StreamId, tuple[str, list[int]]] = {}
        """Of each stream its buffer's name and the ids so far."""

    def begin(self, request: GenerateRequest) -> Sink:
        """A stream begins; the sink for it."""
        self._streams[request.stream_id] = (str(request.into), list(request.generated))
        return self

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take the inner model's outputs of one step, see `Sink`."""
        for output in outputs:
            name, ids = self._streams[output.stream_id]
            if output.token is not None:
                ids.append(output.token)
            if output.last:  # before it is handed on: a request that is sent then finds the ids
                del self._streams[output.stream_id]
                self._end(name, ids if output.finish_reason in {"stop", "length"} else None)
        self._sink(outputs)
        if not self._streams:
            self._on_empty()


def _ids(parts: Sequence[str | tuple[int, ...]]) -> list[int]:
    """All ids of parts without texts."""
    return [token for part in parts if isinstance(part, tuple) for token in part]


async def _after(before: set[asyncio.Task[object]], action: Callable[[], Awaitable[int]]) -> int:
    if before:
        await asyncio.wait(before)
    return await action()
