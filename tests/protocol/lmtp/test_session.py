"""Both ends of a conversation, without a socket: what is said (`>>`) and what is answered (`<<`)."""

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import ConnectError, LocalProtocolError, RequestError
from lmtool.core.streams import renamed
from lmtool.core.types import GenerateRequest, LoadProgress, ModelInfo, TokenOutput, Usage
from lmtool.protocol.lmtp.client_session import ClientSession, StreamsAdvanced
from lmtool.protocol.lmtp.codec import RefusedFrameError
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.messages import (
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
from lmtool.protocol.lmtp.server_session import Outbox, ServerSession
from tests.protocol.lmtp.test_request_payloads import GENERATES, MESSAGES, SCORES


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
        session = ServerSession(ServerConfig(max_streams=3))
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
    from lmtool.protocol.lmtp import codec

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

    def test_a_server_that_would_begin_again(self):
        """A stream that goes on ends with an error where the server ignores what it has: late tokens are dropped."""
        session = ClientSession()
        session.open(GenerateRequest("a", (1,), generated=(5,)))
        (event,) = session.receive('MSG [{"stream_id": 1, "ignored": ["generated", "resumable"]}]')
        (output,) = event.outputs
        assert (output.stream_id, output.error_code) == ("a", "invalid_request")
        assert "does not know generated" in output.error
        assert session.receive('TOKEN [{"stream_id": 1, "token": 5, "finish_reason": null}]') == []

    def test_an_offer_to_a_plain_server(self):
        """`resumable` is left out; `generated` is refused by name, as any extension."""
        session = ClientSession()
        assert session.undecided(GenerateRequest("a", (1,), model="m", resumable=True))
        session.assume_plain()
        key, frame = session.open(GenerateRequest("a", (1,), model="m", resumable=True))
        assert frame == f'GENERATE {{"model":"m","stream_id":{key},"prompt":[1]}}'
        with pytest.raises(LocalProtocolError, match="does not know: generated"):
            session.open(GenerateRequest("a", (1,), model="m", generated=(5,), resumable=True))

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


def drain(outbox):
    frames = []
    while (frame := outbox.next_frame()) is not None:
        frames.append(frame)
    return frames


def test_nothing_of_an_output_is_lost():
    """An output that is given its caller's id keeps every field: of pools too, and those that come to be."""
    given = TokenOutput(**{each.name: f"its {each.name}" for each in fields(TokenOutput)})
    mine = renamed(given, "mine")
    told = {each.name: getattr(mine, each.name) for each in fields(TokenOutput)}
    assert told == {each.name: f"its {each.name}" for each in fields(TokenOutput)} | {"stream_id": "mine"}


def test_empty():
    """Nothing waits at first."""
    outbox = Outbox(100)
    assert outbox.next_frame() is None
    assert outbox.waiting_bytes == 0


def test_tokens_share_a_frame():
    """Neighbouring TOKEN entries leave together, a MSG leaves alone, and the order stays."""
    outbox = Outbox(100)
    for command, entry in [("TOKEN", b"1"), ("TOKEN", b"2"), ("MSG", b"3"), ("MSG", b"4"), ("TOKEN", b"5")]:
        outbox.put(command, entry)
    assert outbox.waiting_bytes == 5
    assert drain(outbox) == ["TOKEN [1,2]", "MSG [3]", "MSG [4]", "TOKEN [5]"]
    assert outbox.waiting_bytes == 0


@given(st.lists(st.tuples(st.sampled_from(["TOKEN", "MSG"]), st.integers(1, 30)), max_size=30))
def test_frames_have_a_limit(made):
    """No frame's entries exceed the limit unless one entry does; no entry is lost."""
    outbox = Outbox(40)
    for number, (command, size) in enumerate(made):
        outbox.put(command, chr(97 + number % 26).encode() * size)
    frames = drain(outbox)
    assert all(len(frame) <= len("TOKEN []") + 40 for frame in frames)
    entries = [entry for frame in frames for entry in frame.partition(" ")[2][1:-1].split(",")]
    assert entries == [chr(97 + number % 26) * size for number, (_, size) in enumerate(made)]


def test_a_large_entry_leaves_alone():
    """An entry above the limit is not held back for ever."""
    outbox = Outbox(10)
    outbox.put("TOKEN", b"x" * 50)
    outbox.put("TOKEN", b"y")
    assert drain(outbox) == [f"TOKEN [{'x' * 50}]", "TOKEN [y]"]
