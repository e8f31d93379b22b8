"""LMTP, WATCH."""

import asyncio
import contextlib
import json
import time

import pytest
from websockets.asyncio.client import unix_connect

from lmtool.net.access.caller import Callers
from lmtool.net.access.keys import Key, KeyRing, digest_of
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.lmtp.messages import EXTENSIONS
from lmtool.trace import server_tap
from lmtool.trace.codec import event_from
from lmtool.trace.events import Close, Frame, Open
from lmtool.trace.server_tap import ServerTap
from tests.protocol.lmtp.harness import PATIENCE, Wire, serving, wire
from tests.scripted_model import ScriptedModel

ASK = 'WATCH {"stream_id": "w", "lmtp": 1}'
GENERATE = 'GENERATE {"prompt": [5], "max_tokens": 2, "stream_id": 1}'


@contextlib.asynccontextmanager
async def watchable(everybody=True, **more):
    """A server of a scripted model that can be watched, by everybody where nothing else is said."""
    tap = ServerTap(None, time.monotonic)
    model = more.pop("model", None) or ScriptedModel()
    async with serving(model, tap=tap, traffic=tap, everybody_watches=everybody, **more) as served:
        yield served


async def answer(client, stream_id="w"):
    """The next entry that answers WATCH."""
    (entry,) = await client.entries("MSG", 1)
    assert entry["stream_id"] == stream_id
    return entry


async def watch(client):
    """Begin; the first entry's `watch`."""
    await client.send(ASK)
    return (await answer(client))["watch"]


async def events_until(client, holds):
    """Events of the entries that come, until one of them fits."""
    found = []
    async with asyncio.timeout(PATIENCE):
        while not any(map(holds, found)):
            found += [event_from(one, "msgspec") for one in (await answer(client))["watch"]["events"]]
    return found


def brings_end(event):
    return isinstance(event, Frame) and event.direction == "<" and '"length"' in str(event.content)


async def test_watch():
    """WAT-1: what other connections say is told, in order, as exact text, the connections that are open first."""
    async with watchable() as served, wire(served) as other, wire(served) as watcher:
        first = await watch(watcher)
        assert sorted(first) == ["events", "lost", "time"]
        (opened,) = [event_from(one, "msgspec") for one in first["events"]]
        assert isinstance(opened, Open)
        assert opened.facts["before"] >= 0
        await other.send(GENERATE)
        frames = [await other.frame()]
        while '"length"' not in frames[-1]:
            frames.append(await other.frame())
        told = await events_until(watcher, brings_end)
        assert [one.content for one in told] == [GENERATE, *frames]
        assert [one.direction for one in told] == [">", *"<" * len(frames)]
        assert {one.connection for one in told} == {opened.connection}
        assert [one.time for one in told] == sorted(one.time for one in told)
        assert told[0].time >= first["time"]
        async with wire(served):
            pass
        ended = await events_until(watcher, lambda event: isinstance(event, Close))
        assert [type(one) for one in ended] == [Open, Close]


async def test_a_stream_that_runs_already(manual):
    """WAT-1: of a stream that runs already the rest is told."""
    async with watchable(model=manual) as served, wire(served) as other, wire(served) as watcher:
        await other.send(GENERATE)
        async with asyncio.timeout(PATIENCE):
            while not manual.requests:
                await asyncio.sleep(0)
        await watch(watcher)
        manual.step()
        manual.step()
        told = await events_until(watcher, brings_end)
        assert {one.direction for one in told} == {"<"}


async def test_nothing_of_its_own():
    """WAT-2: neither its own connection is told, nor answers to WATCH to anybody else, recordings included."""
    recorded = []
    tap = ServerTap(lambda _number, events: recorded.extend(events), time.monotonic)
    async with (
        serving(ScriptedModel(), tap=tap, traffic=tap, everybody_watches=True) as served,
        wire(served) as one,
        wire(served) as two,
        wire(served) as third,
    ):
        await watch(one)
        await watch(two)
        await third.send(GENERATE)
        first, second = [await events_until(each, brings_end) for each in (one, two)]
        for told in (first, second):
            assert '"watch":' not in "".join(str(event.content) for event in told if isinstance(event, Frame))
        assert {event.connection for event in second if brings_end(event)} == {3}
        await one.send(GENERATE)
        await one.stream(1)
        told = await events_until(two, brings_end)
        assert {event.connection for event in told} == {1}
        assert {event.connection for event in await nothing_but(one)} <= {2, 3}
    assert '"watch":' not in "".join(str(event.wire()) for event in recorded if isinstance(event, Frame))


async def nothing_but(client):
    """All events that are told until a question of the client's own is answered."""
    await client.send('MODEL_INFO {"stream_id": 9}')
    found = []
    while True:
        _, (entry,) = await client.receive()
        if entry["stream_id"] == 9:
            return found
        found += [event_from(one, "msgspec") for one in entry["watch"]["events"]]


async def test_nobody_waits(monkeypatch):
    """WAT-3: a client that watches and does not read loses the oldest events and is told how many; nobody waits."""
    monkeypatch.setattr(server_tap, "MAX_BYTES", 3000)
    monkeypatch.setattr("lmtool.protocol.lmtp.watching.ANSWER_BYTES", 1000)
    tap, notified = ServerTap(None, time.monotonic), []
    tap.opened(7, "")
    tap.opened(8, "")
    watcher = tap.watch(7, lambda: notified.append(1))
    watcher.take(10**6)
    for number in range(100):
        tap.frame(8, "<", f"TOKEN [{number:050}]")
    kept, lost = watcher.take(10**6)
    assert lost == 100 - len(kept) > 0
    assert sum(map(len, kept)) <= 3000
    assert b"99]" in kept[-1]
    tap.frame(8, "<", "TOKEN [" + "1" * server_tap.MAX_EVENT_BYTES + "]")
    assert watcher.take(10**6) == ([], 1)
    async with watchable() as served, wire(served) as other, wire(served) as watching:
        await watch(watching)
        for at in range(50):  # the watcher reads nothing meanwhile
            await other.send(GENERATE.replace('"stream_id": 1', f'"stream_id": {at}'))
            await other.stream(at)
        told = 0
        async with asyncio.timeout(PATIENCE):
            while told < 50:
                entry = (await answer(watching))["watch"]
                told += entry["lost"] + sum(brings_end(event_from(one, "msgspec")) for one in entry["events"])


@pytest.mark.parametrize("marked", [True, False])
async def test_who_may_with_keys(marked):
    """WAT-4: where there are many keys, theirs has to be marked; what was withdrawn may nothing."""
    ring = KeyRing((Key("ada", digest_of("a"), watch=marked), Key("bob", digest_of("b"))))
    callers = Callers(ring)
    shown = {"additional_headers": {"x-api-key": "a"}}
    async with (
        watchable(everybody=False, policy=AccessPolicy(callers=callers)) as served,
        wire(served, **shown) as client,
    ):
        await client.send(ASK)
        entry = await answer(client)
    if marked:
        assert "watch" in entry
    else:
        assert entry["error_code"] == "access_denied"
        assert "ada" in entry["error"]
        assert "watch = true" in entry["error"]


@pytest.mark.parametrize("keys", [(), (Key("ada", digest_of("a")),)], ids=["withdrawn", "marked no longer"])
async def test_a_right_that_is_withdrawn(keys):
    """WAT-4: a key's WATCH ends with an error before the next event; another one is refused, and all else goes on."""
    bob = Key("bob", digest_of("b"))
    callers = Callers(KeyRing((Key("ada", digest_of("a"), watch=True), bob)))
    async with (
        watchable(everybody=False, policy=AccessPolicy(callers=callers)) as served,
        wire(served, additional_headers={"x-api-key": "a"}) as client,
        wire(served, additional_headers={"x-api-key": "b"}) as other,
    ):
        await watch(client)
        callers.replace(KeyRing((*keys, bob)))
        await other.send(GENERATE)
        assert (await answer(client))["error_code"] == "access_denied"
        await other.stream(1)
        await client.send(ASK)
        assert (await answer(client))["error_code"] == "access_denied"
        assert await nothing_but(client) == []


async def test_who_may(tmp_path):
    """WAT-4: over a port nobody, unless the server was started so; over a Unix socket its own user, without a proxy."""
    async with watchable(everybody=False) as served, wire(served) as client:
        await client.send(ASK)
        entry = await answer(client)
        assert entry["error_code"] == "access_denied"
        assert "--watch" in entry["error"]
    path = str(tmp_path / "s")
    async with watchable(everybody=False, path=path):
        async with unix_connect(path, "ws://localhost/") as connection:
            assert "events" in await watch(Wire(connection))
        forwarded = {"x-forwarded-for": "10.0.0.1"}
        async with unix_connect(path, "ws://localhost/", additional_headers=forwarded) as connection:
            client = Wire(connection)
            await client.send(ASK)
            assert (await answer(client))["error_code"] == "access_denied"


async def test_another_user(tmp_path, monkeypatch):
    """WAT-4: over a Unix socket no other user may watch."""
    monkeypatch.setattr("os.geteuid", lambda: 123456)
    path = str(tmp_path / "s")
    async with watchable(everybody=False, path=path), unix_connect(path, "ws://localhost/") as connection:
        client = Wire(connection)
        await client.send(ASK)
        assert (await answer(client))["error_code"] == "access_denied"


async def test_no_keys():
    """WAT-5: headers that may hold a key are left out, and what stands behind the ? of a path."""
    tap = ServerTap(None, time.monotonic)
    tap.opened(1, "")
    watcher = tap.watch(1, lambda: None)

    async def application(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"set-cookie", b"secret-3")]})
        await send({"type": "http.response.body", "body": b"{}"})

    sent = [(b"authorization", b"Bearer secret-1"), (b"x-mine", b"secret-2"), (b"user-agent", b"curl")]
    scope = {"type": "http", "method": "POST", "path": "/v1/models", "query_string": b"key=secret-4", "headers": sent}

    async def receive():
        return {"type": "http.request", "body": b'{"n": 1}'}

    async def send(_message):
        return None

    await tap.around(application)(scope, receive, send)
    lines, _ = watcher.take(10**6)
    whole = b"".join(lines)
    assert b"secret" not in whole
    assert b"curl" in whole
    assert [json.loads(line)[1] for line in lines] == ["open", "request", "response", "body", "done", "close"]


async def test_the_end_and_one_more():
    """WAT-6: CANCEL ends it, then it may begin again; one more of a connection, or of the server, is refused."""
    async with watchable() as served, wire(served) as client, wire(served) as other:
        await watch(client)
        await client.send(ASK.replace('"w"', '"x"'))
        assert "watches already" in (await answer(client, "x"))["error"]
        await client.send('CANCEL {"stream_id": "w"}')
        await other.send(GENERATE)
        await other.stream(1)
        assert await nothing_but(client) == []
        assert "events" in await watch(client)


async def test_too_many(monkeypatch):
    """WAT-6: a server has a limited number of clients that watch; one that leaves makes room."""
    monkeypatch.setattr(server_tap, "MAX_WATCHERS", 1)
    async with watchable() as served, wire(served) as second:
        async with wire(served) as first:
            await watch(first)
            await second.send(ASK)
            assert (await answer(second))["error_code"] == "overloaded"
        async with asyncio.timeout(PATIENCE):
            while served.server.connections > 1:
                await asyncio.sleep(0.01)
        assert "events" in await watch(second)


async def test_old_clients_meet_nothing_new(client, served):
    """EXT-6, WAT-4: `watch` is among the names of the extensions; a server that shows nothing refuses it."""
    assert "watch" in EXTENSIONS
    await client.send('WATCH {"stream_id": 1}')
    (entry,) = await client.entries("MSG", 1)
    assert sorted(entry) == ["error", "stream_id"]
