"""How fast answers came, judged by the limits that a recording sets."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from lmtool.trace.exchanges import LmtpExchange
from lmtool.trace.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lmtool.trace.exchanges import Exchange

LIMITS = ("ttft_ms", "gap_p99_ms", "tokens_per_second")
"""Names in a header's `verify`: most milliseconds to the first token, most in the 99th percentile of gaps between
frames, fewest tokens a second."""


def judge(came: Iterable[Exchange], limits: Mapping[str, object]) -> Iterator[Finding]:
    """A finding for each stream that keeps a limit not."""
    for exchange in came:
        if isinstance(exchange, LmtpExchange):
            name = f"{exchange.connection}/{exchange.stream_id}"
            for what, value in figures(exchange).items():
                limit = limits.get(what)
                if not isinstance(limit, int | float):
                    continue
                if (value < limit) if what == "tokens_per_second" else (value > limit):
                    yield Finding("fail", "time", name, None, f"expected {what} {limit:g}, got {value:.1f}")


def figures(exchange: LmtpExchange) -> dict[str, float]:
    """What can be measured of a stream, under the names in `LIMITS`."""
    times = [reply.offset for reply in exchange.replies if any("token" in entry for entry in reply.entries)]
    count = sum("token" in entry for reply in exchange.replies for entry in reply.entries)
    found = {"ttft_ms": times[0] * 1000} if times else {}
    gaps = sorted(later - earlier for earlier, later in pairwise(times))
    if gaps:
        found["gap_p99_ms"] = gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))] * 1000
        if times[-1] > 0:
            found["tokens_per_second"] = count / times[-1]
    return found
