"""What events mean: LMTP and every HTTP API alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmtool.trace.answers import ANSWER_ENDED, CONNECTION_ENDED, Answers, StreamText, alternatives_in
from lmtool.trace.events import Close, Done, Drop, Frame, JsonText, Piece, Request, Response, Vocab
from lmtool.trace.stream_events import OutputEvent, RequestStarted, Stream, stream_of
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from lmtool.trace.events import Event


def outputs(*events: Event, answers: Answers[Stream] | None = None) -> list[OutputEvent]:
    """All outputs of these events."""
    answers = answers or Answers(stream_of)
    return [step for event in events for step in answers.follow(event) if isinstance(step, OutputEvent)]


def told(*events: Event) -> list[tuple[object, ...]]:
    """Label, token, text, logprob and ending of all outputs."""
    return [(o.stream.label, o.token, o.text, o.logprob, o.finish_reason or o.error) for o in outputs(*events)]


def msg(time: float, **entry: object) -> Frame:
    """One MSG."""
    return Frame(time, "<", 1, JsonText("MSG", [entry], "py"))


class TestLmtp:
    """Streams of LMTP."""

    def test_streams_are_told_apart(self) -> None:
        """Tokens belong to the stream of their id and connection; one frame may hold several streams."""
        found = outputs(tokens(1, token(7, 1), token(8, 2)), tokens(2, token(9, 1), connection=2))
        assert [(one.stream.label, one.token, one.stream.index) for one in found] == [
            ("1/1", 7, 0), ("1/2", 8, 1), ("2/1", 9, 2),
        ]  # fmt: skip
        assert not any(one.stream.has_request for one in found)

    def test_a_request(self) -> None:
        """What it asks for, and its stream."""
        (started,) = Answers(stream_of).follow(generate(1, 4))
        assert isinstance(started, RequestStarted)
        assert (started.label, started.kind, started.model, started.prompt) == ("1/4", "GENERATE", "m", [5, 6, 7])
        assert (started.stream.kind, started.stream.index, started.stream.has_request) == ("GEN", 0, True)

    def test_questions_are_requests_and_no_streams(self) -> None:
        """A MODEL_INFO may fail like any request; its answer brings nothing to streams."""
        answers = Answers(stream_of)
        ask = Frame(0, ">", 1, JsonText("MODEL_INFO", {"stream_id": 3}, "py"))
        (started,) = answers.follow(ask)
        assert isinstance(started, RequestStarted)
        assert (started.kind, started.stream.kind, started.stream.index) == ("MODEL_INFO", "", -1)
        assert outputs(msg(1, stream_id=3, model_info={}), answers=answers) == []
        answers.follow(ask)
        assert [one.error for one in outputs(msg(1, stream_id=3, error="no"), answers=answers)] == ["no"]
        answers.follow(ask)
        assert outputs(Close(2, 1, "client"), answers=answers) == []
        (generated,) = answers.follow(generate(2))
        assert isinstance(generated, RequestStarted)
        assert generated.stream.index == 0

    def test_requests_that_fail(self) -> None:
        """ERR-6: a MSG error with a stream's id ends it; one that refuses an id in use leaves the stream alone."""
        assert told(generate(0), msg(1, stream_id=1, error="no")) == [("1/1", None, None, None, "no")]
        refused = told(generate(0), generate(1), msg(2, stream_id=1, error="it runs"), tokens(3, token(5)))
        assert [(label, token, end) for label, token, _, _, end in refused] == [
            ("1/1", None, "it runs"),
            ("1/1", 5, None),
        ]
        assert told(generate(0), msg(1, stream_id=None, error="what?")) == []

    def test_a_question_with_the_id_of_a_stream(self) -> None:
        """Its answer does not end the stream: a request that names the id again waits, or is refused."""
        ask = Frame(0, ">", 1, JsonText("MODEL_INFO", {"stream_id": 1}, "py"))
        (found,) = outputs(generate(0), ask, msg(1, stream_id=1, model_info={}), generate(2), tokens(3, token(5)))
        assert (found.stream.index, found.token) == (0, 5)
        again = [
            generate(0),
            ask,
            msg(1, stream_id=1, model_info={}),
            generate(2),
            msg(3, stream_id=1, error="it runs"),
        ]
        (refused,) = outputs(*again)
        assert refused.stream.index == 1

    def test_what_makes_no_sense_is_told(self) -> None:
        """It is the end of its stream, as it is for our client."""
        (found,) = outputs(generate(0), tokens(1, {"stream_id": 1, "token": "7"}))
        assert "makes no sense" in str(found.error)

    def test_infinities_are_no_numbers(self) -> None:
        """LMQL's server writes -Infinity: the token counts, its logprob does not."""
        frame = Frame(1, "<", 1, 'TOKEN [{"token": 5, "stream_id": 1, "logprob": -Infinity}]')
        assert told(frame) == [("1/1", 5, None, None, None)]

    def test_what_is_no_answer_means_nothing(self) -> None:
        """Binary frames, other commands and broken payloads are passed over."""
        frames = [
            Frame(1, "<", 1, b"x"),
            Frame(1, "<", 1, "TOKEN {"),
            Frame(1, ">", 1, "HELLO {}"),
            Frame(1, "<", 1, ""),
        ]
        assert outputs(*frames) == []

    @pytest.mark.parametrize("end", [Close(9, 1, "client"), Drop(9, 1)])
    def test_a_connection_that_ends(self, end: Event) -> None:
        """Streams without an end are cut off with it; others, and those of other connections, are left alone."""
        over = tokens(1, token(5) | {"finish_reason": "stop"})
        found = outputs(generate(0), over, generate(2, 2), generate(2, 3, connection=2), end)
        (cut,) = [one for one in found if one.error]
        assert (cut.stream.label, cut.error, cut.stream.cut) == ("1/2", CONNECTION_ENDED, True)


def asked(path: str = "/v1/chat/completions", **body: object) -> Request:
    """A request over HTTP."""
    return Request(0, 1, "POST", path, {}, JsonText("", {"model": "m", **body}, "py"))


def sse(value: object, time: float = 1) -> Piece:
    """A server-sent event."""
    return Piece(time, "sse", 1, JsonText("data: ", value, "compact"))


def chat(text: str, index: int = 0, reason: str | None = None, **more: object) -> dict[str, object]:
    """A chunk of a chat completion."""
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason, **more}]}


LOGPROBS = {"content": [{"token": "H", "logprob": -0.1}, {"token": "i", "logprob": -0.2}]}


class TestHttp:
    """Answers over HTTP."""

    def test_each_choice_is_a_stream(self) -> None:
        """The first one begins with its request, the others when they are first seen; labels tell them apart."""
        found = told(
            asked(n=2), sse(chat("b", 1)), sse(chat("a")), sse(chat("", 1, "stop")), sse(chat("c", 0, "length"))
        )
        assert found == [
            ("1/1.1", None, "b", None, None),
            ("1/1", None, "a", None, None),
            ("1/1.1", None, None, None, "stop"),
            ("1/1", None, "c", None, "length"),
        ]

    def test_several_tokens_in_a_chunk(self) -> None:
        """Each one that is named is a token; text that is not named is a piece."""
        one, two, piece = outputs(asked(), sse(chat("Hi", logprobs=LOGPROBS)), sse(chat("there", 1)))
        assert [(one.text, one.logprob, one.is_piece), (two.text, two.logprob)] == [("H", -0.1, False), ("i", -0.2)]
        assert (piece.stream.choice, piece.text, piece.is_piece) == (1, "there", True)

    def test_text_of_tokens_that_were_named(self) -> None:
        """Text that is told after its tokens, such as what was held back before a stop string, is not shown again."""
        found = outputs(asked(), sse(chat("", logprobs=LOGPROBS)), sse(chat("Hi", 0, "stop")))
        assert [(one.text, one.finish_reason) for one in found] == [("H", None), ("i", None), (None, "stop")]

    def test_an_ending_goes_with_the_last_output_of_its_own_stream(self) -> None:
        """Text and ending of one choice that come together are one output; those of two choices are two."""
        ends = {"index": 1, "delta": {}, "finish_reason": "stop"}
        both = sse({"choices": [{"index": 0, "delta": {"content": "a"}}, ends]})
        assert told(asked(n=2), both) == [("1/1", None, "a", None, None), ("1/1.1", None, None, None, "stop")]

    @pytest.mark.parametrize("lead", [": data: ", "data: {}\ndata: ", ""])
    def test_what_is_no_event(self, lead: str) -> None:
        """JSON that stands behind something else than one data line is no event's, whatever a trace took apart."""
        assert told(asked(), Piece(1, "sse", 1, JsonText(lead, chat("a"), "compact"))) == []

    def test_calls_of_tools_are_text(self) -> None:
        """What the model wrote of a call is shown in pieces, as far as the API tells."""
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
        more = {"index": 0, "function": {"arguments": "{}"}}
        chunks = [{"choices": [{"delta": {"tool_calls": [one]}}]} for one in (call, more)]
        assert [one.text for one in outputs(asked(), *map(sse, chunks))] == ["f", "{}"]

    def test_answers_come_in_the_order_of_their_requests(self) -> None:
        """Each request of a connection has a number; one that generates nothing is no stream."""
        models = Request(0, 1, "GET", "/v1/models", {})
        body = Piece(1, "body", 1, JsonText("", {"data": []}, "py"))
        answers = Answers(stream_of)
        steps = [answers.follow(event)[0] for event in (models, asked())]
        assert [(step.label, step.stream.index) for step in steps if isinstance(step, RequestStarted)] == [
            ("1/1", -1), ("1/2", 0),
        ]  # fmt: skip
        found = outputs(body, Done(1, 1), sse(chat("a", 0, "stop")), Done(2, 1), answers=answers)
        assert [(one.stream.label, one.text) for one in found] == [("1/2", "a")]

    def test_json_spelled_otherwise(self) -> None:
        """What was kept as text, because no style of a trace writes it so, is read all the same."""
        piece = Piece(1, "sse", 1, 'data: {"choices":[{"index":0,  "text":"\u2028", "finish_reason":"stop"}]}\r\n\r\n')
        assert told(asked("/v1/completions"), piece) == [("1/1", None, "\u2028", None, "stop")]

    def test_an_answer_that_is_not_streamed(self) -> None:
        """It is told with its last byte, wherever a writer cut it."""
        text = '{"choices": [{"index": 0, "text": "}", "finish_reason": "stop"}]}'
        parts = [Piece(1, "body", 1, part) for part in (text[:36], text[36:])]
        assert told(asked("/v1/completions"), *parts) == [("1/1", None, "}", None, "stop")]

    def test_failures(self) -> None:
        """A refusal says the body's message, or else the status; an error in the middle ends every choice."""
        no = Response(0, 1, 503, "Service Unavailable", {})
        assert told(asked(), no, Piece(1, "body", 1, "<html>"), Done(1, 1))[0][-1] == "HTTP 503 Service Unavailable"
        body = Piece(1, "body", 1, JsonText("", {"error": {"message": "busy"}}, "py"))
        assert [one[-1] for one in told(asked(), no, body, Done(1, 1))] == ["busy"]
        lost = sse({"error": {"message": "lost"}})
        found = told(asked(n=2), sse(chat("a")), sse(chat("b", 1, "stop")), lost)
        assert [(one[0], one[-1]) for one in found[2:]] == [("1/1", "lost")]

    @pytest.mark.parametrize(("end", "why"), [(Done(9, 1), ANSWER_ENDED), (Drop(9, 1), CONNECTION_ENDED)])
    def test_answers_that_stop_early(self, end: Event, why: str) -> None:
        """Without a finish_reason the stream is cut off, whether the answer or the connection ended."""
        *_, last = outputs(asked(), sse(chat("a")), end)
        assert (last.error, last.stream.cut) == (why, True)

    def test_what_nobody_asked_for(self) -> None:
        """Pieces and responses without a request, and requests whose body is not there, do no harm."""
        assert outputs(sse(chat("a")), Response(1, 1, 200, "", {}), Done(1, 1)) == []
        bare = Request(0, 1, "POST", "/v1/completions", {}, "not JSON")
        assert told(bare, sse({"choices": [{"text": "a"}]})) == [("1/1", None, "a", None, None)]


class TestAlternatives:
    """What might have been chosen, read again from the events."""

    def test_of_lmtp_tokens(self) -> None:
        """One list for each entry that counts as a token, best first."""
        event = tokens(1, token(1, top_logprobs={"3": -2, "1": -0.5}), {"stream_id": 2, "error": "no"}, token(2))
        (stream,) = {one.stream for one in outputs(event) if one.token == 1}
        assert alternatives_in([event], stream) == [((1, -0.5), (3, -2.0)), ()]
        assert alternatives_in([msg(1, stream_id=1)], stream) == []

    def test_of_http_tokens(self) -> None:
        """One list for each token that is named; where an event ends in a later piece, both are read."""
        entry = {"token": "H", "logprob": -0.1, "top_logprobs": [{"token": "J", "logprob": -2}]}
        whole = sse(chat("H", logprobs={"content": [entry]})).wire()
        (output,) = outputs(asked(), Piece(1, "sse", 1, whole))
        assert output.alternatives == (("J", -2.0),)
        parts = [Piece(1, "sse", 1, whole[:30]), Piece(1, "sse", 1, whole[30:])]
        assert alternatives_in([Piece(1, "sse", 1, whole)], output.stream) == [(("J", -2.0),)]
        assert alternatives_in(parts[1:], output.stream) == []
        assert alternatives_in(parts, output.stream) == [(("J", -2.0),)]
        assert alternatives_in([Done(1, 1)], output.stream) == []

    def test_of_an_answer_that_is_read_at_its_end(self) -> None:
        """The last line of JSON lines may have no line feed: the end of the body brings its tokens."""
        ask = Request(0, 1, "POST", "/api/chat", {}, None)
        head = Response(0, 1, 200, "OK", {"content-type": "application/x-ndjson"})
        entry = '{"token": "H", "logprob": -0.1, "top_logprobs": [{"token": "J", "logprob": -2}]}'
        line = Piece(1, "body", 1, '{"message": {"content": "H"}, "logprobs": [' + entry + "]}")
        one, last = outputs(ask, head, line, Done(2, 1))
        assert (one.time, one.text, last.error) == (2, "H", ANSWER_ENDED)
        assert alternatives_in([line, Done(2, 1)], one.stream) == [(("J", -2.0),)]


def test_text_comes_with_whole_characters() -> None:
    """A character split over tokens is shown once it is whole; unknown ids by their number; an open tail as U+FFFD."""
    answers = Answers(stream_of)
    answers.follow(Vocab(0, 0, {1: "Hi ", 2: b"\xf0\x9f", 3: b"\x99\x82"}))
    stream, text = stream_of(RequestStarted(0, 1, "1/1", "GENERATE", {}), 0, 0), StreamText(answers.vocabulary)
    assert [text.add(OutputEvent(0, stream, i)) for i in (1, 2, 3, 9)] == ["Hi ", "", "🙂", "⟨#9⟩"]
    assert text.add(OutputEvent(0, stream, 2, finish_reason="stop")) == "\ufffd"
    assert text.add(OutputEvent(0, stream, text="as sent")) == "as sent"
    over_http = StreamText({})
    assert [over_http.add(OutputEvent(0, stream, text=one)) for one in (b"\xf0\x9f", b"\x99\x82")] == ["", "🙂"]


def test_texts_of_single_tokens() -> None:
    """What the vocabulary says counts more than what the server sent; bytes inside a character are shown as such."""
    answers = Answers(stream_of)
    answers.follow(Vocab(0, 0, {2: b"\xf0\x9f", 3: "c"}))
    stream = stream_of(RequestStarted(0, 1, "1/1", "GENERATE", {}), 0, 0)
    told = [
        answers.text_of(OutputEvent(0, stream, *one)) for one in ((2,), (3, "sent"), (9, "sent"), (9,), (None, b"\x99"))
    ]
    assert told == ["⟨f0 9f⟩", "c", "sent", None, "⟨99⟩"]
    assert (answers.text_of_id(2), answers.text_of_id(9)) == ("⟨f0 9f⟩", None)
