"""LMTP, Streams."""

import pytest

from lmtool.lmtp.config import ServerConfig
from tests.lmtp.harness import conversation, ends, serving, wire
from tests.scripted_model import ScriptedModel, tokens_of


async def test_requests_begin_streams(client):
    """STR-1: GENERATE and SCORE begin streams; each event is a TOKEN entry with their id."""
    await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 3}')
    assert len(await client.stream(1)) == 3
    await client.send('SCORE {"prompt": [1], "scored": [2, 3], "stream_id": 2}')
    assert len(await client.stream(2)) == 2


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


async def test_long_ids(client):
    """STR-2, STR-3: an id has at most 1024 bytes."""
    for length, usable in ((1022, True), (1023, False)):
        await client.send(f'MODEL_INFO {{"stream_id": "{"x" * length}"}}')
        (entry,) = await client.entries("MSG", 1)
        assert (entry["stream_id"] == "x" * length) is usable
        assert ("model_info" in entry) is usable


@pytest.mark.parametrize("payload", ['{"prompt": [1]}', '{"prompt": [1], "stream_id": null}'])
async def test_missing_ids(client, payload):
    """STR-3, ERR-3: without an id a request is refused by an error without a stream."""
    await client.send(f"GENERATE {payload}")
    (entry,) = await client.entries("MSG", 1)
    assert entry["stream_id"] is None
    assert "stream_id" in entry["error"]


async def test_ids_belong_to_connections(served):
    """STR-4: two connections may use one id."""
    async with wire(served) as first, wire(served) as second:
        for number, client in enumerate((first, second)):
            await client.send(f'GENERATE {{"prompt": [{number}], "stream_id": 1}}')
        for number, client in enumerate((first, second)):
            assert [entry["token"] for entry in await client.stream(1)] == tokens_of((number,), 32)


async def test_running_ids(stepped, manual):
    """STR-5: a running id is refused by MSG; its stream goes on; afterwards the id is free."""
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 2}')
    await stepped.send('SCORE {"prompt": [9], "scored": [9], "stream_id": 1}')
    (refusal,) = await stepped.entries("MSG", 1)
    assert refusal["stream_id"] == 1
    assert "still running" in refusal["error"]
    manual.step()
    manual.step()
    assert [entry["token"] for entry in await stepped.stream(1)] == tokens_of((1,), 2)
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1}')
    await stepped.alive()
    manual.step()
    assert len(await stepped.stream(1)) == 1


async def test_order(client):
    """STR-6: in order within a stream, however streams are mixed."""
    for number in range(20):
        await client.send(f'GENERATE {{"prompt": [{number}], "stream_id": {number}, "max_tokens": {50 - number}}}')
    found = await client.streams(20)
    for number in range(20):
        assert [entry["token"] for entry in found[number]] == tokens_of((number,), 50 - number)


async def test_one_end(client):
    """STR-7: exactly one entry of a stream, its last, has a finish_reason or an error."""
    await client.send(
        'GENERATE {"prompt": [1], "stream_id": 1}',
        'SCORE {"prompt": [1], "scored": [1, 2], "stream_id": 2}',
        'GENERATE {"prompt": [5000], "stream_id": 3}',
        'GENERATE {"prompt": [1], "stream_id": 4, "max_tokens": 0}',
    )
    found = await client.streams(4)
    for entries in found.values():
        assert [ends(entry) for entry in entries] == [False] * (len(entries) - 1) + [True]
    await client.alive()


async def test_no_waiting(stepped, manual):
    """STR-8: a short request that comes later ends before a long one that came first."""
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 300}')
    await stepped.alive()
    for _ in range(10):
        manual.step()
    await stepped.send('GENERATE {"prompt": [2], "stream_id": 2, "max_tokens": 4}')
    while len(manual.running) < 2:
        await stepped.receive()
    for _ in range(4):
        manual.step()
    ended = []
    while not ended:
        ended = [entry["stream_id"] for entry in (await stepped.receive())[1] if ends(entry)]
    assert ended == [2]


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
