"""New requests that go on from a token of a stream."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError, UsageError
from lmtool.lmtp.codec import decode_request
from lmtool.lmtp.messages import Generate
from lmtool.trace.events import Frame
from lmtool.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from lmtool.tui.streams import Stream
    from lmtool.tui.view import View

RULED_OUT = -100.0
"""Nats: what no sampler comes back from."""


def branch(view: View, row: int, instead: int) -> GenerateRequest:
    """Ask for the stream's prompt, its tokens before `row`, and `instead` to be continued. Raises `UsageError`."""
    asked, kept = _asked(view, row)
    return _continued(asked, (*_ids(asked), *kept, instead), len(kept) + 1)


def ruled_out(view: View, row: int, token: int) -> GenerateRequest:
    """Ask again from before `row`, this token ruled out. Raises `UsageError`."""
    asked, kept = _asked(view, row)
    request = _continued(asked, (*_ids(asked), *kept), len(kept))
    bias = {**request.sampling.logit_bias, token: RULED_OUT}
    return replace(request, sampling=replace(request.sampling, logit_bias=bias))


def _asked(view: View, row: int) -> tuple[GenerateRequest, list[int]]:
    """The stream's request, and its ids before the row."""
    stream = view.state.streams[view.state.tokens.streams[row]]
    position = bisect_left(stream.rows, row)
    kept = [view.state.tokens.ids[one] for one in stream.rows[:position]]
    if stream.kind not in ("GEN", "SCORE") or any(token < 0 for token in kept):
        raise UsageError(
            f"stream {stream.label} cannot be branched: its tokens have no ids",
            "LMTP streams have them; HTTP ones do not",
        )
    return _request(view, stream), kept


def _request(view: View, stream: Stream) -> GenerateRequest:
    event = view.lines.whole(stream.frame)
    if isinstance(event, Frame) and event.direction == ">":
        try:
            message = decode_request(event.wire())
        except LmtoolError as error:
            raise UsageError(f"the request of stream {stream.label} cannot be sent again: {error.message}") from None
        if isinstance(message, Generate):
            return message.request
        if stream.kind == "SCORE":
            prompt = getattr(getattr(message, "request", None), "prompt", ())
            return GenerateRequest(0, prompt, SamplingParams(top_logprobs=5), model=stream.model)
    raise UsageError(f"stream {stream.label} cannot be branched: its request was not recorded")


def _ids(asked: GenerateRequest) -> tuple[int, ...]:
    ids = tuple(one for one in asked.prompt if isinstance(one, int))
    if isinstance(asked.prompt, str) or len(ids) != len(asked.prompt):
        raise UsageError(
            "a stream whose prompt was sent as text or messages cannot be branched",
            "prompts typed here are sent as ids",
        )
    return ids


def _continued(asked: GenerateRequest, ids: tuple[int, ...], used: int) -> GenerateRequest:
    left = max(8, asked.sampling.max_tokens - used)
    sampling = replace(asked.sampling, max_tokens=left, top_logprobs=max(5, asked.sampling.top_logprobs))
    return replace(asked, prompt=ids, sampling=sampling, constraint=None, text=False)
