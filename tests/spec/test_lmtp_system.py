"""LMTP, System messages."""

import asyncio

import pytest

from lmtool.core.interfaces import QueuePlace
from lmtool.inference.engine.config import EngineConfig
from lmtool.protocol.lmtp import hold_ups
from lmtool.protocol.lmtp.connection import Connection
from lmtool.protocol.lmtp.hold_ups import HoldUp
from lmtool.protocol.lmtp.plugs import Plugs
from lmtool.serving.composition import Loader
from tests.protocol.lmtp.harness import conversation, ends, serving, split, until, wire
from tests.scripted_model import ScriptedModel
from tests.spec.conftest import STORIES

LONG = '"prompt": [1, 403], "max_tokens": 450, "ignore_eos": true, "top_logprobs": 0'


@pytest.fixture
def often(monkeypatch):
    """A hundred looks where there would be one."""
    monkeypatch.setattr("lmtool.protocol.lmtp.connection.TICK", hold_ups.TICK / 100)


@pytest.fixture
def quick(often, monkeypatch):
    """And slow is what brings nothing for a hundredth of the time."""
    monkeypatch.setattr(hold_ups, "SLOW", hold_ups.SLOW / 100)


async def told(client, count):
    """The next system messages, with the ids of their streams."""
    found = [(entry["stream_id"], entry["system"]) for entry in await client.entries("MSG", count)]
    assert all(isinstance(system["message"], str) for _, system in found)
    return found


@pytest.fixture
def one_at_a_time():
    """A real model that computes one stream, while others wait."""
    loader = Loader(EngineConfig(device="cpu", dtype="float32", threads=1, max_streams=1))
    model = loader.load(str(STORIES), lambda _: None)
    yield model
    model.close()


async def test_queued(one_at_a_time, often):
    """SYS-1, SYS-2: a stream that waits is told its place, and the time once that was measured, if it has asked."""
    async with serving(one_at_a_time) as served, wire(served) as client, wire(served) as old:
        await client.send(f'GENERATE {{{LONG}, "stream_id": 0}}')
        await client.receive()
        await old.send('GENERATE {"prompt": [1], "stream_id": 9, "max_tokens": 2}')
        await old.alive()
        for stream_id in (1, 2, 3):
            await client.send(f'GENERATE {{{LONG}, "stream_id": {stream_id}, "progress": true, "text": true}}')
        messages, order = {1: [], 2: [], 3: []}, []
        while len(order) < 4:
            command, entries = await client.receive()
            for entry in entries:
                if command == "MSG":
                    assert set(entry) == {"stream_id", "system"}
                    assert entry["stream_id"] not in order
                    messages[entry["stream_id"]].append(entry["system"])
                elif ends(entry):
                    order.append(entry["stream_id"])
        assert order == [0, 1, 2, 3]
        for stream_id, said in messages.items():
            assert {one["kind"] for one in said} == {"queued"}
            places = [one["place"] for one in said]
            assert places == sorted(places, reverse=True)
            assert places[0] <= stream_id + 1  # the other client has its turn before
        assert "seconds" not in messages[1][0]
        last = messages[3][-1]
        assert last["place"] == 1
        assert 0 < last["seconds"] < 60
        assert last["message"] == f"place 1 in the queue, about {last['seconds']:g} s"
        assert len(await old.stream(9)) == 2


async def test_slow(quick):
    """SYS-3, SYS-1: told while nothing comes, after twice as long each time; not where the entries are not read."""
    model = ScriptedModel(manual=True)
    async with conversation(model) as client:
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 2, "progress": true}')
        await client.send('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 2}')
        times = [system["seconds"] for stream_id, system in await told(client, 3) if stream_id == 1]
        assert len(times) == 3
        assert times == sorted(times)
        model.step()
        assert [entry["stream_id"] for entry in await client.entries("TOKEN", 2)] == [1, 2]
        ((_, system),) = await told(client, 1)
        assert (system["kind"], set(system)) == ("slow", {"kind", "message", "seconds"})
        model.step()
        assert all(ends(entry) for entry in await client.entries("TOKEN", 2))
        await asyncio.sleep(0.05)
        await client.alive()


async def test_draining():
    """SYS-4: a stream that runs when the server shuts down is told how long it may."""
    model = ScriptedModel(manual=True)
    async with serving(model) as served, wire(served) as client:
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1, "progress": true}')
        await client.send('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 1}')
        await client.alive()
        draining = asyncio.create_task(served.server.drain(30))
        ((stream_id, system),) = await told(client, 1)
        assert (stream_id, system["kind"], system["seconds"]) == (1, "draining", 30)
        model.step()
        assert all(ends(entry) for entry in await client.entries("TOKEN", 2))
        assert await draining


async def test_a_reader_that_is_behind(quick):
    """SYS-1, SYS-3: while entries wait that a client has not read, nothing is said: it is the one that is slow."""
    model, frames = ScriptedModel(manual=True), []
    connection = Connection(1, Plugs(model))
    await connection.receive('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 2, "progress": true}')
    model.step()
    await asyncio.sleep(0.2)

    async def send(frame):
        frames.append(frame)

    writing = asyncio.create_task(connection.write(send))
    await until(lambda: len(frames) == 2)
    assert [frame.partition(" ")[0] for frame in frames] == ["TOKEN", "MSG"]
    assert split(frames[1])[1][0]["system"]["seconds"] < 0.2
    connection.close()
    await writing


class TestHoldUp:
    """What is said of one stream, by any clock."""

    def test_a_place(self):
        """SYS-2: told at once, when it changes, and every five seconds."""
        stream, where = HoldUp(0.0), QueuePlace(2, None)
        first = stream.news(where, 1.0)
        assert (first.place, first.seconds, first.message) == (2, None, "place 2 in the queue")
        assert stream.news(where, 5.9) is None
        assert stream.news(where, 6.0).place == 2
        assert stream.news(QueuePlace(1, 2.04), 6.5).message == "place 1 in the queue, about 2 s"

    def test_silence(self):
        """SYS-3: two seconds after it has begun, after its last entry, or after its load; then after four, eight."""
        stream = HoldUp(0.0)
        stream.news(QueuePlace(1, None), 10.0)
        assert stream.news(None, 11.9) is None
        assert stream.news(None, 12.0).seconds == 2.0
        assert [stream.news(None, at) is not None for at in (13.9, 14.0, 17.9, 18.0)] == [False, True, False, True]
        stream.note_entry(19.0)
        assert stream.news(None, 20.9) is None
        assert stream.news(None, 21.0).message == "nothing for 2 s"
        stream.loading = True
        assert stream.news(None, 100.0) is None
        stream.loading = False
        assert stream.news(None, 103.9) is None
