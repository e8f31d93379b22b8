"""Two recordings of the same requests, compared request by request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.trace import diff
from lmtool.trace.exchanges import Exchange, HttpExchange, LmtpExchange
from lmtool.trace.findings import Finding, Level, Verdict, worst
from lmtool.trace.matching import Asked, How, Matcher, Miss, kind_of, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.trace.diff import Tolerance


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


def _one(exchange: Exchange, matcher: Matcher, level: Level, tolerance: Tolerance) -> Comparison:
    name, kind = _name(exchange), kind_of(exchange)
    found = matcher.match(Asked(kind, exchange.payload, text_of(exchange)))
    if isinstance(found, Miss):
        why = "; ".join(found.differences) or "there is none of its kind"
        return Comparison(name, kind, (Finding("fail", "shape", name, None, f"no such request in the second: {why}"),))
    if isinstance(exchange, LmtpExchange) and isinstance(found, LmtpExchange):
        return Comparison(name, kind, tuple(diff.compare(exchange, found, level, tolerance)))
    if isinstance(exchange, HttpExchange) and isinstance(found, HttpExchange):
        return Comparison(name, kind, tuple(_compare_http(exchange, found, name, level)))
    other = Finding("fail", "shape", name, None, f"expected {kind}, got {kind_of(found)}")
    return Comparison(name, kind, (other,))


def _compare_http(expected: HttpExchange, actual: HttpExchange, name: str, level: Level) -> list[Finding]:
    """Status and completeness; above `shape` also the bytes of the body, however they were divided."""
    found = []
    wanted, got = (None if one.response is None else one.response.status for one in (expected, actual))
    if wanted != got:
        found.append(Finding("fail", "shape", name, None, f"expected status {wanted}, got {got}"))
    if expected.complete and not actual.complete:
        found.append(Finding("fail", "shape", name, None, "expected a complete body, got one that was cut"))
    if level == "shape" or found:
        return found
    ours, theirs = (b"".join(part.data for part in one.parts) for one in (expected, actual))
    if ours != theirs:
        pairs = zip(ours, theirs, strict=False)
        place = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))
        wanted_bytes, got_bytes = ours[place : place + 40], theirs[place : place + 40]
        found.append(
            Finding(
                "fail", "ids", name, None, f"body differs at byte {place}: expected {wanted_bytes!r}, got {got_bytes!r}"
            )
        )
    return found


def _name(exchange: Exchange) -> str:
    if isinstance(exchange, LmtpExchange):
        return f"{exchange.connection}/{exchange.stream_id}"
    return f"{exchange.connection}"
