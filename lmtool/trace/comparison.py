"""Two recordings of the same requests, or a recording and its replay, compared request by request."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.trace import diff
from lmtool.trace.answers import Answers
from lmtool.trace.diff import Finding, Level, Verdict, worst
from lmtool.trace.events import Close, Done, Drop, Piece, Vocab
from lmtool.trace.exchanges import Exchange, HttpExchange, LmtpExchange, collect, exchanges, recorded_actions
from lmtool.trace.matching import Matcher, MatchMode, Miss
from lmtool.trace.redacted_values import LEFT_OUT
from lmtool.trace.stream_events import OutputEvent, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.trace.diff import Tolerance
    from lmtool.trace.events import Event

_Difference: TypeAlias = "tuple[str, object, object]"
"""Where two JSON values differ, such as `$.data[0]`, and the value of each there."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The findings on one recorded request."""

    stream: str
    """Connection and stream id in the first recording."""
    kind: str
    """Its command, or method and path."""
    findings: tuple[Finding, ...] = ()

    @classmethod
    def note(cls, message: str, verdict: Verdict = "fail", stream: str = "-", kind: str = "-") -> Comparison:
        """One with a single finding, on the form of the answer."""
        return cls(stream, kind, (Finding(verdict, "shape", stream, None, message),))

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(self.findings)

    def as_json(self) -> str:
        """One JSON object."""
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
    """A comparison for each expected exchange, then one for each unexpected one; made when it is asked for.

    Requests are paired as a mock server would: equal ones in their order.
    """
    matcher = Matcher(actual, mode, ignore=ignore, once=True)
    for exchange in expected:
        match = matcher.match(exchange)
        if isinstance(match, Miss):
            reason = f"no such request in the second: {'; '.join(match.differences) or 'there is none of its kind'}"
            yield Comparison.note(reason, "fail", exchange.name, exchange.kind)
        else:
            yield _pair(exchange, match, level, tolerance)
    for extra in matcher.unused:
        yield Comparison.note(f"this {extra.kind} was not expected", "fail", extra.name, extra.kind)


def compare_replay(
    expected: Iterable[Event], actual: Iterable[Event], level: Level, tolerance: Tolerance
) -> list[Comparison]:
    """A comparison for each request of a recording with the same request of its replay, on the same connections.

    The n-th request of a connection belongs to the n-th one. Streams that were sampled without a seed are compared at
    level `shape`; `replaying` lets the server score them. Entries of streams that no request started, and connections
    that the server ended otherwise than recorded, are findings as well.
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
            lost = "could not be sent: the connection was gone"
            comparisons.append(Comparison.note(lost, "fail", exchange.name, exchange.kind))
    for one in unmatched:
        name = f"{one.connection}/{json.dumps(one.entry.get('stream_id'))}"
        message = f"expected entries of streams that were begun, got {json.dumps(one.entry)[:100]}"
        comparisons.append(Comparison.note(message, "fail", name, "unmatched"))
    return [*comparisons, *compare_sessions(ours, theirs, level), *_compare_endings(ours, theirs)]


def with_words(tolerance: Tolerance, events: Iterable[Event]) -> Tolerance:
    """The same, with what the events say of token ids: findings then have words."""
    words = {token: text for event in events if isinstance(event, Vocab) for token, text in event.tokens.items()}
    return replace(tolerance, words=words)


def compare_sessions(expected: Sequence[Event], actual: Sequence[Event], level: Level) -> Iterator[Comparison]:
    """A comparison for each action of Evergreen's sessions; outputs are compared as bytes, unless they are sampled.

    Actions are paired by their connection and their place there. Raises `ResourceError` without protobuf.
    """
    ours = recorded_actions(expected)
    if not ours:
        return
    from lmtool.trace.sessions import differences

    again = {(one.connection, one.number): one for one in recorded_actions(actual)}
    for one in ours:
        name, other = f"{one.connection}/{one.number}", again.get((one.connection, one.number))
        if other is None:
            yield Comparison.note("there is no such action in the second", "fail", name, one.kind)
            continue
        found = differences(one, other, values=level != "shape" and not one.sampled)
        findings = tuple(Finding("fail", "ids", name, None, sentence) for sentence in found)
        yield Comparison(name, one.kind, findings)


def is_sampled(exchange: Exchange) -> bool:
    """Whether a stream's tokens were drawn at random, without a seed that could repeat them."""
    if not isinstance(exchange, LmtpExchange) or exchange.command != "GENERATE":
        return False
    temperature = exchange.payload.get("temperature")
    return isinstance(temperature, int | float) and temperature > 0 and exchange.payload.get("seed") is None


def _compare_endings(expected: Iterable[Event], actual: Iterable[Event]) -> Iterator[Comparison]:
    """Whether the server closed the connections that it closed in the recording, with the same code, and no others."""
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
        findings = diff.compare(expected, actual, level, tolerance)
    elif isinstance(expected, HttpExchange) and isinstance(actual, HttpExchange):
        findings = _compare_http(expected, actual, level, tolerance)
    else:
        return Comparison.note(f"expected {expected.kind}, got {actual.kind}", "fail", expected.name, expected.kind)
    return Comparison(expected.name, expected.kind, tuple(findings))


def _compare_http(expected: HttpExchange, actual: HttpExchange, level: Level, tolerance: Tolerance) -> list[Finding]:
    """Status and completeness; above `shape` also what was generated, or else the bytes of the body."""
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
        findings += diff.compare_outputs(*sides, label, level, tolerance, cut=cut)
    return findings


def _choices(exchange: HttpExchange) -> dict[int, list[Entry]]:
    """The outputs of each choice of an answer, as entries such as LMTP has; text of unknown tokens as one.

    How an answer is split over events is not compared, nor are the ids and times that a server makes up.
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
"""Paths whose bodies count what a server did; another server never says the same."""
_TIMES = re.compile(r"created|time|timestamp|timings|uptime|.*_(at|seconds|duration|ms|time)")
"""Names of members that hold times and durations."""
_IDS = re.compile(r"system_fingerprint|(?!model_).*_id")
"""Names of members besides `id` whose text a server makes up; the numbers of a `bos_token_id` are compared."""


def _compare_bodies(expected: HttpExchange, actual: HttpExchange, tolerance: Tolerance) -> Iterator[Finding]:
    ours, theirs = (b"".join(part.data for part in one.parts) for one in (expected, actual))
    if ours == theirs or expected.request.path.partition("?")[0] in _COUNTERS:
        return
    if tolerance.is_redacted and ours == LEFT_OUT.encode():
        return
    try:
        one, other = json.loads(ours), json.loads(theirs)
    except (ValueError, RecursionError):
        place = diff.first_difference(ours, theirs)
        message = f"body differs at byte {place}: expected {ours[place:][:40]!r}, got {theirs[place:][:40]!r}"
        yield Finding("fail", "ids", expected.name, None, message)
        return
    for path, value, got in _unequal_values(one, other, tolerance.logprob):
        if tolerance.is_redacted and (value is None or (value == LEFT_OUT and isinstance(got, str))):
            continue
        message = f"body differs at {path}: expected {diff.quote(value)}, got {diff.quote(got)}"
        yield Finding("fail", "ids", expected.name, None, message)


def _unequal_values(ours: object, theirs: object, tolerance: float, path: str = "$") -> Iterator[_Difference]:
    """Places at which two JSON values differ, with what is there.

    Volatile members need only be there, both as numbers or neither; null is as good.
    tolerance: between numbers that are not whole, such as those of embeddings.
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
    elif diff.apart(ours, theirs, tolerance if isinstance(ours, float) else 0.0):
        yield path, ours, theirs


def _is_volatile(name: str, members: Mapping[str, object]) -> bool:
    """Whether a server makes up the value of a member anew for each response."""
    if name == "id" or (_IDS.fullmatch(name) and isinstance(members[name], str)):
        return "model" not in (members.get("object"), members.get("type"))  # its id is its name
    return _TIMES.fullmatch(name) is not None
