"""What recorded clients did, and what they had received before."""

from __future__ import annotations

from lmtool.trace.events import Close, Done, Drop, Event, Frame, Parsed, Piece, Request
from lmtool.trace.script import Received, acts
from tests.trace.conftest import generate, token, tokens

END = {"finish_reason": "length"}
TOKEN_1 = (1, "TOKEN 1")


def test_a_request_waits_for_what_had_come() -> None:
    """A request recorded after the second token of a stream waits for two; one sent at once waits for nothing."""
    made = list(acts([generate(0, 1), tokens(1, token(7)), tokens(2, token(8)), generate(3, 2), generate(4, 3)]))
    assert [dict(act.after) for act in made] == [{}, {TOKEN_1: (0, 2)}, {}, {}]
    assert made[-1].move is None


def test_ends_come_before_tokens() -> None:
    """A stream that has ended is further than any of its tokens, also where its id is used again."""
    first, second = (tokens(i, token(7), token(8) | END) for i in (1, 3))
    made = list(acts([generate(0), first, generate(2), second, generate(4)]))
    assert [dict(act.after) for act in made] == [{}, {TOKEN_1: (1, 0)}, {TOKEN_1: (2, 0)}, {}]


def test_a_wait_ends_with_what_it_waits_for() -> None:
    """What ended early, or whose connection has gone, is waited for no longer."""
    received = Received()
    wanted = {TOKEN_1: (0, 5), (2, "TOKEN 1"): (1, 0)}
    assert received.missing(wanted) == [TOKEN_1, (2, "TOKEN 1")]
    received.take(tokens(1, token(7) | END))
    received.take(Drop(2, 2))
    assert received.missing(wanted) == []
    assert received.over(2)


def test_news_about_a_request_is_not_its_answer() -> None:
    """How a load proceeds and which fields were ignored differs from server to server: nobody waits for it."""
    news: list[Event] = [
        Frame(1, "<", 1, Parsed("MSG", [{"stream_id": 1, "progress": {}}], "py")),
        Frame(1, "<", 1, Parsed("MSG", [{"stream_id": 1, "ignored": ["x"]}], "py")),
        Frame(1, "<", 1, Parsed("MSG", [{"stream_id": 1, "model_info": {}}], "py")),
    ]
    *_, last = acts([generate(0), *news])
    assert dict(last.after) == {(1, "MSG 1"): (1, 0)}


def test_leaving_is_an_act() -> None:
    """Connections that ended, in whatever way, are acts with a cause of their own."""
    events: list[Event] = [generate(0), tokens(1, token(7)), Drop(2, 1, {"by": "client"}), Close(3, 2, "server", 1001)]
    assert [type(act.move) for act in acts(events)] == [Frame, Drop, Close, type(None)]


def test_http_answers_count_too() -> None:
    """Server-sent events and the ends of responses are causes; how a plain body was divided is not."""
    request = Request(0, 1, "GET", "/", {})
    events: list[Event] = [request, Piece(1, "sse", 1, "data: 1\n\n"), request, Piece(2, "body", 1, "x"), Done(3, 1)]
    assert [dict(act.after) for act in acts(events)] == [{}, {(1, "http"): (0, 1)}, {(1, "http"): (1, 0)}]
