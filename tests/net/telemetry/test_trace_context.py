"""W3C Trace Context: what is read of the headers `traceparent` and `tracestate`, and passed on."""

from __future__ import annotations

import pytest

from lmtool.net.telemetry.trace_context import TraceContext, read_trace

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


def test_a_trace_with_its_state() -> None:
    """Several `tracestate` headers are one list (3.3.1.1); both are passed on as they came."""
    read = read_trace([("host", "x"), ("tracestate", "a=1"), ("traceparent", GOOD), ("tracestate", "b=2")])
    assert read == TraceContext(GOOD, "a=1,b=2")
    assert read.headers == {"traceparent": GOOD, "tracestate": "a=1,b=2"}
    assert TraceContext(GOOD).headers == {"traceparent": GOOD}


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "nonsense",
        GOOD.upper(),
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}",
        f"{GOOD}-more",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"{GOOD}\x00",
    ],
)
def test_what_is_malformed_counts_as_missing(bad: str) -> None:
    """Its state as well (3.2.2.3 to 3.2.2.5, 3.3.1.5): nothing that a stranger has written goes on."""
    assert read_trace([("traceparent", bad), ("tracestate", "a=1")]) is None


def test_only_one() -> None:
    """Several `traceparent` are none; a state alone is none."""
    assert read_trace([("traceparent", GOOD), ("traceparent", GOOD)]) is None
    assert read_trace([("tracestate", "a=1")]) is None


def test_a_later_version_is_read_as_the_first() -> None:
    """What it adds is left out (4.3)."""
    assert read_trace([("traceparent", f"cc-{TRACE}-{PARENT}-01-what-the-future-says")]) == TraceContext(GOOD)


@pytest.mark.parametrize("state", ["a=" + "x" * 600, "a=\x01", "a=ü"])
def test_a_state_that_is_too_long_or_no_text_is_dropped(state: str) -> None:
    """The trace itself goes on."""
    assert read_trace([("traceparent", GOOD), ("tracestate", state)]) == TraceContext(GOOD)
