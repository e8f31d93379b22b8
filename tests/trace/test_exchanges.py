"""Traces as requests with their answers."""

from __future__ import annotations

import pytest

from lmtool.trace import exchanges as exchanges_module
from lmtool.trace.events import Done, Event, Frame, JsonText, Piece, Request, Response
from lmtool.trace.exchanges import HttpExchange, LmtpExchange, RequestTable, collect, exchanges, read_request
from tests.trace.conftest import generate, token, tokens


def lmtp(*events: Event) -> list[LmtpExchange]:
    """The exchanges of these events, all of LMTP."""
    found = exchanges(events)
    assert all(isinstance(exchange, LmtpExchange) for exchange in found)
    return [exchange for exchange in found if isinstance(exchange, LmtpExchange)]


def test_answers_belong_to_their_requests() -> None:
    """Each stream has its own tokens, at times counted from its request; a frame of two streams is shared out."""
    one, two = lmtp(generate(1, 1), generate(2, 2), tokens(3, token(7, 1), token(8, 2)), tokens(4, token(9, 1)))
    assert [(r.offset, [e["token"] for e in r.entries]) for r in one.replies] == [(2, [7]), (3, [9])]
    assert [(r.offset, [e["token"] for e in r.entries]) for r in two.replies] == [(1, [8])]


def test_an_id_used_again_is_another_request() -> None:
    """Answers belong to the latest request with their id, on their own connection."""
    first, second, other = lmtp(
        generate(1),
        tokens(2, token(7) | {"finish_reason": "length"}),
        generate(3),
        generate(3, connection=2),
        tokens(4, token(8)),
    )
    assert [len(exchange.replies) for exchange in (first, second, other)] == [1, 1, 0]


def test_frames_that_are_no_requests_have_answers_too() -> None:
    """An error that bears no id answers what was sent last."""
    error = Frame(2, "<", 1, JsonText("MSG", [{"stream_id": None, "error": "no"}], "py"))
    (exchange,) = lmtp(Frame(1, ">", 1, "GENERATE {"), error)
    assert exchange.command is None
    assert exchange.replies[0].wire(None, None) == 'MSG [{"stream_id": null, "error": "no"}]'
    assert exchange.replies[0].last


def test_ids_are_exchanged() -> None:
    """With the recorded id a frame is sent as it was; with another one only the id changes, the style stays."""
    (exchange,) = lmtp(generate(1), Frame(2, "<", 1, JsonText("TOKEN", [token(7)], "compact")))
    (reply,) = exchange.replies
    assert reply.wire(1, 1) == 'TOKEN [{"token":7,"stream_id":1,"logprob":-0.5,"finish_reason":null}]'
    assert reply.wire(1, "a") == 'TOKEN [{"token":7,"stream_id":"a","logprob":-0.5,"finish_reason":null}]'
    assert not reply.last


def test_what_json_cannot_say_is_sent_as_recorded() -> None:
    """LMQL's -Infinity, and a MSG that is a bare object, keep their form under a new id."""
    infinite = 'TOKEN [{"token": 7, "stream_id": 1, "logprob": -Infinity}]'
    bare = Frame(3, "<", 1, 'MSG  {"stream_id": 1, "model_info": "m"}')
    (exchange,) = lmtp(generate(1), Frame(2, "<", 1, infinite), bare)
    assert [reply.wire(1, 1) for reply in exchange.replies] == [infinite, bare.wire()]
    assert exchange.replies[0].wire(1, 2) == infinite.replace('"stream_id": 1', '"stream_id": 2')
    assert exchange.replies[1].wire(1, 2) == 'MSG {"stream_id": 2, "model_info": "m"}'


def test_answers_of_nobody_are_left_out() -> None:
    """Frames that answer no request, binary frames and CANCEL are no exchange."""
    cancel = Frame(0, ">", 1, JsonText("CANCEL", {"stream_id": 1}, "py"))
    assert lmtp(tokens(0, token(7)), Frame(0, "<", 1, b"x"), cancel) == []


def test_http_requests_and_their_bodies() -> None:
    """Head, pieces at times counted from the request, and whether the body is complete; requests in order."""
    body = JsonText("", {"model": "m"}, "py")
    events: list[Event] = [
        Request(1, 5, "POST", "/v1/x", {}, body),
        Request(1, 5, "GET", "/v1/y", {}),
        Response(2, 5, 200, "OK", {}),
        Piece(3, "sse", 5, "data: [DONE]\n\n"),
        Done(3, 5),
        Response(4, 5, 404, "Not Found", {}),
    ]
    first, second = exchanges(events)
    assert isinstance(first, HttpExchange)
    assert isinstance(second, HttpExchange)
    assert (first.payload, first.streamed, first.complete) == ({"model": "m"}, True, True)
    assert [(part.offset, part.data) for part in first.parts] == [(2, b"data: [DONE]\n\n")]
    assert (second.response, second.complete) == (events[-1], False)


@pytest.mark.parametrize("frame", [b"GENERATE {}", "GENERATE", "GENERATE [1]", "GENERATE {", ""])
def test_what_is_no_request(frame: str | bytes) -> None:
    """Only a command, a space and a JSON object are."""
    assert read_request(frame) == (None, {})
    assert read_request('X {"a": 1}') == ("X", {"a": 1})


def test_the_id_of_a_running_stream_is_not_lost() -> None:
    """A request refused because its id is in use gets the refusal; the stream keeps its tokens (LMTP, STR-5)."""
    refusal = Frame(4, "<", 1, JsonText("MSG", [{"stream_id": 1, "error": "still running"}], "py"))
    stream, refused = lmtp(generate(1), tokens(2, token(7)), generate(3), refusal, tokens(5, token(8)))
    assert [reply.entries[0].get("token") for reply in stream.replies] == [7, 8]
    assert [reply.command for reply in refused.replies] == ["MSG"]
    assert refused.ended
    assert not stream.ended


def test_entries_of_nobody_are_kept_apart() -> None:
    """An entry for a stream that nobody began on this connection is matched to none."""
    found, unmatched = collect([generate(0), tokens(1, token(7), token(8, 5)), tokens(2, token(9), connection=2)])
    assert len(found) == 1
    assert [(connection, entry["stream_id"], entry["token"]) for connection, entry in unmatched] == [
        (1, 5, 8),
        (2, 1, 9),
    ]


TOKEN = {"stream_id": 1, "token": 5}
REFUSAL = {"stream_id": 1, "error": "it runs"}
INFO = {"stream_id": 1, "model_info": {}}


def table(*requests: tuple[str, str]) -> RequestTable[str]:
    """A table of requests with id 1: commands and names."""
    made: RequestTable[str] = RequestTable()
    for command, name in requests:
        made.add(command, 1, name)
    return made


def test_the_latest_request_has_the_id() -> None:
    """Once the stream before has ended; what comes after an end is the ended stream's until then."""
    made = table(("GENERATE", "a"))
    made.end(1)
    assert made.owner("TOKEN", TOKEN) == "a"
    made.add("GENERATE", 1, "b")
    assert made.owner("TOKEN", TOKEN) == "b"
    assert made.owner("TOKEN", {"stream_id": "1"}) is None


def test_an_id_that_runs() -> None:
    """LMTP, STR-5: a MSG error refuses the request that came later; the stream that runs keeps the id."""
    made = table(("GENERATE", "a"), ("SCORE", "b"))
    assert made.any_queued
    assert made.owner("MSG", REFUSAL) == "b"
    assert (made.owner("TOKEN", TOKEN), made.any_queued) == ("a", False)
    assert made.owner("MSG", REFUSAL) == "a"  # ERR-6: a request of its own that failed


def test_a_server_that_queues() -> None:
    """The second request gets the id when the first stream has ended."""
    made = table(("GENERATE", "a"), ("GENERATE", "b"))
    made.end(1)
    assert made.owner("TOKEN", TOKEN) == "b"


def test_questions_do_not_disturb_streams() -> None:
    """A MODEL_INFO may bear the id of a stream; each answer finds its own, in order."""
    made = table(("GENERATE", "a"), ("MODEL_INFO", "x"), ("MODEL_INFO", "y"))
    assert [made.owner("MSG", INFO), made.owner("TOKEN", TOKEN), made.owner("MSG", INFO)] == ["x", "a", "y"]
    assert made.owner("MSG", INFO) == "y"  # an answer too many
    made.add("MODEL_INFO", 1, "z")
    assert made.owner("MSG", {"stream_id": 1, "error": "no"}) == "z"
    assert made.owner("MSG", {"stream_id": 1, "progress": {}}) == "a"
    assert table(("MODEL_INFO", "x")).owner("MSG", {"stream_id": 1, "progress": {}}) == "x"


def test_what_is_open() -> None:
    """Streams without an end, requests that wait, questions without an answer."""
    made = table(("GENERATE", "a"), ("GENERATE", "b"), ("MODEL_INFO", "x"))
    made.add("GENERATE", 2, "c")
    made.end(2)
    assert made.open_requests() == ["a", "b", "x"]
    made.owner("MSG", INFO)
    assert made.open_requests() == ["a", "b"]


def test_what_has_ended_is_forgotten_some_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of very many streams does not fill the memory."""
    monkeypatch.setattr(exchanges_module, "ENDED_KEPT", 2)
    made: RequestTable[int] = RequestTable()
    for key in range(5):
        made.add("GENERATE", key, key)
        made.end(key)
    assert made.holders == {3: 3, 4: 4}
