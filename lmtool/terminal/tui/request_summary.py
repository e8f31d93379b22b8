"""What a request specifies, as far as it is shown: the stream it begins, and a few words for the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.logprobs.mode import logprobs_mode
from lmtool.terminal.tui.streams import Stream
from lmtool.trace.codec import reference
from lmtool.trace.stream_events import PROMPT_MEMBERS, new_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import LogprobsMode
    from lmtool.trace.stream_events import RequestStarted

PROMPT_TOKENS = 256
"""Ids of a prompt's end that stay in memory."""
PROMPT_CHARACTERS = 2000
RULED_OUT = -100.0
"""A bias with which no token is sampled (LMQL's masks have it)."""
_LARGE = (*PROMPT_MEMBERS, "generated", "logit_bias", "stream_id", "model", "stream", "tools")
_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_SHORT = {"temperature": "t", "top_p": "p", "top_k": "k", "top_logprobs": "top", "seed": "seed", "min_p": "min_p"}
_CONSTRAINTS = ("constraint", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and end of a large value: a prompt, a text, a bias."""

    size: int
    """Ids, characters or members."""
    end: tuple[int, ...] | str = ""
    """Its last ids or characters."""
    ruled_out: int = 0
    """Members that are a bias of `RULED_OUT` or less."""


def digest(value: object) -> Digest:
    """Size and end of a member of a payload, or of the value of a blob."""
    if isinstance(value, str):
        return Digest(len(value), value[-PROMPT_CHARACTERS:])
    if isinstance(value, list):
        end = value[-PROMPT_TOKENS:]
        return Digest(len(value), tuple(end) if all(type(i) is int for i in end) else _last_message(end))
    if isinstance(value, dict):
        ruled_out = sum(type(bias) in (int, float) and bias <= RULED_OUT for bias in value.values())
        return Digest(len(value), ruled_out=ruled_out)
    return Digest(0)


def _last_message(messages: list[object]) -> str:
    """The text of the last message, or what a tool answered."""
    last = messages[-1] if messages else None
    if isinstance(last, str):
        return last[-PROMPT_CHARACTERS:]
    if not isinstance(last, dict):
        return ""
    return _text_of(last.get("content", last.get("output")))[-PROMPT_CHARACTERS:]


def _text_of(content: object) -> str:
    """A content, or the texts of its parts, which may be answers of tools with parts of their own."""
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(str(part.get("text") or _text_of(part.get("content"))) for part in parts)


def stream_of(started: RequestStarted, index: int, choice: int, frame: int, blobs: Mapping[str, Digest]) -> Stream:
    """The stream of a request, or of one further choice of its answer.

    frame: the one of the request. blobs: what the references in its payload stand for.
    """
    payload = started.payload
    prompt = _digest(started.prompt, blobs)
    generated = _digest(started.payload.get("generated"), blobs)
    if isinstance(prompt.end, tuple) and prompt.size and isinstance(generated.end, tuple):
        prompt = Digest(prompt.size + generated.size, (*prompt.end, *generated.end)[-PROMPT_TOKENS:])
        generated = Digest(0)
    bias = _digest(payload.get("logit_bias"), blobs)
    return new_stream(
        Stream,
        started,
        index,
        choice,
        frame=frame,
        nodes=started.nodes,
        payload={name: value for name, value in payload.items() if name not in _LARGE},
        prompt=prompt.end,
        generated=generated.end if isinstance(generated.end, tuple) else (),
        generated_tokens=generated.size,
        prompt_tokens=_prompt_tokens(started, prompt),
        max_tokens=_max_tokens(started, blobs),
        biased=bias.size,
        ruled_out=bias.ruled_out,
        constraint=_constraint(payload),
        top_logprobs=_top_logprobs(started),
        logprobs_mode=_mode(started, biased=bool(bias.size)),
    )


def _top_logprobs(started: RequestStarted) -> int | None:
    default = 1 if started.stream_kind == "GEN" and started.has_request else None
    name = "logprobs" if started.api == "completions" else "top_logprobs"
    value = started.payload.get(name, default)
    return value if type(value) is int else None


def _mode(started: RequestStarted, *, biased: bool) -> LogprobsMode | None:
    """SCORE has the model's own; what HTTP servers have is their business."""
    if started.stream_kind == "GEN" and started.has_request:
        return logprobs_mode(started.payload, biased=biased)
    return "raw" if started.stream_kind == "SCORE" else None


def _digest(value: object, blobs: Mapping[str, Digest]) -> Digest:
    sha256 = reference(value)
    if sha256 is not None:
        return blobs.get(sha256, Digest(0))
    if isinstance(value, dict) and "$redacted" in value:
        return Digest(0)
    return digest(value)


def _prompt_tokens(started: RequestStarted, prompt: Digest) -> int | None:
    """Ids of the prompt; None for a text or messages."""
    if isinstance(prompt.end, tuple) and prompt.size:
        return prompt.size
    redacted = started.payload.get("prompt")
    return started.prompt_length if isinstance(redacted, dict) and "$redacted" in redacted else None


def _max_tokens(started: RequestStarted, blobs: Mapping[str, Digest]) -> int | None:
    if started.stream_kind == "SCORE":
        scored = _digest(started.payload.get("scored"), blobs)
        return scored.size if isinstance(scored.end, tuple) else None
    default = 32 if started.stream_kind == "GEN" else None
    most = next((started.payload[name] for name in _MAX_TOKENS if name in started.payload), default)
    return most if type(most) is int else None


def _constraint(payload: Mapping[str, object]) -> str | None:
    for name in _CONSTRAINTS:
        value = payload.get(name)
        if isinstance(value, dict):
            kind = str(value.get("type") or next(iter(value), name))
            if kind != "text":
                return kind
        elif value is not None:
            return name.removeprefix("guided_")
    return None


def parameters(payload: Mapping[str, object], biased: int, constraint: str | None) -> str:
    """A few words for the table: `t=.7 seed=1 bias 10 json_schema`."""
    words = [f"{_SHORT[name]}={_number(value)}" for name, value in payload.items() if name in _SHORT]
    words += [f"bias {biased}"] if biased else []
    words += [constraint] if constraint else []
    return " ".join(words) or "-"


def _number(value: object) -> str:
    text = f"{value:g}" if isinstance(value, int | float) else str(value)
    return text[1:] if text.startswith("0.") else text
