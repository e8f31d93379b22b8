"""What is logged of requests that the door refuses: no more than a line a second for each reason."""

from __future__ import annotations

from lmtool.core.errors import RateLimitError
from lmtool.core.metrics import as_text
from lmtool.net.access.policy import Refusal
from lmtool.net.telemetry.refusals import INTERVAL, RefusalLog, Refusals
from lmtool.serving.events import Refused, as_json, as_lines

NO_KEY = Refusal("invalid_api_key", "the key that was shown is not the one of this server", "send it")
TOO_MANY = Refusal.of_limit(RateLimitError("above the limit streams of the key alice"), "alice")


def test_strangers_fill_no_log() -> None:
    """Of many at once one is told, and the next one how many there were; each reason has its own line."""
    lines: list[RefusalLog] = []
    now = [100.0]
    refusals = Refusals(lines.append, lambda: now[0])
    for _ in range(1000):
        refusals.note(NO_KEY, "http", "192.0.2.1")
    refusals.note(TOO_MANY, "websocket", None)
    assert lines == [
        RefusalLog("invalid_api_key", 401, "http", "192.0.2.1", None, 1),
        RefusalLog("rate_limit_exceeded", 429, "websocket", None, "alice", 1),
    ]
    now[0] += INTERVAL
    refusals.note(NO_KEY, "grpc", "192.0.2.2")
    assert lines[2:] == [RefusalLog("invalid_api_key", 401, "grpc", "192.0.2.2", None, 1000)]
    assert [line for line in as_text([refusals.metrics()]).splitlines() if line[0] != "#"] == [
        'lmtool_requests_refused_total{reason="invalid_api_key"} 1001',
        'lmtool_requests_refused_total{reason="rate_limit_exceeded"} 1',
    ]


def test_lines() -> None:
    """For machines without what is not known; for people in one line."""
    refused = Refused(RefusalLog("rate_limit_exceeded", 429, "websocket", None, "alice", 2))
    assert as_json(refused, "now") == (
        '{"time": "now", "event": "refused", "reason": "rate_limit_exceeded", "status": 429, "protocol": "websocket",'
        ' "key": "alice", "count": 2}'
    )
    [line] = as_lines(refused, "12:00:00", 200)
    assert line == "12:00:00  refused 429 rate_limit_exceeded  websocket from a Unix socket  key alice  2 requests"
