"""Both ends of a conversation, without a socket: what is said (`>>`) and what is answered (`<<`)."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.errors import ConnectError, LocalProtocolError, RequestError
from lmtool.lmtp.codec import RefusedFrameError
from lmtool.lmtp.messages import (
    Cancel,
    FieldsIgnored,
    Generate,
    ModelInfoAnswer,
    ModelInfoRequest,
    Progress,
    RequestFailed,
    Score,
    UnknownMessage,
)
from lmtool.lmtp.session import BrokenFrame, ClientSession, ServerSession, StreamsAdvanced
from lmtool.types import GenerateRequest, LoadProgress, ModelInfo, SamplingParams, ScoreRequest, TokenOutput, Usage
from tests.lmtp.test_request_payloads import GENERATES, MESSAGES, SCORES


def said(session):
    frames = []
    while (frame := session.next_frame()) is not None:
        command, _, payload = frame.partition(" ")
        frames.append((command, json.loads(payload)))
    return frames


FIELDS = st.sampled_from(["prompt", "stream_id", "scored", "stop", "logit_bias", "messages", "text", "max_tokens"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


class TestServer:
    def test_a_stream(self):
        """>> GENERATE, << TOKEN for each step, and the id is free again."""
        session = ServerSession()
        event = session.receive('GENERATE {"prompt": [1], "stream_id": 7}')
        assert event == Generate(GenerateRequest("7", (1,)))
        assert session.outputs([TokenOutput("7", 5, -1.0, ((5, -1.0),))]) == []
        assert session.outputs([TokenOutput("7", 6, -2.0, ((6, -2.0),), finish_reason="stop")]) == ["7"]
        assert session.streams == frozenset()
        (frame,) = said(session)
        assert frame[0] == "TOKEN"
        assert [entry["token"] for entry in frame[1]] == [5, 6]
        assert isinstance(session.receive('GENERATE {"prompt": [1], "stream_id": 7}'), Generate)

    def test_a_running_id(self):
        """>> the id of a running stream, << MSG error, and the stream goes on."""
        session = ServerSession()
        session.receive('GENERATE {"prompt": [1], "stream_id": 7}')
        for frame in ('SCORE {"prompt": [1], "scored": [2], "stream_id": 7}', 'GENERATE {"stream_id": 7}'):
            assert isinstance(session.receive(frame), RefusedFrameError)
            ((command, (entry,)),) = said(session)
            assert (command, entry["stream_id"]) == ("MSG", 7)
            assert set(entry) == {"stream_id", "error"}
        assert session.outputs([TokenOutput("7", 5, -1.0)]) == []
        assert session.streams == {"7"}

    def test_whitespace_in_an_id(self):
        """An id is the same with other whitespace in it."""
        session = ServerSession()
        session.receive('GENERATE {"prompt": [1], "stream_id": {"a": [1]}}')
        assert isinstance(session.receive('GENERATE {"prompt": [1], "stream_id": {"a":[1]}}'), RefusedFrameError)
        assert session.receive('CANCEL {"stream_id": { "a" : [1] } }') == Cancel('{"a":[1]}')

    def test_a_bad_request(self):
        """>> a bad GENERATE, << TOKEN error; >> a bad MODEL_INFO, << MSG error."""
        session = ServerSession()
        session.receive('GENERATE {"prompt": "x", "top_p": 7, "stream_id": 1}')
        session.receive('MODEL_INFO {"model": 7, "stream_id": 2}')
        session.receive('NOISE {"stream_id": 3}')
        session.receive("GENERATE")
        answers = [(command, entry["stream_id"]) for command, (entry,) in said(session)]
        assert answers == [("TOKEN", 1), ("MSG", 2), ("MSG", 3), ("MSG", None)]

    def test_too_many_streams(self):
        """>> one stream too many, << TOKEN error for it alone."""
        session = ServerSession(max_streams=2)
        for stream_id in range(3):
            session.receive(f'GENERATE {{"prompt": [1], "stream_id": {stream_id}}}')
        ((command, (entry,)),) = said(session)
        assert (command, entry["stream_id"]) == ("TOKEN", 2)
        assert session.streams == {"0", "1"}

    def test_late_outputs(self):
        """Outputs of a stream that is not running are dropped."""
        session = ServerSession()
        assert session.outputs([TokenOutput("7", 5, -1.0)]) == []
        assert said(session) == []

    def test_a_model_that_computes_nan(self):
        """A logprob that is no number ends the stream with an error; nothing invalid is sent."""
        session = ServerSession()
        session.receive('GENERATE {"prompt": [1], "stream_id": 7}')
        assert session.outputs([TokenOutput("7", 5, math.nan)]) == ["7"]
        ((_, (entry,)),) = said(session)
        assert "not a number" in entry["error"]

    def test_an_old_client_sees_nothing_new(self):
        """Without `lmtp` there is no usage, no code, no ignored field."""
        session = ServerSession()
        session.receive('GENERATE {"prompt": [1], "stream_id": 1, "unknown": 1}')
        session.outputs([TokenOutput("1", 5, -1.0, (), finish_reason="stop", usage=Usage(1, 1))])
        session.receive('GENERATE {"stream_id": 2}')
        (tokens,) = said(session)
        assert set(tokens[1][0]) == {"token", "stream_id", "logprob", "finish_reason", "top_logprobs"}
        assert set(tokens[1][1]) == {"stream_id", "error"}

    def test_a_new_client_sees_more(self):
        """With `lmtp` there are, from that request on, even when it was refused."""
        session = ServerSession()
        session.receive('GENERATE {"stream_id": 0, "lmtp": 1}')
        session.receive('GENERATE {"prompt": [1], "stream_id": 1, "unknown": 1}')
        session.outputs([TokenOutput("1", 5, -1.0, (), finish_reason="stop", usage=Usage(1, 2, 3))])
        first, ignored, tokens = said(session)
        assert first[1][0]["error_code"] == "invalid_request"
        assert ignored == ("MSG", [{"stream_id": 1, "ignored": ["unknown"]}])
        assert tokens[1][0]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3}

    def test_model_info(self):
        """>> MODEL_INFO, << MSG with model_info or an error."""
        session = ServerSession()
        event = session.receive('MODEL_INFO {"stream_id": 1, "model": "m", "data": {}}')
        assert event == ModelInfoRequest("1", "m")
        session.answer(event, ModelInfo("m", "c", "b"))
        session.refuse("1", RequestError("no", "try this"))
        answer, refusal = said(session)
        assert answer[0] == "MSG"
        assert answer[1][0]["model_info"]["constructor"] == "c"
        assert refusal == ("MSG", [{"stream_id": 1, "error": "no; try this"}])

    def test_progress(self):
        """<< MSG with progress, for the request that waits."""
        session = ServerSession()
        session.report_progress('"a"', LoadProgress("m", "loading", 1, 2))
        ((command, (entry,)),) = said(session)
        assert (command, entry["stream_id"], entry["progress"]["done_bytes"]) == ("MSG", "a", 1)

    def test_failing_all_streams(self):
        """Every running stream can be ended with an error at once."""
        session = ServerSession()
        for stream_id in (1, 2):
            session.receive(f'GENERATE {{"prompt": [1], "stream_id": {stream_id}}}')
        assert sorted(session.fail_streams(ConnectError("bye"))) == ["1", "2"]
        assert session.streams == frozenset()
        assert session.waiting_bytes > 0

    @given(st.lists(st.text() | st.binary() | MESSAGES, max_size=10))
    def test_no_frame_breaks_it(self, frames):
        """Whatever comes, the session answers and goes on."""
        session = ServerSession(max_streams=3)
        for frame in frames:
            text = frame if isinstance(frame, str | bytes) else _frame(frame)
            event = session.receive(text)
            if isinstance(event, RefusedFrameError):
                assert session.next_frame() is not None
            while session.next_frame() is not None:
                pass
        assert len(session.streams) <= 3

    @given(st.text(), st.sampled_from(["GENERATE", "SCORE", "MODEL_INFO", "CANCEL"]))
    def test_no_payload_breaks_it(self, payload, command):
        """Whatever follows a known command is a message or an answer that is JSON."""
        session = ServerSession()
        event = session.receive(f"{command} {payload}")
        assert isinstance(event, RefusedFrameError)
        assert len(said(session)) == 1

    @given(st.dictionaries(FIELDS, ANYTHING), st.sampled_from(["GENERATE", "SCORE", "MODEL_INFO", "CANCEL"]))
    def test_no_field_breaks_it(self, payload, command):
        """Whatever a field holds, the request is taken or refused, and the refusal is JSON."""
        session = ServerSession()
        event = session.receive(f"{command} {json.dumps(payload)}")
        assert isinstance(event, Generate | Score | ModelInfoRequest | Cancel | RefusedFrameError)
        assert len(said(session)) == isinstance(event, RefusedFrameError)


def _frame(message):
    from lmtool.lmtp import codec

    return codec.encode_request(message)


class TestClient:
    def test_a_stream(self):
        """A stream's outputs bear the id that it was submitted under, until its end; late ones are dropped."""
        session = ClientSession()
        key, frame = session.open(GenerateRequest("mine", (1, 2), model="m"))
        assert frame == 'GENERATE {"model":"m","stream_id":1,"prompt":[1,2]}'
        (event,) = session.receive('TOKEN [{"stream_id": 1, "token": 5, "logprob": -1, "finish_reason": null}]')
        assert event == StreamsAdvanced((key,), (TokenOutput("mine", 5, -1.0),))
        (event,) = session.receive('TOKEN {"stream_id": 1, "token": 6, "logprob": -1, "finish_reason": "stop"}')
        assert event.outputs[0].last
        assert session.receive('TOKEN [{"stream_id": 1, "token": 7, "logprob": -1, "finish_reason": "stop"}]') == []

    def test_many_streams_of_one_id(self):
        """Two submitters may use the same id: on the wire they are apart."""
        session = ClientSession()
        first, _ = session.open(GenerateRequest(0, (1,)))
        second, _ = session.open(ScoreRequest(0, (1,), (2,)))
        (event,) = session.receive('TOKEN [{"stream_id": 2, "token": 2}, {"stream_id": 1, "token": 9}]')
        assert event.keys == (second, first)

    def test_extensions_are_not_sent_unasked(self):
        """Only a request that needs an extension has `lmtp`, until the server is known to speak it."""
        session = ClientSession()
        assert "lmtp" not in session.open(GenerateRequest(1, (1,)), progress=True)[1]
        assert "progress" not in session.open(GenerateRequest(1, (1,)), progress=True)[1]
        assert '"lmtp":1,"progress":true' in session.open(GenerateRequest(1, "text"), progress=True)[1]
        key, frame = session.ask("m")
        assert frame == f'MODEL_INFO {{"model":"m","stream_id":{key},"lmtp":1}}'
        (answer,) = session.receive(f'MSG [{{"stream_id": {key}, "model_info": {{"model": "m", "lmtp": 1}}}}]')
        assert isinstance(answer, ModelInfoAnswer)
        assert '"lmtp":1' in session.open(GenerateRequest(1, (1,)))[1]

    def test_cancel(self):
        """CANCEL is sent with the model's name, and never to a server that is known not to have it."""
        session = ClientSession()
        key, _ = session.open(GenerateRequest(1, (1,), model="m"))
        assert session.cancel(key, "m") == 'CANCEL {"model":"m","stream_id":1}'
        assert session.cancel(key, "m") is None
        assert session.receive('TOKEN [{"stream_id": 1, "token": 5, "finish_reason": "cancelled"}]') == []
        assert session.receive('MSG [{"stream_id": 1, "error": "Unknown command: CANCEL"}]') == []
        key, _ = session.open(GenerateRequest(1, (1,), model="m"))
        assert session.cancel(key, "m") is None

    def test_requests_that_cannot_be_written(self):
        """A request that is no JSON raises, and begins nothing."""
        session = ClientSession()
        with pytest.raises(LocalProtocolError):
            session.open(GenerateRequest(1, (1,), SamplingParams(temperature=math.nan)))
        assert session.lost(ConnectError("gone")) == []

    def test_errors_of_streams(self):
        """TOKEN error and MSG error both end a stream; without a code the server's is assumed."""
        session = ClientSession()
        session.open(GenerateRequest("a", (1,)))
        session.open(GenerateRequest("b", (1,)))
        (event,) = session.receive('TOKEN [{"stream_id": 1, "error": "no"}]')
        assert event.outputs == (TokenOutput("a", error="no", error_code="server"),)
        (event,) = session.receive('MSG [{"stream_id": 2, "error": "no", "error_code": "unknown_model"}]')
        assert event.outputs == (TokenOutput("b", error="no", error_code="unknown_model"),)

    def test_errors_of_requests(self):
        """A MSG error answers a request once."""
        session = ClientSession()
        key, _ = session.ask(None)
        assert session.receive(f'MSG [{{"stream_id": {key}, "error": "no"}}]') == [RequestFailed(key, "no")]
        assert session.receive(f'MSG [{{"stream_id": {key}, "error": "no"}}]') == []
        assert session.receive('MSG [{"stream_id": null, "error": "no"}]') == [RequestFailed(None, "no")]

    def test_notices(self):
        """Progress and ignored fields end nothing; those of strangers are dropped."""
        session = ClientSession()
        key, _ = session.open(GenerateRequest("a", "text"))
        progress = '{"model": "m", "phase": "loading"}'
        (event,) = session.receive(f'MSG [{{"stream_id": {key}, "progress": {progress}}}]')
        assert event == Progress(key, LoadProgress("m", "loading"))
        (event,) = session.receive(f'MSG [{{"stream_id": {key}, "ignored": ["x"]}}]')
        assert event == FieldsIgnored(key, ("x",))
        assert session.receive('MSG [{"stream_id": 99, "ignored": ["x"]}]') == []
        assert isinstance(session.receive("HELLO [1]")[0], UnknownMessage)
        (event,) = session.receive('TOKEN [{"stream_id": 1, "token": 5, "finish_reason": "stop"}]')
        assert event.outputs[0].last

    def test_a_forgotten_request(self):
        """An answer that nobody waits for any more is dropped."""
        session = ClientSession()
        key, _ = session.ask("m")
        session.forget(key)
        assert session.receive(f'MSG [{{"stream_id": {key}, "model_info": {{}}}}]') == []

    def test_a_broken_frame(self):
        """What cannot be read at all is told, for the connection to be given up."""
        (event,) = ClientSession().receive("TOKEN [")
        assert isinstance(event, BrokenFrame)

    def test_lost(self):
        """When the connection is gone, every stream and request ends, once."""
        session = ClientSession()
        session.open(GenerateRequest("a", (1,)))
        key, _ = session.ask("m")
        streams, request = session.lost(ConnectError("gone", "try again"))
        assert streams.outputs == (TokenOutput("a", error="gone; try again", error_code="connection"),)
        assert request == RequestFailed(key, "gone; try again", "connection")
        assert session.lost(ConnectError("gone")) == []

    @given(st.lists(st.text() | st.binary() | st.text().map("TOKEN ".__add__) | st.text().map("MSG ".__add__)))
    def test_no_frame_breaks_it(self, frames):
        """Whatever comes, the session reads on."""
        session = ClientSession()
        session.open(GenerateRequest("a", (1,)))
        for frame in frames:
            assert isinstance(session.receive(frame), list)


@given(st.lists(GENERATES | SCORES, min_size=1, max_size=5))
def test_both_ends_understand_each_other(messages):
    """What a client's session writes, a server's session reads as the same request, and back."""
    client, server = ClientSession(), ServerSession()
    for message in messages:
        key, frame = client.open(message.request)
        event = server.receive(frame)
        assert event.request == _renamed(message.request, key)
        server.outputs([TokenOutput(key, 5, -0.5, ((5, -0.5),), "x", "stop", Usage(1, 1))])
        (advanced,) = [e for f in frames_of(server) for e in client.receive(f)]
        usage = Usage(1, 1) if server.extended else None
        expected = TokenOutput(message.request.stream_id, 5, -0.5, ((5, -0.5),), "x", "stop", usage)
        assert advanced.outputs == (expected,)


def frames_of(session):
    while (frame := session.next_frame()) is not None:
        yield frame


def _renamed(request, key):
    import dataclasses

    return dataclasses.replace(request, stream_id=key)
