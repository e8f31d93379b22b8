"""What a recording that starts late must know."""

from __future__ import annotations

from lmtool.trace.events import Close, Done, Frame, Open, Parsed, Request
from lmtool.tui.sources import beginnings
from lmtool.tui.sources.beginnings import Beginnings
from tests.trace.conftest import generate, token, tokens


def test_what_runs_is_kept_until_it_ends() -> None:
    """A request is kept until its stream has a finish_reason or an error, a connection until it closes."""
    kept, opened = Beginnings(), Open(0.0, 1)
    one, two = generate(0.1, 1), generate(0.2, 2)
    kept.follow([opened, one, two, tokens(0.3, token(5, 1))])
    assert kept.events() == [opened, one, two]
    kept.follow([tokens(0.4, token(5, 1) | {"finish_reason": "stop"})])
    assert kept.events() == [opened, two]
    kept.follow([Frame(0.5, "<", 1, Parsed("TOKEN", [{"stream_id": 2, "error": "no"}], "py"))])
    assert kept.events() == [opened]
    kept.follow([generate(0.6, 3), Close(0.7, 1, "client")])
    assert kept.events() == []


def test_http_requests() -> None:
    """A request is kept until its response is complete."""
    kept, request = Beginnings(), Request(0.1, 1, "POST", "/v1/completions", {})
    kept.follow([request])
    assert kept.events() == [request]
    kept.follow([Done(0.2, 1)])
    assert kept.events() == []


def test_a_client_that_never_ends_anything(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """What is kept has a limit; ids of any kind do."""
    monkeypatch.setattr(beginnings, "MOST", 3)
    kept = Beginnings()
    kept.follow([generate(float(i), ["id", i]) for i in range(5)])  # type: ignore[arg-type]
    assert [event.time for event in kept.events()] == [2.0, 3.0, 4.0]


def test_requests_that_are_refused() -> None:
    """LMTP, STR-5: the refusal of a request ends none but it; the stream that has the id is kept until its own end."""
    kept, first, refusal = Beginnings(), generate(0.1), Parsed("MSG", [{"stream_id": 1, "error": "it runs"}], "py")
    kept.follow([first, generate(0.2), Frame(0.3, "<", 1, refusal)])
    assert kept.events() == [first]
    third, end = generate(0.4), {"finish_reason": "stop"}
    kept.follow([third, tokens(0.5, token(5) | end)])
    assert kept.events() == [third]
    kept.follow([tokens(0.6, token(5) | end)])
    assert kept.events() == []
