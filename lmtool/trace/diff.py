"""Two answers to one LMTP request, compared stream by stream: the form of one, then both token by token."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.lmtp import frames
from lmtool.trace.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.lmtp.frames import Entry
    from lmtool.trace.exchanges import LmtpExchange


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How near is equal. In nats."""

    logprob: float = 1e-3
    """Between log-probabilities: 1e-4 for float32 on one device, 1e-3 across devices, 0.05 for bfloat16."""
    tie: float = 0.02
    """Two tokens whose log-probabilities are this near may change places."""


def compare(
    expected: LmtpExchange, actual: LmtpExchange, level: Level, tolerance: Tolerance | None = None
) -> list[Finding]:
    """Everything in which an answer is not as expected at a level; empty where it is.

    Never compared: how tokens are split over frames, the order between streams, times, fields that are not expected;
    where the expected answer was cut off or cancelled, how many tokens came before that.
    """
    found = list(shape(actual, unfinished=not expected.ended))
    answered = _answers(expected)
    if answered:
        found += _compare_messages(answered, _answers(actual), _name(actual), level)
    elif level != "shape":
        ours, theirs = _entries(expected, "TOKEN"), _entries(actual, "TOKEN")
        tolerance = tolerance or Tolerance()
        found += compare_outputs(ours, theirs, _name(actual), level, tolerance, cut=not expected.ended)
    return found


def shape(exchange: LmtpExchange, *, unfinished: bool = False) -> Iterator[Finding]:
    """What is wrong with the form of an answer, whatever model gave it. unfinished: it need not have an end."""
    name = _name(exchange)
    tokens, messages = _entries(exchange, "TOKEN"), _answers(exchange)
    for reply in exchange.replies:
        if reply.command not in ("TOKEN", "MSG"):
            yield Finding("info", "shape", name, None, f"unknown command {reply.command}")
        elif reply.bare:
            yield Finding("non-strict", "shape", name, None, f"{reply.command} has an object where a list is expected")
    if exchange.command in ("GENERATE", "SCORE"):
        if messages and not tokens:
            return
        yield from _shape_of_stream(exchange, tokens, name, unfinished=unfinished)
    elif len(messages) != 1 and not unfinished:
        yield Finding("fail", "shape", name, None, f"expected one MSG, got {len(messages)}")


def _shape_of_stream(
    exchange: LmtpExchange, tokens: Sequence[Entry], name: str, *, unfinished: bool
) -> Iterator[Finding]:
    ends = [i for i, entry in enumerate(tokens) if frames.ends("TOKEN", entry)]
    if not ends and unfinished:
        pass
    elif not ends:
        got = f"after {len(tokens)} entries" if tokens else "no entry at all"
        yield Finding("fail", "shape", name, None, f"expected an end (finish_reason or error), got {got}")
    elif ends[0] != len(tokens) - 1:
        after = len(tokens) - 1 - ends[0]
        yield Finding("fail", "shape", name, ends[0], f"expected nothing after the end, got {after} more entries")
    for i, entry in enumerate(tokens):
        for message in _wrong_fields(entry, scored=exchange.command == "SCORE"):
            yield Finding("fail", "shape", name, i, message)
    most = exchange.payload.get("max_tokens", 32) if exchange.command == "GENERATE" else None
    count = sum("token" in entry for entry in tokens)
    if isinstance(most, int) and count > max(most, 0):
        yield Finding("fail", "shape", name, None, f"expected at most {most} tokens, got {count}")


def _wrong_fields(entry: Entry, *, scored: bool) -> Iterator[str]:
    if entry.get("error") is not None:
        if not isinstance(entry["error"], str):
            yield f"expected error as a string, got {_shown(entry['error'])}"
        return
    if "token" not in entry:
        return
    if type(entry["token"]) is not int or entry["token"] < 0:
        yield f"expected token as an id, got {_shown(entry['token'])}"
    if not _is_number(entry.get("logprob")):
        yield f"expected logprob as a finite number, got {_shown(entry.get('logprob'))}"
    if "finish_reason" not in entry:
        yield "expected finish_reason, got none"
    elif entry["finish_reason"] not in (None, "stop", "length", "cancelled"):
        yield f"expected finish_reason null, stop, length or cancelled, got {_shown(entry['finish_reason'])}"
    top = entry.get("top_logprobs")
    if top is None and not scored:
        yield "expected top_logprobs, got none"
    elif top is not None and not (isinstance(top, dict) and all(map(_is_number, top.values()))):
        yield f"expected top_logprobs as ids with finite numbers, got {_shown(top)}"


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type] # the first test says it


def _compare_messages(expected: Sequence[Entry], actual: Sequence[Entry], name: str, level: Level) -> Iterator[Finding]:
    """An error for an error, facts for facts; every fact that was recorded is there again."""
    for ours, theirs in zip(expected, actual, strict=False):
        wanted, got = ("error" if one.get("error") is not None else "model_info" for one in (ours, theirs))
        if wanted != got:
            yield Finding("fail", "shape", name, None, f"expected MSG with {wanted}, got {_shown(theirs)}")
        elif level != "shape" and wanted == "model_info":
            yield from _compare_info(ours.get("model_info"), theirs.get("model_info"), name)


def _compare_info(expected: object, actual: object, name: str) -> Iterator[Finding]:
    if not (isinstance(expected, dict) and isinstance(actual, dict)):
        return
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
            yield from _compare_errors(one, other, name, i)
            return
        if one.get("token") != other.get("token"):
            yield _other_token(one, other, name, i, tolerance)
            return
        if one.get("finish_reason") != other.get("finish_reason"):
            wanted, got = _shown(one.get("finish_reason")), _shown(other.get("finish_reason"))
            yield Finding("fail", "ids", name, i, f"expected finish_reason {wanted}, got {got}")
        if level in ("numbers", "time"):
            yield from _compare_numbers(one, other, name, i, tolerance)
    if len(ours) != len(theirs) and not cut:
        yield Finding("fail", "ids", name, None, f"expected {len(ours)} entries, got {len(theirs)}")


def _compare_cancelled(actual: Sequence[Entry], name: str) -> Iterator[Finding]:
    """A stream may have come to its own end just before the CANCEL did (LMTP, CAN-1)."""
    reason = actual[-1].get("finish_reason") if actual else None
    if reason not in ("cancelled", None):
        yield Finding("info", "ids", name, len(actual) - 1, f"expected finish_reason 'cancelled', got {_shown(reason)}")


def _compare_errors(expected: Entry, actual: Entry, name: str, position: int) -> Iterator[Finding]:
    if (expected.get("error") is None) != (actual.get("error") is None):
        yield Finding("fail", "ids", name, position, f"expected {_shown(expected)}, got {_shown(actual)}")
    elif "error_code" in expected and expected["error_code"] != actual.get("error_code"):
        wanted, got = _shown(expected["error_code"]), _shown(actual.get("error_code"))
        yield Finding("fail", "ids", name, position, f"expected error_code {wanted}, got {got}")


def _other_token(expected: Entry, actual: Entry, name: str, position: int, tolerance: Tolerance) -> Finding:
    wanted, got = expected.get("token"), actual.get("token")
    message = f"expected token {_shown(wanted)}, got {_shown(got)}"
    if isinstance(wanted, str) and isinstance(got, str):  # over HTTP; maybe all of a text whose tokens are not known
        message = _other_text(wanted, got)
    gaps = [_gap(entry, wanted, got) for entry in (expected, actual)]
    near = [gap for gap in gaps if gap is not None]
    if near and max(near) <= tolerance.tie:
        return Finding(
            "tie", "ids", name, position, f"{message}; a near tie ({max(near):.4f} nats), not compared further"
        )
    return Finding("fail", "ids", name, position, message)


def _other_text(wanted: str, got: str) -> str:
    pairs = zip(wanted, got, strict=False)
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(wanted), len(got)))
    near = slice(max(0, place - 20), place + 40)
    return f"text differs at character {place}: expected {wanted[near]!r}, got {got[near]!r}"


def _gap(entry: Entry, one: object, other: object) -> float | None:
    """How far apart one side had both tokens, in nats; None where it does not tell."""
    top = entry.get("top_logprobs")
    pair = [top.get(str(token)) for token in (one, other)] if isinstance(top, dict) else []
    numbers = [value for value in pair if isinstance(value, int | float)]
    return abs(numbers[0] - numbers[1]) if len(numbers) == 2 else None


def _compare_numbers(
    expected: Entry, actual: Entry, name: str, position: int, tolerance: Tolerance
) -> Iterator[Finding]:
    ours, theirs = expected.get("logprob"), actual.get("logprob")
    if _apart(ours, theirs, tolerance):
        yield Finding("fail", "numbers", name, position, f"expected logprob {_shown(ours)}, got {_shown(theirs)}")
    top, other = expected.get("top_logprobs"), actual.get("top_logprobs")
    if not (isinstance(top, dict) and isinstance(other, dict)):
        return
    shared = [token for token in top if token in other]
    for token in shared:
        if _apart(top[token], other[token], tolerance):
            wanted, got = _shown(top[token]), _shown(other[token])
            yield Finding(
                "fail", "numbers", name, position, f"expected {wanted} for token {token} in top_logprobs, got {got}"
            )
    if len(shared) < min(len(top), len(other)) - 1:
        wanted, got = ", ".join(top), ", ".join(other)
        yield Finding("fail", "numbers", name, position, f"expected top_logprobs of {wanted}, got those of {got}")


def _answers(exchange: LmtpExchange) -> list[Entry]:
    """The MSG entries that answer: not how a load proceeds, nor which fields were ignored."""
    return [entry for entry in _entries(exchange, "MSG") if not {"progress", "ignored"} & entry.keys()]


def _apart(one: object, other: object, tolerance: Tolerance) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return one != other
    return one != other and not abs(one - other) <= tolerance.logprob


def _entries(exchange: LmtpExchange, command: str) -> list[Entry]:
    return [entry for reply in exchange.replies if reply.command == command for entry in reply.entries]


def _name(exchange: LmtpExchange) -> str:
    return f"{exchange.connection}/{json.dumps(exchange.stream_id, separators=(',', ':'))}"


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
