"""LMTP, Errors."""

import re

import pytest

from lmtool.core.errors import ConnectError, kind_of
from lmtool.core.types import GenerateRequest
from lmtool.protocol.lmtp.client_session import ClientSession
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.messages import RequestFailed
from tests.protocol.lmtp.harness import conversation
from tests.scripted_model import ScriptedModel, tokens_of
from tests.spec.document import section


@pytest.mark.parametrize(
    "frame",
    [
        'GENERATE {"stream_id": 1}',
        'GENERATE {"stream_id": 1, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}',
        'GENERATE {"stream_id": 1, "prompt": [5000]}',
        'GENERATE {"stream_id": 1, "prompt": [1], "model": "other"}',
        'GENERATE {"stream_id": 1, "prompt": [1], "temperature": NaN}',
        'SCORE {"stream_id": 1, "prompt": [1]}',
        'SCORE {"stream_id": 1, "prompt": [1], "scored": [1], "model": "other"}',
    ],
)
async def test_failing_streams(client, frame):
    """ERR-1: a GENERATE or SCORE that fails ends its stream by a TOKEN entry with `stream_id` and `error`."""
    await client.send(frame)
    (entry,) = await client.stream(1)
    assert set(entry) == {"stream_id", "error"}
    assert isinstance(entry["error"], str)
    await client.alive()


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        ('MODEL_INFO {"stream_id": 1, "model": "other"}', "other"),
        ('MODEL_INFO {"stream_id": 1, "model": 5}', "model"),
        ('CANCEL {"stream_id": 1, "model": 5}', "model"),
        ('HELLO {"stream_id": 1}', "Unknown command: HELLO"),
        ('TOKEN {"stream_id": 1}', "Unknown command: TOKEN"),
    ],
)
async def test_failing_requests(client, frame, word):
    """ERR-2: any other request that fails is answered by a MSG entry with `stream_id` and `error`."""
    await client.send(frame)
    (entry,) = await client.entries("MSG", 1)
    assert set(entry) == {"stream_id", "error"}
    assert entry["stream_id"] == 1
    assert word in entry["error"]


@pytest.mark.parametrize(
    "frame",
    ["", "GENERATE", "GENERATE {", "GENERATE 5", "GENERATE {'a': 1}", "HELLO {}", 'GENERATE {"prompt": [1]}', b"\x00"],
)
async def test_frames_of_nobody(client, frame):
    """ERR-3: a frame that belongs to no stream is answered by a MSG error with `stream_id` null."""
    await client.send(frame)
    (entry,) = await client.entries("MSG", 1)
    assert entry["stream_id"] is None
    assert entry["error"]
    await client.alive()


async def test_sentences(client):
    """ERR-5: an error names the field, the value, and what was expected."""
    await client.send('GENERATE {"prompt": [1, 2, -3], "stream_id": 1}')
    (entry,) = await client.stream(1)
    assert (
        entry["error"] == "prompt has -3 at index 2; expected an array of token ids (integers, 0 or more) or a string"
    )


def test_refused_by_msg():
    """ERR-6: a client ends a stream also when a MSG error bears its id."""
    session = ClientSession()
    session.open(GenerateRequest("x", (1,)))
    (event,) = session.receive('MSG [{"stream_id": 1, "error": "model not loaded"}]')
    assert (event.outputs[0].stream_id, event.outputs[0].error) == ("x", "model not loaded")


def test_lost_connections():
    """ERR-7: when the connection is lost, every open stream and request ends with an error."""
    session = ClientSession()
    session.open(GenerateRequest("x", (1,)))
    key, _ = session.ask("m")
    streams, request = session.lost(ConnectError("gone"))
    assert streams.outputs[0].error_code == "connection"
    assert request == RequestFailed(key, "gone", "connection")


def test_codes_have_advice():
    """ERR-8, EXT-4: for every error code of the document it says whether the same request may succeed later."""
    advised = set(re.findall(r"^\| (`.*?) \|", section("**ERR-8**"), re.MULTILINE))
    advised = {code for row in advised for code in re.findall(r"`(\w+)`", row)} - {"error_code"}
    assert advised == set(re.findall(r"`(\w+)`", section("**EXT-4**"))) - {"error", "error_code"}
    assert [code for code in sorted(advised) if kind_of(code).code != code] == []


def test_what_may_be_sent_again():
    """ERR-8, EXT-7: `retryable` of each code's errors is what the document advises."""
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|$", section("**ERR-8**"), re.MULTILINE):
        for code in set(re.findall(r"`(\w+)`", row[0])) - {"error_code"}:
            never = row[1].startswith(("No", "Not", "Only"))
            assert kind_of(code).retryable is not never, (code, row[1])


async def test_sending_again_after_an_overload():
    """ERR-8: what was refused as overload succeeds once there is room."""
    model = ScriptedModel(manual=True)
    async with conversation(model, config=ServerConfig(max_streams=1)) as client:
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1, "lmtp": 1}')
        await client.send('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 1}')
        assert (await client.stream(2))[0]["error_code"] == "overloaded"
        model.step()
        await client.stream(1)
        await client.send('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 1}')
        await client.alive()
        model.step()
        assert (await client.stream(2))[0]["token"] == tokens_of((1,), 1)[0]
