"""LMTP, Streams."""

import pytest

from lmtool.protocol.lmtp.config import ServerConfig
from tests.protocol.lmtp.harness import conversation, serving, wire
from tests.scripted_model import ScriptedModel, tokens_of


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "0",
        "-7",
        "1099511627776",
        "1.0",
        "1e2",
        '"a"',
        '""',
        '"é\\n"',
        "true",
        "false",
        "[1,[2]]",
        '{"a":{"b":null}}',
    ],
)
async def test_ids_are_given_back(client, text):
    """STR-2: any JSON value but null is an id, given back as it was."""
    await client.send(f'GENERATE {{"prompt": [1], "stream_id": {text}, "max_tokens": 1}}')
    assert f'"stream_id":{text},' in await client.frame()


async def test_equal_ids(stepped, manual):
    """STR-2: ids are the same if their JSON texts are, whitespace aside."""
    apart = ["1", "1.0", '"1"', '"a"', '"\\u0061"', '["a"]', '{"a":1,"b":2}', '{"b":2,"a":1}']
    for text in apart:
        await stepped.send(f'GENERATE {{"prompt": [1], "stream_id": {text}, "max_tokens": 1}}')
    await stepped.alive()
    assert len(manual.running) == len(apart)
    await stepped.send('GENERATE {"prompt": [1], "stream_id": [ "a" ], "max_tokens": 1}')
    (refusal,) = await stepped.entries("MSG", 1)
    assert "still running" in refusal["error"]


async def test_long_ids(client):
    """STR-2, STR-3: an id has at most 1024 bytes."""
    for length, usable in ((1022, True), (1023, False)):
        await client.send(f'MODEL_INFO {{"stream_id": "{"x" * length}"}}')
        (entry,) = await client.entries("MSG", 1)
        assert (entry["stream_id"] == "x" * length) is usable
        assert ("model_info" in entry) is usable


async def test_too_many_streams():
    """STR-9: one stream too many ends at once with an error; the others go on."""
    model = ScriptedModel(manual=True)
    async with conversation(model, config=ServerConfig(max_streams=2)) as client:
        for number in range(3):
            await client.send(f'GENERATE {{"prompt": [1], "stream_id": {number}, "max_tokens": 1}}')
        (refused,) = await client.stream(2)
        assert "error" in refused
        model.step()
        assert set(await client.streams(2)) == {0, 1}


async def test_many_connections(scripted):
    """STR-4, STR-6: 64 connections at once keep apart."""
    async with serving(scripted) as served:
        clients = [wire(served) for _ in range(64)]
        opened = [await client.__aenter__() for client in clients]
        for number, client in enumerate(opened):
            await client.send(f'GENERATE {{"prompt": [{number}], "stream_id": 1}}')
        for number, client in enumerate(opened):
            assert [entry["token"] for entry in await client.stream(1)] == tokens_of((number,), 32)
        for client in clients:
            await client.__aexit__(None, None, None)
