"""Evergreen over gRPC, driven by stubs that grpcio-tools makes of the public interface."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from lmtool.core.errors import ResourceError
from lmtool.net.access.policy import AccessPolicy
from lmtool.net.telemetry.trace_context import TraceContext, current_trace
from lmtool.protocol.evergreen import grpc_server
from lmtool.protocol.evergreen.actions import ActionCall, ActionType, Port
from lmtool.protocol.evergreen.config import EvergreenConfig, SessionLimits
from lmtool.protocol.evergreen.grpc_server import GrpcServer, _Calls
from lmtool.protocol.evergreen.messages import SessionMessage
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from tests.net.telemetry.test_trace_context import GOOD
from tests.protocol.evergreen.harness import action, grpc_serving, grpc_session, leaf, parent, registry
from tests.protocol.lmtp.harness import PATIENCE

METHOD = "/evergreen.v2.EvergreenService/StartSession"


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header that HPACK's tables do not keep (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0)
"""What an HTTP/2 client sends first: the preface and empty SETTINGS."""
HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "x"), ("te", "trailers")]
CALL = b"".join(literal(*header) for header in [*HEADERS, ("content-type", "application/grpc")])
"""The head of a call without a key."""


@contextlib.asynccontextmanager
async def dialled(address: str, data: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    """A connection that has sent these bytes."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    try:
        writer.write(data)
        await writer.drain()
        yield reader
    finally:
        writer.close()


async def test_a_session_of_stubs():
    """Action and nodes in, an output streamed back; the half-close ends the session in order (rule 39)."""
    server = EvergreenServer(Plugs(registry()))
    async with grpc_serving(server) as address, grpc_session(address) as caller:
        await caller.send(actions=[action("UPPER", {"text": "prompt"}, {"text": "answer"})])
        await caller.send(parent("prompt", "a", "b"), leaf("b", "doughnut"))
        await caller.send(leaf("a", "half a ", continued=True))
        await caller.send(leaf("a", "jam ", seq=1))
        assert await caller.value("answer") == b"HALF A JAM DOUGHNUT"
        await caller.call.done_writing()
        assert await caller.failure() == ("OK", "")
    assert not server.running


async def test_a_hundred_actions_in_fifty_sessions():
    """A hundred actions in one session, fifty sessions at once."""
    server = EvergreenServer(Plugs(registry()))

    async def converse(address: str, count: int) -> None:
        async with grpc_session(address) as caller:
            names = [str(each) for each in range(count)]
            await caller.send(actions=[action("UPPER", {"text": f"in{n}"}, {"text": f"out{n}"}) for n in names])
            await caller.send(*(leaf(f"in{n}", f"text {n}") for n in names))
            assert [await caller.value(f"out{n}") for n in names] == [f"TEXT {n}".encode() for n in names]

    async with grpc_serving(server) as address:
        await converse(address, 100)
        await asyncio.gather(*(converse(address, 2) for _ in range(50)))


@pytest.mark.parametrize(
    ("key", "status"), [(None, "UNAUTHENTICATED"), ("Bearer wrong", "UNAUTHENTICATED"), ("Bearer right", "OK")]
)
async def test_the_key(key, status):
    """The key is the metadata `authorization`, checked by the policy of every wire."""
    server = EvergreenServer(Plugs(registry()))
    metadata = (("authorization", key),) if key else ()
    async with (
        grpc_serving(server, AccessPolicy("right")) as address,
        grpc_session(address, metadata=metadata) as caller,
    ):
        await caller.call.done_writing()
        assert (await caller.failure())[0] == status


async def test_the_trace_of_a_call():
    """The metadata `traceparent` stands for all actions of the session; a call without it is in no trace."""
    traces = []
    server = EvergreenServer(Plugs(registry(), log=lambda _entry: traces.append(current_trace.get())))
    async with grpc_serving(server) as address:
        for metadata in ((("traceparent", GOOD),), ()):
            async with grpc_session(address, metadata=metadata) as caller:
                await caller.send(leaf("in", "on"), actions=[action("UPPER", {"text": "in"}, {"text": "out"})])
                assert await caller.value("out") == b"ON"
    assert traces == [TraceContext(GOOD), None]


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({"origin": "https://evil.example"}, "PERMISSION_DENIED"),
        ({"sec-fetch-site": "same-origin"}, "PERMISSION_DENIED"),
        ({"sec-fetch-site": "none"}, "PERMISSION_DENIED"),
        ({"origin": "https://good.example", "sec-fetch-site": "cross-site"}, "OK"),
        ({}, "OK"),
    ],
)
async def test_browsers(metadata, status):
    """What a browser sends is refused but for a page that is allowed: the name that was asked for is not known here."""
    policy = AccessPolicy(origins=("https://good.example",))
    async with (
        grpc_serving(EvergreenServer(Plugs(registry())), policy) as address,
        grpc_session(address, metadata=tuple(metadata.items())) as caller,
    ):
        await caller.call.done_writing()
        assert (await caller.failure())[0] == status


async def test_an_abort_has_its_status_and_sentence():
    """What is wrong ends the call with the rule's status, never UNKNOWN."""
    server = EvergreenServer(Plugs(registry()))
    async with grpc_serving(server) as address, grpc_session(address) as caller:
        await caller.send(leaf("a", "x", seq=0, mimetype=None))
        status, text = await caller.failure()
        assert (status, "metadata" in text) == ("INVALID_ARGUMENT", True)


async def test_malformed_bytes_end_the_call_alone():
    """Bytes that are no message are INVALID_ARGUMENT; another session goes on (rule 41)."""
    server = EvergreenServer(Plugs(registry()))
    async with grpc_serving(server) as address, grpc_session(address) as other:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream("/evergreen.v2.EvergreenService/StartSession")()
            await call.write(b"\xff\xff")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await other.send(leaf("in", "on"), actions=[action("UPPER", {"text": "in"}, {"text": "out"})])
        assert await other.value("out") == b"ON"


async def test_a_message_above_the_limit_names_it():
    """A message of more than the limit is refused by our limit's name, not by the library."""
    limits = SessionLimits(max_message_bytes=10_000)
    server = EvergreenServer(Plugs(registry(), EvergreenConfig(limits)))
    async with grpc_serving(server) as address, grpc_session(address) as caller:
        await caller.send(leaf("a", b"x" * 10_000))
        status, text = await caller.failure()
        assert (status, "max_message_bytes" in text) == ("RESOURCE_EXHAUSTED", True)


async def test_a_client_that_vanishes_cancels_its_actions():
    """When the call is cancelled, its handlers are, and the session is gone (rule 40)."""
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(call: ActionCall) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = EvergreenServer(Plugs(registry(ActionType("WAIT", (), (Port("out"),), wait))))
    async with grpc_serving(server) as address:
        async with grpc_session(address) as caller:
            await caller.send(actions=[action("WAIT", {}, {"out": "out"})])
            async with asyncio.timeout(10):
                await begun.wait()
        async with asyncio.timeout(10):
            await cancelled.wait()


async def test_a_port_in_use():
    """A port that is taken is an error with the option that picks another one."""
    server = EvergreenServer(Plugs(registry()))
    async with grpc_serving(server) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(ResourceError, match=f"cannot listen on 127.0.0.1:{port}"):
            await GrpcServer(server, AccessPolicy()).start("127.0.0.1", port)


async def test_a_client_that_leaves_in_the_middle_of_a_message():
    """What the library says of it when nobody waits for the message any more is told nobody: strangers could do it."""
    told, gone = [], asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["message"]))

    class Context:
        async def write(self, _data: bytes) -> None:
            await gone.wait()
            raise grpc.aio.BaseError("execute_batch")

    calls = _Calls(EvergreenServer(Plugs(registry())), None, Context())
    sending = asyncio.create_task(calls.send(SessionMessage()))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    gone.set()
    await asyncio.wait([calls._writing])
    del calls, sending
    gc.collect()
    assert told == []


async def test_many_calls_on_one_connection():
    """Calls without a key, opened faster than they are refused, take no places of other connections."""
    calls = PREFACE + b"".join(http2_frame(1, 4, stream, CALL) for stream in range(1, 8_001, 2))
    async with (
        grpc_serving(EvergreenServer(Plugs(registry())), AccessPolicy("right")) as address,
        dialled(address, calls) as stranger,
    ):
        head = await stranger.readexactly(9)
        settings = dict(struct.iter_unpack(">HI", await stranger.readexactly(int.from_bytes(head[:3]))))
        assert settings.get(3) == 2 * EvergreenConfig().max_client_sessions  # RFC 9113: MAX_CONCURRENT_STREAMS
        for _ in range(5):
            async with grpc_session(address, metadata=(("authorization", "Bearer right"),)) as caller:
                await caller.call.done_writing()
                assert (await caller.failure())[0] == "OK"


async def test_a_connection_without_a_call_is_closed(monkeypatch):
    """A connection whose calls have ended is closed after a time; the next call connects again."""
    monkeypatch.setattr(grpc_server, "_IDLE_MS", 200)
    async with (
        grpc_serving(EvergreenServer(Plugs(registry())), AccessPolicy("right")) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        for _ in range(2):
            assert await channel.stream_stream(METHOD)().code() is grpc.StatusCode.UNAUTHENTICATED
            async with asyncio.timeout(PATIENCE):
                while (state := channel.get_state()) is not grpc.ChannelConnectivity.IDLE:
                    await channel.wait_for_state_change(state)


async def test_a_connection_that_says_nothing_is_closed(monkeypatch):
    """A connection that does not send HTTP/2's preface is closed after a time."""
    monkeypatch.setattr(grpc_server, "_HANDSHAKE_MS", 200)
    async with grpc_serving(EvergreenServer(Plugs(registry()))) as address, dialled(address) as stranger:
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                await stranger.read()


async def test_many_pings():
    """Each ping is answered, at a cost that does not grow with their number: 5,000 at once.

    The library counts pings unless it is told not to. Above its limit each further one is added to the reason for
    closing, which is copied whole: the pings of a client that reads nothing took a core until they ended.
    """
    pings = PREFACE + http2_frame(6, 0, 0, b"12345678") * 5_000
    async with grpc_serving(EvergreenServer(Plugs(registry()))) as address, dialled(address, pings) as stranger:
        answers = 0
        async with asyncio.timeout(PATIENCE):
            while answers < 5_000:
                head = await stranger.readexactly(9)
                await stranger.readexactly(int.from_bytes(head[:3]))
                assert head[3] != 7, "RFC 9113: GOAWAY"
                answers += head[3:5] == b"\x06\x01"  # PING with ACK


async def test_pings_without_a_call(monkeypatch):
    """A connection that only sends pings is closed after a time, as one that sends nothing."""
    monkeypatch.setattr(grpc_server, "_IDLE_MS", 200)
    ping = http2_frame(6, 0, 0, b"12345678")
    async with (
        grpc_serving(EvergreenServer(Plugs(registry()))) as address,
        asyncio.timeout(PATIENCE),
    ):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        with contextlib.suppress(ConnectionError):
            writer.write(PREFACE + ping)
            while await reader.read(65_536):
                writer.write(ping)
        writer.close()


@pytest.mark.parametrize(
    "metadata", [[("long", "x" * 17_000)], [(f"name{at}", "") for at in range(1_000)]], ids=["long", "many"]
)
async def test_metadata_above_the_limit(metadata):
    """Metadata of more than 16 KiB, names and 32 bytes for each entry counted, ends the call."""
    async with (
        grpc_serving(EvergreenServer(Plugs(registry()))) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await channel.stream_stream(METHOD)(metadata=metadata).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_message_that_grows_when_it_is_unpacked():
    """A compressed message is held to the limit on what it becomes."""
    async with (
        grpc_serving(EvergreenServer(Plugs(registry()))) as address,
        grpc.aio.insecure_channel(address, compression=grpc.Compression.Gzip) as channel,
    ):
        call = channel.stream_stream(METHOD)()
        await call.write(bytes(50_000_000))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_endless_small_messages():
    """A session that sends empty messages without end holds up no other."""

    async def flood(call) -> None:
        while True:
            await call.write(b"")

    async with (
        grpc_serving(EvergreenServer(Plugs(registry()))) as address,
        grpc_session(address) as caller,
        grpc.aio.insecure_channel(address) as channel,
    ):
        flooding = asyncio.create_task(flood(channel.stream_stream(METHOD)()))
        await caller.send(leaf("in", "on"), actions=[action("UPPER", {"text": "in"}, {"text": "out"})])
        assert await caller.value("out") == b"ON"
        assert not flooding.done()
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
