"""Sampled streams made checkable: their tokens are scored by the server under test, and the numbers compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.logprobs.mode import logprobs_mode
from lmtool.trace.comparison import is_sampled
from lmtool.trace.events import Frame, Open, Parsed
from lmtool.trace.exchanges import LmtpExchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lmtool.trace.events import Event
    from lmtool.trace.exchanges import Exchange

_PROMPTS = ("prompt", "messages")


def as_scores(recorded: Sequence[Exchange]) -> list[Event]:
    """A recording that asks SCORE for the tokens of each sampled stream and expects the logprobs that they had.

    Left out are streams whose logprobs are no log-probabilities of the model's own (LMTP, LOG-3): biased or processed
    ones, and those whose prompt is not in the recording. Empty where nothing is left.
    """
    streams = [one for one in recorded if isinstance(one, LmtpExchange) and is_sampled(one) and not why_not(one)]
    events: list[Event] = [Open(0.0, 1)] if streams else []
    for number, stream in enumerate(streams, 1):
        events += _scored(number, stream)
    return events


def why_not(stream: LmtpExchange) -> str:
    """Why a sampled stream cannot be checked by SCORE; empty where it can."""
    payload = stream.payload
    mode = logprobs_mode(payload, biased=bool(payload.get("logit_bias")))
    if mode != "raw":
        return f"its logprobs are those of a {mode} distribution"
    if any(isinstance(payload.get(name), dict) for name in _PROMPTS):
        return "its prompt was redacted"
    if payload.get("prompt") == []:
        return "its prompt is empty: SCORE does not begin it with the bos token that GENERATE puts there"
    if not tokens(stream):
        return "it has no tokens"
    return ""


def tokens(stream: LmtpExchange) -> list[Mapping[str, object]]:
    """The entries of a stream that have a token."""
    return [entry for reply in stream.replies for entry in reply.entries if "token" in entry]


def _scored(number: int, stream: LmtpExchange) -> Iterator[Event]:
    entries = tokens(stream)
    kept: dict[str, object] = {name: value for name, value in stream.payload.items() if name in ("model", *_PROMPTS)}
    payload = {**kept, "scored": [entry["token"] for entry in entries], "stream_id": number, "text": False}
    if isinstance(kept.get("prompt"), list):
        del payload["text"]  # an extension, which a server of ids need not know
    yield Frame(0.0, ">", 1, Parsed("SCORE", payload, "py"))
    for entry in entries:
        last = entry is entries[-1]
        expected = {
            "token": entry["token"],
            "stream_id": number,
            "logprob": entry.get("logprob"),
            "finish_reason": "stop" if last else None,
        }
        yield Frame(0.0, "<", 1, Parsed("TOKEN", [expected], "py"))


def unscored(recorded: Iterable[Exchange]) -> Iterator[tuple[LmtpExchange, str]]:
    """The sampled streams that `as_scores` leaves out, and why."""
    for one in recorded:
        if isinstance(one, LmtpExchange) and is_sampled(one) and (reason := why_not(one)):
            yield one, reason
