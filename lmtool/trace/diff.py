"""Two answers to one LMTP request, compared stream by stream: the form of one, then both token by token."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.core.types import FinishReason
from lmtool.protocol.lmtp import frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.trace.exchanges import LmtpExchange, Reply

Level: TypeAlias = Literal["shape", "ids", "numbers", "time"]
"""What must be equal: form and endings; also token ids and finish reasons; also log-probabilities; also, within limits,
the speed."""
LEVELS: tuple[Level, ...] = get_args(Level)

Verdict: TypeAlias = Literal["pass", "info", "non-strict", "tie", "fail"]
"""From best to worst. `non-strict`: breaks the protocol in a way that every client tolerates; `tie`: another token, but
the two were about equally likely."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from what was expected."""

    verdict: Verdict
    level: Level
    stream: str
    """Connection and stream id, such as `1/3`."""
    position: int | None
    """Number of the token in its stream, from 0; None for what belongs to no token."""
    message: str
    """Expected and actual, in a sentence."""

    def as_json(self) -> dict[str, object]:
        """As an object."""
        named = {"verdict": self.verdict, "level": self.level, "stream": self.stream}
        return {**named, "token": self.position, "message": self.message}

    def __str__(self) -> str:
        """Verdict, place and message in one line."""
        place = "" if self.position is None else f" token {self.position}"
        return f"{self.verdict} ({self.level}) stream {self.stream}{place}: {self.message}"


def worst(findings: Iterable[Finding]) -> Verdict:
    """The worst verdict of all."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default="pass")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far apart numbers may be that count as equal, in nats."""

    logprob: float = 1e-3
    """Between log-probabilities: 1e-4 for float32 on one device, 1e-3 across devices, 0.05 for bfloat16."""
    tie: float = 0.02
    """Two tokens whose log-probabilities are this near may change places."""
    words: Mapping[int, str | bytes] = field(default_factory=dict, compare=False)
    """What token ids mean, as far as it is known, for what is said of them."""
    is_redacted: bool = False
    """Whether parts of what is expected were left out of HTTP answers: members, and texts for which `***` stands."""


def compare(
    expected: LmtpExchange, actual: LmtpExchange, level: Level, tolerance: Tolerance | None = None
) -> list[Finding]:
    """Everything in which an answer is not as expected at a level; empty where it is.

    Never compared: how tokens are split over frames, the order between streams, times, fields that are not expected;
    where the expected answer was cut off or cancelled, how many tokens came before that.
    """
    recorded, replayed, ended = list(expected.replies), list(actual.replies), expected.ended
    findings = list(shape(actual, unfinished=not ended))
    answers, others = _answers(recorded), _answers(replayed)
    if expected.command == "WATCH":  # what other clients say is their own
        findings += _compare_messages(answers[:1], others[:1], _name(actual), "shape")
    elif answers:
        findings += _compare_messages(answers, others, _name(actual), level)
    elif level != "shape":
        ours, theirs = _entries(recorded, "TOKEN"), _entries(replayed, "TOKEN")
        tolerance = tolerance or Tolerance()
        findings += compare_outputs(ours, theirs, _name(actual), level, tolerance, cut=not ended)
    return findings


def shape(exchange: LmtpExchange, *, unfinished: bool = False) -> Iterator[Finding]:
    """What is wrong with the form of an answer, whatever model gave it. unfinished: it need not have an end."""
    name, replies = _name(exchange), list(exchange.replies)
    tokens, messages = _entries(replies, "TOKEN"), _answers(replies)
    for reply in replies:
        if reply.command not in ("TOKEN", "MSG"):
            yield Finding("info", "shape", name, None, f"unknown command {reply.command}")
        elif reply.bare:
            yield Finding("non-strict", "shape", name, None, f"{reply.command} has an object where a list is expected")
    if exchange.command in ("GENERATE", "SCORE"):
        if tokens or not messages:
            yield from _shape_of_stream(exchange, tokens, name, unfinished=unfinished)
    elif len(messages) != 1 and not unfinished and not (messages and exchange.command == "WATCH"):
        yield Finding("fail", "shape", name, None, f"expected one MSG, got {len(messages)}")


def _shape_of_stream(
    exchange: LmtpExchange, tokens: Sequence[Entry], name: str, *, unfinished: bool
) -> Iterator[Finding]:
    end = next((i for i, entry in enumerate(tokens) if frames.ends("TOKEN", entry)), None)
    if end is None and not unfinished:
        actual = f"after {len(tokens)} entries" if tokens else "no entry at all"
        yield Finding("fail", "shape", name, None, f"expected an end (finish_reason or error), got {actual}")
    elif end is not None and end != len(tokens) - 1:
        after = len(tokens) - 1 - end
        yield Finding("fail", "shape", name, end, f"expected nothing after the end, got {after} more entries")
    for i, entry in enumerate(tokens):
        for message in _wrong_fields(entry, scored=exchange.command == "SCORE"):
            yield Finding("fail", "shape", name, i, message)
    limit = exchange.payload.get("max_tokens", 32) if exchange.command == "GENERATE" else None
    count = sum("token" in entry for entry in tokens)
    if isinstance(limit, int) and count > max(limit, 0):
        yield Finding("fail", "shape", name, None, f"expected at most {limit} tokens, got {count}")


def _wrong_fields(entry: Entry, *, scored: bool) -> Iterator[str]:
    if entry.get("error") is not None:
        if not isinstance(entry["error"], str):
            yield f"expected error as a string, got {quote(entry['error'])}"
        return
    if "token" not in entry:
        return
    if type(entry["token"]) is not int or entry["token"] < 0:
        yield f"expected token as an id, got {quote(entry['token'])}"
    if not _is_number(entry.get("logprob")):
        yield f"expected logprob as a finite number, got {quote(entry.get('logprob'))}"
    if "finish_reason" not in entry:
        yield "expected finish_reason, got none"
    elif entry["finish_reason"] not in (None, *get_args(FinishReason)):
        yield f"expected finish_reason null, {', '.join(get_args(FinishReason))}, got {quote(entry['finish_reason'])}"
    top = entry.get("top_logprobs")
    if top is None and not scored:
        yield "expected top_logprobs, got none"
    elif top is not None and not (isinstance(top, dict) and all(map(_is_number, top.values()))):
        yield f"expected top_logprobs as ids with finite numbers, got {quote(top)}"


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type] # the first test says it


def _compare_messages(expected: Sequence[Entry], actual: Sequence[Entry], name: str, level: Level) -> Iterator[Finding]:
    """An error for an error, facts for facts; every fact that was recorded is there again."""
    for ours, theirs in zip(expected, actual, strict=False):
        one, other = (_message_kind(entry) for entry in (ours, theirs))
        if one != other:
            yield Finding("fail", "shape", name, None, f"expected MSG with {one}, got {quote(theirs)}")
        elif level != "shape" and one == "model_info":
            yield from _compare_info(ours.get("model_info"), theirs.get("model_info"), name)
        elif level != "shape" and ours.get("buffer") != theirs.get("buffer"):
            message = f"expected buffer {quote(ours.get('buffer'))}, got {quote(theirs.get('buffer'))}"
            yield Finding("fail", "ids", name, None, message)


def _message_kind(entry: Entry) -> str:
    """What an entry of a MSG tells; a list of models is as good as the description of one (INF-6)."""
    return next((name for name in ("error", "buffer", "watch") if entry.get(name) is not None), "model_info")


def _compare_info(expected: object, actual: object, name: str) -> Iterator[Finding]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for field in sorted(set(expected) - set(actual)):
            yield Finding("info", "ids", name, None, f"model_info lacks {field}")


def compare_outputs(
    ours: Sequence[Entry], theirs: Sequence[Entry], name: str, level: Level, tolerance: Tolerance, *, cut: bool
) -> Iterator[Finding]:
    """Findings for the outputs of one stream, entry by entry. cut: whether the expected ones break off."""
    if ours and ours[-1].get("finish_reason") == "cancelled":
        cut = True
        yield from _compare_cancelled(theirs, name)
        ours, theirs = ([one for one in side if "token" in one] for side in (ours, theirs))
    for i, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.get("error") is not None or other.get("error") is not None:
            yield from _compare_errors(one, other, name, i, tolerance.words)
            return
        if one.get("token") != other.get("token"):
            yield _other_token(one, other, name, i, tolerance)
            return
        yield from _unequal("finish_reason", one, other, "ids", name, i)
        if level in ("numbers", "time"):
            yield from _compare_numbers(one, other, name, i, tolerance)
    if len(ours) != len(theirs) and not cut:
        yield Finding("fail", "ids", name, None, f"expected {len(ours)} entries, got {len(theirs)}")


def _compare_cancelled(actual: Sequence[Entry], name: str) -> Iterator[Finding]:
    """A stream may have come to its own end just before the CANCEL did (LMTP, CAN-1)."""
    reason = actual[-1].get("finish_reason") if actual else None
    if reason not in ("cancelled", None):
        yield Finding("info", "ids", name, len(actual) - 1, f"expected finish_reason 'cancelled', got {quote(reason)}")


def _compare_errors(
    expected: Entry, actual: Entry, name: str, position: int, words: Mapping[int, str | bytes]
) -> Iterator[Finding]:
    if (expected.get("error") is None) != (actual.get("error") is None):
        yield Finding("fail", "ids", name, position, f"expected {_told(expected, words)}, got {_told(actual, words)}")
        return
    for member in ("error_code", "retryable"):
        if member in expected:
            yield from _unequal(member, expected, actual, "ids", name, position)


def _unequal(
    field: str, expected: Entry, actual: Entry, level: Level, name: str, position: int, tolerance: float = 0.0
) -> Iterator[Finding]:
    ours, theirs = expected.get(field), actual.get(field)
    if apart(ours, theirs, tolerance):
        message = f"expected {field} {quote(ours)}, got {quote(theirs)}"
        yield Finding("fail", level, name, position, message)


def _other_token(expected: Entry, actual: Entry, name: str, position: int, tolerance: Tolerance) -> Finding:
    ours, theirs = expected.get("token"), actual.get("token")
    words = tolerance.words
    message = f"expected token {_named(ours, words)}, got {_named(theirs, words)}"
    if isinstance(ours, str) and isinstance(theirs, str):  # over HTTP; maybe all of a text whose tokens are not known
        place = first_difference(ours, theirs)
        near = slice(max(0, place - 20), place + 40)
        message = f"text differs at character {place}: expected {ours[near]!r}, got {theirs[near]!r}"
    gaps = [gap for entry in (expected, actual) if (gap := _gap(entry, ours, theirs)) is not None]
    if gaps and max(gaps) <= tolerance.tie:
        message += f"; a near tie ({max(gaps):.4f} nats), not compared further"
        return Finding("tie", "ids", name, position, message)
    return Finding("fail", "ids", name, position, f"{message}{_logprobs(expected, actual)}")


def _named(token: object, words: Mapping[int, str | bytes]) -> str:
    """A token id with its text, where that is known."""
    word = words.get(token) if isinstance(token, int) else None
    if word is None:
        return quote(token)
    return f"{token} {json.dumps(word, ensure_ascii=False) if isinstance(word, str) else f'⟨{word.hex()}⟩'}"


def _told(entry: Entry, words: Mapping[int, str | bytes]) -> str:
    """What an entry brings, in words: a failure, a token, an ending."""
    if entry.get("error") is not None:
        return f"the error {quote(entry['error'])}"
    if entry.get("token") is None:
        return f"an ending ({entry.get('finish_reason')})"
    logprob = entry.get("logprob")
    figure = f", logprob {logprob:.4f}" if _is_number(logprob) else ""
    token, text = entry["token"], entry.get("text")
    known = {token: text, **words} if isinstance(token, int) and isinstance(text, str) else words
    return f"token {_named(token, known)}{figure}"


def _logprobs(expected: Entry, actual: Entry) -> str:
    pair = [entry.get("logprob") for entry in (expected, actual)]
    return f"; logprob {pair[0]:.4f} and {pair[1]:.4f}" if all(map(_is_number, pair)) else ""


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """The first place at which two sequences differ; where one is the other's beginning, its end."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _gap(entry: Entry, one: object, other: object) -> float | None:
    """How far apart two tokens are in an entry's alternatives, in nats; None where one of them is missing."""
    top = entry.get("top_logprobs")
    pair = [top.get(str(token)) for token in (one, other)] if isinstance(top, dict) else []
    numbers = [value for value in pair if isinstance(value, int | float)]
    return abs(numbers[0] - numbers[1]) if len(numbers) == 2 else None


def _compare_numbers(
    expected: Entry, actual: Entry, name: str, position: int, tolerance: Tolerance
) -> Iterator[Finding]:
    yield from _unequal("logprob", expected, actual, "numbers", name, position, tolerance.logprob)
    top, other = expected.get("top_logprobs"), actual.get("top_logprobs")
    if not (isinstance(top, dict) and isinstance(other, dict)):
        return
    shared = [token for token in top if token in other]
    for token in shared:
        if apart(top[token], other[token], tolerance.logprob):
            ours, theirs = quote(top[token]), quote(other[token])
            name_of_token = _named(int(token) if token.isdigit() else token, tolerance.words)
            message = f"expected {ours} for token {name_of_token} in top_logprobs, got {theirs}"
            yield Finding("fail", "numbers", name, position, message)
    if len(shared) < min(len(top), len(other)) - 1:
        ours, theirs = (
            ", ".join(_named(int(i) if i.isdigit() else i, tolerance.words) for i in one) for one in (top, other)
        )
        message = f"expected top_logprobs of {ours}, got those of {theirs}"
        yield Finding("fail", "numbers", name, position, message)


def _answers(replies: Iterable[Reply]) -> list[Entry]:
    """The MSG entries that answer: not how a load proceeds, nor which fields were ignored."""
    return [entry for entry in _entries(replies, "MSG") if not {"progress", "system", "ignored"} & entry.keys()]


def apart(one: object, other: object, tolerance: float) -> bool:
    """Whether two values differ, numbers by more than a tolerance."""
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return one != other
    return one != other and not abs(one - other) <= tolerance


def _entries(replies: Iterable[Reply], command: str) -> list[Entry]:
    return [entry for reply in replies if reply.command == command for entry in reply.entries]


def _name(exchange: LmtpExchange) -> str:
    return f"{exchange.connection}/{json.dumps(exchange.stream_id, separators=(',', ':'))}"


def quote(value: object, most: int = 100) -> str:
    """A value in at most this many characters, for a sentence."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
