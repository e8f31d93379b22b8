"""Compare recordings request by request, or a recording with its replay; LMTP streams token by token."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.core.types import FinishReason
from lmtool.net.access.credentials import LEFT_OUT
from lmtool.protocol.lmtp import frames
from lmtool.trace.answers import Answers
from lmtool.trace.events import Close, Done, Drop, Piece, Vocab
from lmtool.trace.exchanges import Exchange, HttpExchange, LmtpExchange, collect, exchanges, recorded_actions
from lmtool.trace.matching import Matcher, MatchMode, Miss, first_difference, quote
from lmtool.trace.stream_events import OutputEvent, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.trace.events import Event
    from lmtool.trace.exchanges import Reply

Level: TypeAlias = Literal["shape", "ids", "numbers", "time"]
"""Properties that must be equal. `shape`: structure and endings; `ids`: also token ids and finish reasons; `numbers`:
also logprobs; `time`: also speed, within limits."""
LEVELS: tuple[Level, ...] = get_args(Level)

Verdict: TypeAlias = Literal["pass", "info", "non-strict", "tie", "fail"]
"""From best to worst. `non-strict`: breaks the protocol in a way that every client tolerates; `tie`: another token, but
the two were about equally likely."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from the expected answer."""

    verdict: Verdict
    level: Level
    stream: str
    """Connection and stream id, such as `1/3`."""
    position: int | None
    """Index of the token in its stream, from 0; None for a finding about no token."""
    message: str
    """Expected and actual value, in a sentence."""

    def as_json(self) -> dict[str, object]:
        """The finding as a JSON object."""
        named = {"verdict": self.verdict, "level": self.level, "stream": self.stream}
        return {**named, "token": self.position, "message": self.message}

    def __str__(self) -> str:
        """Verdict, place and message in one line."""
        place = "" if self.position is None else f" token {self.position}"
        return f"{self.verdict} ({self.level}) stream {self.stream}{place}: {self.message}"


def worst(findings: Iterable[Finding]) -> Verdict:
    """Worst of the findings' verdicts."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default="pass")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest differences, in nats, between numbers that count as equal."""

    logprob: float = 1e-3
    """Between logprobs: 1e-4 for float32 on one device, 1e-3 across devices, 0.05 for bfloat16."""
    tie: float = 0.02
    """Two tokens whose logprobs differ by no more than this may swap."""
    words: Mapping[int, str | bytes] = field(default_factory=dict, compare=False)
    """Text of token ids, for messages."""
    is_redacted: bool = False
    """True if members or texts of the expected HTTP answers were redacted (`***`)."""


def compare_answers(
    expected: LmtpExchange, actual: LmtpExchange, level: Level, tolerance: Tolerance | None = None
) -> list[Finding]:
    """Differences between an answer and the expected one at a level; empty if there are none.

    Never compared: grouping of tokens into frames, order between streams, times, fields that are not expected; the
    number of tokens if the expected answer was cut off or cancelled.
    """
    recorded, replayed, ended = list(expected.replies), list(actual.replies), expected.ended
    findings = list(shape(actual, unfinished=not ended))
    answers, others = _answers(recorded), _answers(replayed)
    if expected.command == "WATCH":  # other clients' traffic differs
        findings += _compare_messages(answers[:1], others[:1], _name(actual), "shape")
    elif answers:
        findings += _compare_messages(answers, others, _name(actual), level)
    elif level != "shape":
        ours, theirs = _entries(recorded, "TOKEN"), _entries(replayed, "TOKEN")
        tolerance = tolerance or Tolerance()
        findings += compare_outputs(ours, theirs, _name(actual), level, tolerance, cut=not ended)
    return findings


def shape(exchange: LmtpExchange, *, unfinished: bool = False) -> Iterator[Finding]:
    """Structural mistakes of an answer, for any model. unfinished: a missing end is no mistake."""
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
    """Compare MSG entries: an error must be an error again, and each recorded fact must be there."""
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
    """Kind of a MSG entry. A list of models counts as `model_info` (INF-6)."""
    return next((name for name in ("error", "buffer", "watch") if entry.get(name) is not None), "model_info")


def _compare_info(expected: object, actual: object, name: str) -> Iterator[Finding]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for field in sorted(set(expected) - set(actual)):
            yield Finding("info", "ids", name, None, f"model_info lacks {field}")


def compare_outputs(
    ours: Sequence[Entry], theirs: Sequence[Entry], name: str, level: Level, tolerance: Tolerance, *, cut: bool
) -> Iterator[Finding]:
    """Findings for the outputs of one stream, entry by entry. cut: the expected outputs break off."""
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
    """Finding if a stream ended by itself just before the CANCEL (LMTP, CAN-1)."""
    reason = actual[-1].get("finish_reason") if actual else None
    if reason not in ("cancelled", None):
        yield Finding("info", "ids", name, len(actual) - 1, f"expected finish_reason 'cancelled', got {quote(reason)}")


def _compare_errors(
    expected: Entry, actual: Entry, name: str, position: int, words: Mapping[int, str | bytes]
) -> Iterator[Finding]:
    if (expected.get("error") is None) != (actual.get("error") is None):
        sides = _entry_summary(expected, words), _entry_summary(actual, words)
        yield Finding("fail", "ids", name, position, "expected {}, got {}".format(*sides))
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
    if isinstance(ours, str) and isinstance(theirs, str):  # over HTTP; possibly a whole text without known tokens
        place = first_difference(ours, theirs)
        near = slice(max(0, place - 20), place + 40)
        message = f"text differs at character {place}: expected {ours[near]!r}, got {theirs[near]!r}"
    gaps = [gap for entry in (expected, actual) if (gap := _gap(entry, ours, theirs)) is not None]
    if gaps and max(gaps) <= tolerance.tie:
        message += f"; a near tie ({max(gaps):.4f} nats), not compared further"
        return Finding("tie", "ids", name, position, message)
    return Finding("fail", "ids", name, position, f"{message}{_logprobs(expected, actual)}")


def _named(token: object, words: Mapping[int, str | bytes]) -> str:
    """A token id with its text, if known."""
    word = words.get(token) if isinstance(token, int) else None
    if word is None:
        return quote(token)
    return f"{token} {json.dumps(word, ensure_ascii=False) if isinstance(word, str) else f'⟨{word.hex()}⟩'}"


def _entry_summary(entry: Entry, words: Mapping[int, str | bytes]) -> str:
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


def _gap(entry: Entry, one: object, other: object) -> float | None:
    """Difference between two tokens' logprobs in an entry's alternatives, in nats; None if one is missing."""
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
    """MSG entries that are answers; progress reports and lists of ignored fields are not."""
    return [entry for entry in _entries(replies, "MSG") if not {"progress", "system", "ignored"} & entry.keys()]


def apart(one: object, other: object, tolerance: float) -> bool:
    """True if two values differ, numbers by more than a tolerance."""
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return one != other
    return one != other and not abs(one - other) <= tolerance


def _entries(replies: Iterable[Reply], command: str) -> list[Entry]:
    return [entry for reply in replies if reply.command == command for entry in reply.entries]


def _name(exchange: LmtpExchange) -> str:
    return f"{exchange.connection}/{json.dumps(exchange.stream_id, separators=(',', ':'))}"


_Difference: TypeAlias = "tuple[str, object, object]"
"""Path at which two JSON values differ, such as `$.data[0]`, and both values there."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Findings for one recorded request."""

    stream: str
    """Connection and stream id in the first recording."""
    kind: str
    """Its command, or method and path."""
    findings: tuple[Finding, ...] = ()

    @classmethod
    def note(cls, message: str, verdict: Verdict = "fail", stream: str = "-", kind: str = "-") -> Comparison:
        """A comparison with a single finding at level `shape`."""
        return cls(stream, kind, (Finding(verdict, "shape", stream, None, message),))

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of its findings."""
        return worst(self.findings)

    def as_json(self) -> str:
        """The comparison as a line of JSON."""
        findings = [
            {"verdict": f.verdict, "level": f.level, "token": f.position, "message": f.message} for f in self.findings
        ]
        return json.dumps({"stream": self.stream, "kind": self.kind, "verdict": self.verdict, "findings": findings})

    def __str__(self) -> str:
        """The verdict, and a line for each finding."""
        head = f"{self.verdict:<10} {self.stream:<7} {self.kind}"
        return "\n".join([head, *(f"    {finding}" for finding in self.findings)])


def compare(
    expected: Sequence[Exchange],
    actual: Sequence[Exchange],
    level: Level,
    tolerance: Tolerance,
    *,
    mode: MatchMode = "exact",
    ignore: Sequence[str] = (),
) -> Iterator[Comparison]:
    """One comparison per expected exchange, then one per unexpected one; computed lazily.

    Requests are paired as a mock server would pair them: equal ones in order.
    """
    matcher = Matcher(actual, mode, ignore=ignore, once=True)
    for exchange in expected:
        match = matcher.match(exchange)
        if isinstance(match, Miss):
            reason = (
                f"the second trace has no such request: {'; '.join(match.differences) or 'no request of this kind'}"
            )
            yield Comparison.note(reason, "fail", exchange.name, exchange.kind)
        else:
            yield _pair(exchange, match, level, tolerance)
    for extra in matcher.unused:
        yield Comparison.note(f"this {extra.kind} was not expected", "fail", extra.name, extra.kind)


def compare_replay(
    expected: Iterable[Event], actual: Iterable[Event], level: Level, tolerance: Tolerance
) -> list[Comparison]:
    """One comparison per recorded request with the same request of the replay.

    The n-th request of a connection is compared with the n-th one of the replay. Streams sampled without a seed are
    compared at level `shape`; `replaying` lets the server score them. Entries for unknown streams, and connections that
    the server closed in another way than recorded, are findings too.
    """
    ours, theirs = list(expected), list(actual)
    tolerance = with_words(tolerance, (*ours, *theirs))
    replayed, unmatched = collect(theirs)
    by_connection: dict[int, deque[Exchange]] = {}
    for exchange in replayed:
        by_connection.setdefault(exchange.connection, deque()).append(exchange)
    comparisons = []
    for exchange in exchanges(ours):
        again = by_connection.get(exchange.connection)
        if again:
            highest: Level = "shape" if is_sampled(exchange) else level
            comparisons.append(_pair(exchange, again.popleft(), highest, tolerance))
        else:
            lost = "not sent: the connection was closed"
            comparisons.append(Comparison.note(lost, "fail", exchange.name, exchange.kind))
    for connection, entry in unmatched:
        name = f"{connection}/{json.dumps(entry.get('stream_id'))}"
        message = f"expected only entries of started streams, got {json.dumps(entry)[:100]}"
        comparisons.append(Comparison.note(message, "fail", name, "unmatched"))
    return [*comparisons, *compare_sessions(ours, theirs, level), *_compare_endings(ours, theirs)]


def with_words(tolerance: Tolerance, events: Iterable[Event]) -> Tolerance:
    """The tolerance with token texts from the vocabulary events, so that findings can quote them."""
    words = {token: text for event in events if isinstance(event, Vocab) for token, text in event.tokens.items()}
    return replace(tolerance, words=words)


def compare_sessions(expected: Sequence[Event], actual: Sequence[Event], level: Level) -> Iterator[Comparison]:
    """One comparison per Evergreen action; outputs are compared byte by byte, unless they were sampled.

    Actions are paired by connection and number. Raises `ResourceError` without protobuf.
    """
    ours = recorded_actions(expected)
    if not ours:
        return
    from lmtool.trace.sessions import differences

    again = {(one.connection, one.number): one for one in recorded_actions(actual)}
    for one in ours:
        name, other = f"{one.connection}/{one.number}", again.get((one.connection, one.number))
        if other is None:
            yield Comparison.note("the second trace has no such action", "fail", name, one.kind)
            continue
        sentences = differences(one, other, values=level != "shape" and not one.sampled)
        findings = tuple(Finding("fail", "ids", name, None, sentence) for sentence in sentences)
        yield Comparison(name, one.kind, findings)


def is_sampled(exchange: Exchange) -> bool:
    """True if a stream's tokens were sampled at random without a seed."""
    if not isinstance(exchange, LmtpExchange) or exchange.command != "GENERATE":
        return False
    temperature = exchange.payload.get("temperature")
    return isinstance(temperature, int | float) and temperature > 0 and exchange.payload.get("seed") is None


def _compare_endings(expected: Iterable[Event], actual: Iterable[Event]) -> Iterator[Comparison]:
    """Findings for connections that the server closed in only one of both, or with another code."""
    ours, theirs = _ended_by_server(expected), _ended_by_server(actual)
    for connection in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(connection, "no end by the server"), theirs.get(connection, "none")
        if one != other:
            yield Comparison.note(f"expected {one}, got {other}", "fail", str(connection), "end of the connection")


def _ended_by_server(events: Iterable[Event]) -> dict[int, str]:
    ends = {}
    for event in events:
        if isinstance(event, Close) and event.by == "server" and event.code is not None:
            ends[event.connection] = f"code {event.code}"
        elif isinstance(event, Drop) and event.facts.get("by") == "server":
            ends[event.connection] = "an end without a close frame"
    return ends


def _pair(expected: Exchange, actual: Exchange, level: Level, tolerance: Tolerance) -> Comparison:
    if isinstance(expected, LmtpExchange) and isinstance(actual, LmtpExchange):
        findings = compare_answers(expected, actual, level, tolerance)
    elif isinstance(expected, HttpExchange) and isinstance(actual, HttpExchange):
        findings = _compare_http(expected, actual, level, tolerance)
    else:
        return Comparison.note(f"expected {expected.kind}, got {actual.kind}", "fail", expected.name, expected.kind)
    return Comparison(expected.name, expected.kind, tuple(findings))


def _compare_http(expected: HttpExchange, actual: HttpExchange, level: Level, tolerance: Tolerance) -> list[Finding]:
    """Compare status and completeness; above `shape` also the generated outputs, or else the body's bytes."""
    findings, name = [], expected.name
    ours, theirs = (None if one.response is None else one.response.status for one in (expected, actual))
    if ours != theirs:
        findings.append(Finding("fail", "shape", name, None, f"expected status {ours}, got {theirs}"))
    if expected.complete and not actual.complete:
        findings.append(Finding("fail", "shape", name, None, "expected a complete body, got one that was cut"))
    if level == "shape" or findings:
        return findings
    choices, others = _choices(expected), _choices(actual)
    if not choices:
        return list(_compare_bodies(expected, actual, tolerance))
    for choice in sorted(choices.keys() | others.keys()):
        label, cut = f"{name}.{choice}" if choice else name, not expected.complete
        sides = choices.get(choice, []), others.get(choice, [])
        findings += compare_outputs(*sides, label, level, tolerance, cut=cut)
    return findings


def _choices(exchange: HttpExchange) -> dict[int, list[Entry]]:
    """Outputs of each choice of an answer in the form of LMTP entries; text of unknown tokens is joined.

    The split of an answer into events, and ids and times that a server generates, are not compared.
    """
    answers = Answers(stream_of)
    choices: dict[int, list[Entry]] = {}
    kind: Literal["sse", "body"] = "sse" if exchange.streamed else "body"
    pieces = [Piece(0.0, kind, exchange.connection, part.data) for part in exchange.parts]
    head: list[Event] = [exchange.request, *([] if exchange.response is None else [exchange.response])]
    ending = [Done(0.0, exchange.connection)] if exchange.complete else []
    for event in (*head, *pieces, *ending):
        for output in answers.follow(event):
            if isinstance(output, OutputEvent):
                _add(choices.setdefault(output.stream.choice, []), output, answers.text_of(output))
    return choices


def _add(entries: list[Entry], output: OutputEvent, text: str | None) -> None:
    last = entries[-1] if entries else {}
    if output.is_piece and "piece" in last:
        entries[-1] = {**last, "token": f"{last['token']}{text}", "finish_reason": output.finish_reason}
    elif output.error is not None:
        entries.append({"error": output.error})
    else:
        top = {str(name): logprob for name, logprob in output.alternatives}
        facts = {"logprob": output.logprob, "top_logprobs": top, "finish_reason": output.finish_reason}
        entries.append({"token": text, **facts, **({"piece": True} if output.is_piece else {})})


_COUNTERS = ("/metrics",)
"""Paths whose bodies count a server's work; they differ between servers."""
_TIMES = re.compile(r"created|time|timestamp|timings|uptime|.*_(at|seconds|duration|ms|time)")
"""Names of members that hold times and durations."""
_IDS = re.compile(r"system_fingerprint|(?!model_).*_id")
"""Members besides `id` whose text servers generate; numbers such as `bos_token_id` are compared."""


def _compare_bodies(expected: HttpExchange, actual: HttpExchange, tolerance: Tolerance) -> Iterator[Finding]:
    ours, theirs = (b"".join(part.data for part in one.parts) for one in (expected, actual))
    if ours == theirs or expected.request.path.partition("?")[0] in _COUNTERS:
        return
    if tolerance.is_redacted and ours == LEFT_OUT.encode():
        return
    try:
        one, other = json.loads(ours), json.loads(theirs)
    except (ValueError, RecursionError):
        place = first_difference(ours, theirs)
        message = f"body differs at byte {place}: expected {ours[place:][:40]!r}, got {theirs[place:][:40]!r}"
        yield Finding("fail", "ids", expected.name, None, message)
        return
    for path, value, got in _unequal_values(one, other, tolerance.logprob):
        if tolerance.is_redacted and (value is None or (value == LEFT_OUT and isinstance(got, str))):
            continue
        message = f"body differs at {path}: expected {quote(value)}, got {quote(got)}"
        yield Finding("fail", "ids", expected.name, None, message)


def _unequal_values(ours: object, theirs: object, tolerance: float, path: str = "$") -> Iterator[_Difference]:
    """Paths at which two JSON values differ, with both values.

    Volatile members must only be present, both as numbers or neither; null is accepted. tolerance: for floats, such as
    those of embeddings.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in dict.fromkeys((*ours, *theirs)):
            one, other = ours.get(name), theirs.get(name)
            if name not in ours or name not in theirs or not _is_volatile(name, ours):
                yield from _unequal_values(one, other, tolerance, f"{path}.{name}")
            elif None not in (one, other) and isinstance(one, int | float) != isinstance(other, int | float):
                yield f"{path}.{name}", one, other
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _unequal_values(one, other, tolerance, f"{path}[{place}]")
    elif apart(ours, theirs, tolerance if isinstance(ours, float) else 0.0):
        yield path, ours, theirs


def _is_volatile(name: str, members: Mapping[str, object]) -> bool:
    """True if servers generate the value of this member for each response."""
    if name == "id" or (_IDS.fullmatch(name) and isinstance(members[name], str)):
        return "model" not in (members.get("object"), members.get("type"))  # its id is its name
    return _TIMES.fullmatch(name) is not None
