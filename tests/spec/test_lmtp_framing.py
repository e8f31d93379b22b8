"""LMTP, Framing."""

import pytest

from lmtool.core.types import GenerateRequest, TokenOutput
from lmtool.protocol.lmtp import codec
from lmtool.protocol.lmtp.client_session import ClientSession
from lmtool.protocol.lmtp.messages import Tokens, UnknownMessage


@pytest.mark.parametrize(
    "frame", ['MODEL_INFO   {"stream_id": 1}', 'MODEL_INFO {"stream_id": 1}\n', 'MODEL_INFO \t{\n"stream_id":\r1} ']
)
async def test_whitespace(client, frame):
    """FRM-2: more whitespace than needed is harmless."""
    await client.send(frame)
    (entry,) = await client.entries("MSG", 1)
    assert "model_info" in entry


@pytest.mark.parametrize("frame", ['model_info {"stream_id": 1}', ' MODEL_INFO {"stream_id": 1}'])
async def test_commands_are_exact(client, frame):
    """FRM-2: the command is what stands before the first space, in capitals."""
    await client.send(frame)
    (entry,) = await client.entries("MSG", 1)
    assert "error" in entry


@pytest.mark.parametrize("payload", ['[{"stream_id": 1, "token": 5}]', '{"stream_id": 1, "token": 5}'])
def test_clients_read_both(payload):
    """FRM-4: a client reads a list and a bare object."""
    assert codec.decode_answer(f"TOKEN {payload}") == [Tokens((TokenOutput("1", 5),))]


@pytest.mark.parametrize("payload", ["[]", '[{"stream_id": 1}]', "1", '"x"', "null", "true"])
async def test_requests_are_objects(client, payload):
    """FRM-5, ERR-3: any other payload of a client is refused."""
    await client.send(f"MODEL_INFO {payload}")
    (entry,) = await client.entries("MSG", 1)
    assert entry["stream_id"] is None
    assert "error" in entry


async def test_only_json_is_sent(client):
    """FRM-6: answers are valid JSON, whatever the request held."""
    await client.send(
        'MODEL_INFO {"stream_id": "a", "model": "\\u0000\\u2028 \\"quoted\\""}',
        'GENERATE {"prompt": [1], "stream_id": 2, "temperature": NaN}',
        'GENERATE {"prompt": [1], "stream_id": 3, "logit_bias": {"1": -Infinity}}',
        'GENERATE {"prompt": "\\ud83d", "stream_id": 4}',
        "NOISE \x00\x01",
    )
    answered = 0
    while answered < 5:
        _, entries = await client.receive()  # reads strictly
        answered += len(entries)


def test_clients_read_infinity():
    """FRM-7: a client takes `-Infinity` and leaves that alternative out."""
    (message,) = codec.decode_answer(
        'TOKEN [{"stream_id": 1, "token": 5, "logprob": -1.5, "top_logprobs": {"5": -1.5, "6": -Infinity, "7": NaN}}]'
    )
    assert message.outputs == (TokenOutput("1", 5, -1.5, ((5, -1.5),)),)


def test_clients_pass_over_the_unknown():
    """FRM-8: unknown commands, kinds, fields and streams disturb no client."""
    session = ClientSession()
    session.open(GenerateRequest("x", (1,)))
    assert [type(event) for event in session.receive('NEWS {"a": 1}')] == [UnknownMessage]
    assert [type(event) for event in session.receive('MSG [{"stream_id": 1, "news": 1}]')] == [UnknownMessage]
    assert session.receive('TOKEN [{"stream_id": 99, "token": 5}]') == []
    (event,) = session.receive('TOKEN [{"stream_id": 1, "token": 5, "news": {}, "finish_reason": "stop"}]')
    assert event.outputs == (TokenOutput("x", 5, finish_reason="stop"),)
    assert session.receive('TOKEN [{"stream_id": 1, "token": 6}]') == []


async def test_several_streams_in_a_frame(stepped, manual):
    """FRM-9: a step's tokens of several streams are one TOKEN list."""
    for number in range(3):
        await stepped.send(f'GENERATE {{"prompt": [1], "stream_id": {number}, "max_tokens": 1}}')
    await stepped.alive()
    manual.step()
    command, entries = await stepped.receive()
    assert command == "TOKEN"
    assert [entry["stream_id"] for entry in entries] == [0, 1, 2]


async def test_null_is_nothing(client, scripted):
    """FRM-10: a field that is null is a field left out."""
    await client.send(
        'GENERATE {"prompt": [1], "stream_id": 1, "model": null, "max_tokens": null, "temperature": null,'
        ' "logit_bias": null, "top_logprobs": null, "stop": null, "seed": null, "text": null, "lmtp": null}'
    )
    assert len(await client.stream(1)) == 32
    await client.send('GENERATE {"prompt": [1], "stream_id": 1}')
    await client.stream(1)
    assert scripted.requests[0] == scripted.requests[1]


async def test_names_that_come_twice(client, scripted):
    """FRM-12: the last value of a name counts, at any depth, also where only a tolerant reader takes the frame."""
    first = '"prompt": [9], "stream_id": 9, "max_tokens": 9, "logit_bias": {"5": 1, "5": 2}'
    await client.send(
        f'GENERATE {{{first}, "prompt": [1], "stream_id": 1, "max_tokens": 2}}',
        f'GENERATE {{"x": NaN, {first}, "prompt": [1], "stream_id": 2, "max_tokens": 2}}',
    )
    assert set(await client.streams(2)) == {1, 2}
    for request in scripted.requests:
        assert (request.prompt, request.sampling.max_tokens) == ((1,), 2)
        assert dict(request.sampling.logit_bias) == {5: 2.0}
