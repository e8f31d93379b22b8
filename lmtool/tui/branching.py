"""New requests that go on from a token of a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import UsageError
from lmtool.tui.recorded_request import ids_of, prompt_of, request_of
from lmtool.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from lmtool.tui.view import View

RULED_OUT = -100.0
"""Nats: what no sampler comes back from."""
LEAST = 8
"""Tokens that a branch may have, however few its parent had left: there must be something to see."""
TOP = 5
"""Alternatives a token that a branch has at least."""


def branch(view: View, row: int, instead: int) -> GenerateRequest:
    """Ask for the stream's prompt, its tokens before `row`, and `instead` to be continued. Raises `UsageError`.

    It has its parent's parameters: what is left of `max_tokens` (at least `LEAST`) and of `min_tokens`, and its seed,
    whose random numbers begin anew. What depends on the tokens before, which a request can give as prompt only, makes
    it an error: a constraint, processors, penalties on what was generated, a stop text that may have begun.
    """
    return _continued(view, row, (instead,))


def ruled_out(view: View, row: int, token: int) -> GenerateRequest:
    """Ask again from before `row`, this token ruled out; at a stream's first token everything is kept.

    Otherwise as `branch`.
    """
    request = _continued(view, row, ())
    bias = {**request.sampling.logit_bias, token: RULED_OUT}
    return replace(request, sampling=replace(request.sampling, logit_bias=bias))


def _continued(view: View, row: int, more: tuple[int, ...]) -> GenerateRequest:
    stream, position = view.state.stream_of(row), view.position(row)
    message = request_of(view, stream)
    request = message.request
    if not isinstance(request, GenerateRequest):
        request = GenerateRequest(0, request.prompt, model=request.model)
    prompt = prompt_of(view, message)
    ids = tuple(one for one in prompt if isinstance(one, int))
    if isinstance(prompt, str) or len(ids) != len(prompt):
        raise UsageError(
            f"stream {stream.label} cannot be branched: its prompt was sent as text or messages",
            "prompts typed here are sent as ids",
        )
    kept = (*ids_of(view, stream, position), *more)
    if reasons := [*(f"the field {name}" for name in message.ignored), *_stateful_parts(view, request, kept)]:
        raise UsageError(
            f"stream {stream.label} cannot be branched here: a branch would lose {' and '.join(reasons)}",
            *(["x on its first token keeps everything: nothing stands before it"] if kept else []),
        )
    if more and (ending := _ending(view, request.sampling, more[0])):
        raise UsageError(f"nothing comes after {view.measures.quote(more[0])}: {ending}")
    return replace(request, prompt=(*ids, *kept), sampling=_remaining(request.sampling, len(kept)), text=False)


def _stateful_parts(view: View, request: GenerateRequest, kept: tuple[int, ...]) -> list[str]:
    """What of a request depends on the tokens that were generated, and would not know of those that are kept."""
    if not kept:
        return []
    sampling = request.sampling
    reasons = {
        "its constraint": request.constraint is not None,
        "its logits_processors": bool(request.logits_processors),
        "its presence_penalty": sampling.presence_penalty != 0,
        "its frequency_penalty": sampling.frequency_penalty != 0,
        "a stop text that may have begun": _may_have_begun(view, sampling.stop, kept),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _may_have_begun(view: View, stops: tuple[str, ...], kept: tuple[int, ...]) -> bool:
    """Whether the kept tokens end with a part of a stop text, or may do so."""
    if not stops:
        return False
    pieces = [view.state.texts.spelling(token) for token in kept]
    if None in pieces:
        return True
    text = b"".join(piece for piece in pieces if piece is not None)
    wanted = [stop.encode() for stop in stops]
    return any(stop in text or any(text.endswith(stop[:i]) for i in range(1, len(stop))) for stop in wanted)


def _ending(view: View, sampling: SamplingParams, token: int) -> str:
    """Why a stream ends with this token; empty where it goes on."""
    if token in sampling.stop_token_ids:
        return "it is one of the request's stop_token_ids"
    return "it ends the text" if token in view.state.eos and not sampling.ignore_eos else ""


def _remaining(sampling: SamplingParams, used: int) -> SamplingParams:
    """The parameters for what comes after `used` tokens. A repetition penalty counts the prompt as well: it stays."""
    return replace(
        sampling,
        max_tokens=max(LEAST, sampling.max_tokens - used),
        min_tokens=max(0, sampling.min_tokens - used),
        top_logprobs=max(TOP, sampling.top_logprobs),
    )
