"""Two recordings of the same requests, or a recording and what came when it was sent again, request by request."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lmtool.trace import diff
from lmtool.trace.answers import Answers
from lmtool.trace.events import Close, Done, Drop, Piece
from lmtool.trace.exchanges import Exchange, HttpExchange, LmtpExchange, collect, exchanges
from lmtool.trace.findings import Finding, Level, Verdict, worst
from lmtool.trace.matching import Asked, How, Matcher, Miss, kind_of, text_of
from lmtool.trace.stream_events import OutputEvent, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lmtool.lmtp.frames import Entry
    from lmtool.trace.diff import Tolerance
    from lmtool.trace.events import Event


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one recorded request."""

    stream: str
    """Connection and stream id in the first recording."""
    kind: str
    """Its command, or method and path."""
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(list(self.findings))


def compare(
    expected: Sequence[Exchange],
    actual: Sequence[Exchange],
    level: Level,
    tolerance: Tolerance,
    *,
    how: How = "exact",
    ignore: Sequence[str] = (),
) -> list[Comparison]:
    """A comparison for each expected exchange, then one for each actual one that nobody expected.

    Requests are paired as a mock server would: equal ones in their order.
    """
    matcher = Matcher(actual, how, ignore=ignore)
    made = [_one(exchange, matcher, level, tolerance) for exchange in expected]
    for exchange in matcher.unused:
        extra = Finding("fail", "shape", _name(exchange), None, f"this {kind_of(exchange)} was not expected")
        made.append(Comparison(_name(exchange), kind_of(exchange), (extra,)))
    return made


def compare_again(
    expected: Iterable[Event], actual: Iterable[Event], level: Level, tolerance: Tolerance
) -> list[Comparison]:
    """A comparison for each request of a recording with what came when it was sent again on the same connections.

    The n-th request of a connection belongs to the n-th one. Streams that were sampled without a seed are compared at
    level `shape`; `scoring` says more of them. Entries for streams that nobody began, and connections that the server
    ended otherwise than recorded, are findings as well.
    """
    ours, theirs = list(expected), list(actual)
    recorded, (came, unmatched) = exchanges(ours), collect(theirs)
    by_connection: dict[int, deque[Exchange]] = {}
    for exchange in came:
        by_connection.setdefault(exchange.connection, deque()).append(exchange)
    made = []
    for exchange in recorded:
        again = by_connection.get(exchange.connection)
        reached: Level = "shape" if is_sampled(exchange) else level
        if again:
            made.append(_pair(exchange, again.popleft(), reached, tolerance))
        else:
            lost = Finding("fail", "shape", _name(exchange), None, "could not be sent: the connection was gone")
            made.append(Comparison(_name(exchange), kind_of(exchange), (lost,)))
    for one in unmatched:
        name = f"{one.connection}/{json.dumps(one.entry.get('stream_id'))}"
        told = f"expected entries of streams that were begun, got {json.dumps(one.entry)[:100]}"
        made.append(Comparison(name, "unmatched", (Finding("fail", "shape", name, None, told),)))
    return made + list(_compare_closings(ours, theirs))


def is_sampled(exchange: Exchange) -> bool:
    """Whether a stream's tokens were drawn by chance, and by none that can be repeated."""
    if not isinstance(exchange, LmtpExchange) or exchange.command != "GENERATE":
        return False
    temperature = exchange.payload.get("temperature")
    return isinstance(temperature, int | float) and temperature > 0 and exchange.payload.get("seed") is None


def _compare_closings(expected: Iterable[Event], actual: Iterable[Event]) -> Iterator[Comparison]:
    """Whether the server closed the connections that it closed in the recording, with the same code, and no others."""
    wanted, got = _closed_by_server(expected), _closed_by_server(actual)
    for connection in sorted(wanted.keys() | got.keys()):
        ours, theirs = wanted.get(connection, "no end by the server"), got.get(connection, "none")
        if ours != theirs:
            told = Finding("fail", "shape", str(connection), None, f"expected {ours}, got {theirs}")
            yield Comparison(str(connection), "end of the connection", (told,))


def _closed_by_server(events: Iterable[Event]) -> dict[int, str]:
    closed = {}
    for event in events:
        if isinstance(event, Close) and event.by == "server" and event.code is not None:
            closed[event.connection] = f"code {event.code}"
        elif isinstance(event, Drop) and event.facts.get("by") == "server":
            closed[event.connection] = "an end without a close frame"
    return closed


def _one(exchange: Exchange, matcher: Matcher, level: Level, tolerance: Tolerance) -> Comparison:
    name, kind = _name(exchange), kind_of(exchange)
    found = matcher.match(Asked(kind, exchange.payload, text_of(exchange)))
    if isinstance(found, Miss):
        why = "; ".join(found.differences) or "there is none of its kind"
        return Comparison(name, kind, (Finding("fail", "shape", name, None, f"no such request in the second: {why}"),))
    return _pair(exchange, found, level, tolerance)


def _pair(exchange: Exchange, found: Exchange, level: Level, tolerance: Tolerance) -> Comparison:
    name, kind = _name(exchange), kind_of(exchange)
    if isinstance(exchange, LmtpExchange) and isinstance(found, LmtpExchange):
        return Comparison(name, kind, tuple(diff.compare(exchange, found, level, tolerance)))
    if isinstance(exchange, HttpExchange) and isinstance(found, HttpExchange):
        return Comparison(name, kind, tuple(_compare_http(exchange, found, name, level, tolerance)))
    other = Finding("fail", "shape", name, None, f"expected {kind}, got {kind_of(found)}")
    return Comparison(name, kind, (other,))


def _compare_http(
    expected: HttpExchange, actual: HttpExchange, name: str, level: Level, tolerance: Tolerance
) -> list[Finding]:
    """Status and completeness; above `shape` also what was generated, or else the bytes of the body."""
    found = []
    wanted, got = (None if one.response is None else one.response.status for one in (expected, actual))
    if wanted != got:
        found.append(Finding("fail", "shape", name, None, f"expected status {wanted}, got {got}"))
    if expected.complete and not actual.complete:
        found.append(Finding("fail", "shape", name, None, "expected a complete body, got one that was cut"))
    if level == "shape" or found:
        return found
    ours, theirs = _choices(expected), _choices(actual)
    if not ours:
        return list(_compare_bodies(expected, actual, name))
    for choice in sorted(ours.keys() | theirs.keys()):
        label, cut = f"{name}.{choice}" if choice else name, not expected.complete
        sides = ours.get(choice, []), theirs.get(choice, [])
        found += diff.compare_outputs(*sides, label, level, tolerance, cut=cut)
    return found


def _choices(exchange: HttpExchange) -> dict[int, list[Entry]]:
    """Of each choice of an answer the outputs, as entries such as LMTP has; text of unknown tokens as one.

    How an answer is split over events is not compared, nor are the ids and times that a server makes up.
    """
    answers = Answers(stream_of)
    found: dict[int, list[Entry]] = {}
    kind: Literal["sse", "body"] = "sse" if exchange.streamed else "body"
    pieces = [Piece(0.0, kind, exchange.connection, part.data) for part in exchange.parts]
    head: list[Event] = [exchange.request, *([] if exchange.response is None else [exchange.response])]
    ending = [Done(0.0, exchange.connection)] if exchange.complete else []
    for event in (*head, *pieces, *ending):
        for step in answers.follow(event):
            if isinstance(step, OutputEvent):
                _put(found.setdefault(step.stream.choice, []), step, answers.text_of(step))
    return found


def _put(entries: list[Entry], output: OutputEvent, text: str | None) -> None:
    last = entries[-1] if entries else {}
    if output.is_piece and "piece" in last:
        entries[-1] = {**last, "token": f"{last['token']}{text}", "finish_reason": output.finish_reason}
    elif output.error is not None:
        entries.append({"error": output.error})
    else:
        top = {str(name): logprob for name, logprob in output.alternatives}
        facts = {"logprob": output.logprob, "top_logprobs": top, "finish_reason": output.finish_reason}
        entries.append({"token": text, **facts, **({"piece": True} if output.is_piece else {})})


def _compare_bodies(expected: HttpExchange, actual: HttpExchange, name: str) -> Iterator[Finding]:
    ours, theirs = (b"".join(part.data for part in one.parts) for one in (expected, actual))
    if ours != theirs and _steady(ours) != _steady(theirs):
        pairs = zip(ours, theirs, strict=False)
        place = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))
        wanted, got = ours[place : place + 40], theirs[place : place + 40]
        yield Finding("fail", "ids", name, None, f"body differs at byte {place}: expected {wanted!r}, got {got!r}")


_CHANGING = re.compile(rb'"(id|created|system_fingerprint)": ?("[^"]*"|\d+)')


def _steady(body: bytes) -> bytes:
    """A body without what an OpenAI-compatible server makes up anew for each response."""
    return _CHANGING.sub(rb'"\1":0', body)


def _name(exchange: Exchange) -> str:
    if isinstance(exchange, LmtpExchange):
        return f"{exchange.connection}/{exchange.stream_id}"
    return f"{exchange.connection}"
