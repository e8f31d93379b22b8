"""Recorded Evergreen sessions: their actions, sent again to a server and compared."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace

import pytest
from websockets.asyncio.client import connect

from lmtool.core.errors import UsageError
from lmtool.protocol.evergreen.actions import ActionCall, ActionType, Port
from lmtool.protocol.evergreen.codec import encode, encode_json, json_value, pack_struct
from lmtool.protocol.evergreen.messages import AnyMessage, SessionMessage
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from lmtool.trace.codec import Header
from lmtool.trace.events import Event, Message
from lmtool.trace.proxy import parse_target
from lmtool.trace.replaying import ReplayOptions, replay, replay_to_mock
from lmtool.trace.server_tap import ServerTap
from lmtool.trace.sessions import session_actions
from lmtool.trace.writer import TraceWriter
from tests.protocol.evergreen.harness import action, leaf, parent, registry
from tests.protocol.evergreen.test_websocket import closing, value
from tests.protocol.lmtp.harness import listening


async def count(call: ActionCall) -> None:
    """Another number each time."""
    await call.outputs["n"].put(str(id(call)))


ACTIONS = registry(ActionType("COUNT", (), (Port("n"),), count))


async def recorded() -> list[Event]:
    """A session of two actions, one of them over a tree, and one that is aborted, as `serve --record` keeps them."""
    events: list[Event] = []

    def emit(_: int, more: Iterable[Event]) -> None:
        events.extend(more)

    tap = ServerTap(emit, iter(range(1000)).__next__).sessions()
    async with listening(EvergreenServer(Plugs(ACTIONS, tap=tap))) as port:
        async with connect(f"ws://127.0.0.1:{port}/evergreen") as websocket:
            await websocket.send(encode_json(SessionMessage((leaf("a", "jam"), parent("tree", "a", "up")))))
            await websocket.send(encode(SessionMessage(actions=(action("UPPER", {"text": "a"}, {"text": "up"}),))))
            assert await value(websocket, "up") == b"JAM"
            await websocket.send(encode(SessionMessage(actions=(action("COPY", {"node": "tree"}, {"copy": "c"}),))))
            while not session_actions(events)[-1].outputs.get("copy"):
                await websocket.recv()
        async with connect(f"ws://127.0.0.1:{port}/evergreen") as websocket:
            await websocket.send(encode(SessionMessage(actions=(action("NONE", {}, {}),))))
            assert (await closing(websocket))[0] == 4400
    return events


async def test_actions_of_a_recording():
    """Each action has its outputs, leaf by leaf, whatever the server's own ids are."""
    found = session_actions(await recorded())
    assert [(one.connection, one.number, one.kind) for one in found] == [
        (1, 1, "UPPER"),
        (1, 2, "COPY"),
        (2, 1, "NONE"),
    ]
    assert found[0].outputs == {"text": (("text/plain", b"JAM"),)}
    assert found[1].outputs == {"copy": (("text/plain", b"jam"), ("text/plain", b"JAM"))}


async def again(events: list[Event]) -> list[str]:
    """The verdicts of sending a recording to a server, and what is otherwise."""
    async with listening(EvergreenServer(Plugs(ACTIONS))) as port:
        options = ReplayOptions(timeout=10, score=False)
        comparisons, _ = await replay(events, parse_target(f"ws://127.0.0.1:{port}/"), options)
    return [f"{one.verdict} {one.kind}{''.join(f': {each.message}' for each in one.findings)}" for one in comparisons]


async def test_a_replay_is_compared():
    """The same server answers the same; the aborted session ends with its code again."""
    assert await again(await recorded()) == ["pass UPPER", "pass COPY", "pass NONE"]


async def test_a_difference_is_found():
    """An output with other bytes, and one that was never complete, are findings by the output's name."""
    events = await recorded()
    jam = base64.b64encode(b"JAM").decode()
    other = [
        replace(each, value=json.loads(json.dumps(each.value).replace(jam, base64.b64encode(b"HAM").decode())))
        if isinstance(each, Message) and each.direction == "<"
        else each
        for each in events
    ]
    found = await again(other)
    assert found[0] == "fail UPPER: output text: expected [b'HAM'], got [b'JAM']"
    assert found[1].startswith("fail COPY: output copy: expected [b'jam', b'HAM']")


async def test_what_is_sampled_is_compared_by_its_form():
    """Without a seed another text is no finding; the form still is."""
    config = (pack_struct({"temperature": 1.0}),)
    asked = json_value(SessionMessage(actions=(action("COUNT", {}, {"n": "out"}, configs=config),)))
    answer = json_value(SessionMessage((leaf("out", "1"),)))
    events: list[Event] = [Message(0.0, ">", 1, asked), Message(1.0, "<", 1, answer)]
    assert await again(events) == ["pass COUNT"]
    plain = json_value(SessionMessage(actions=(action("COUNT", {}, {"n": "out"}),)))
    assert (await again([Message(0.0, ">", 1, plain), events[1]]))[0].startswith(
        "fail COUNT: output n: expected [b'1']"
    )


async def test_what_json_cannot_write_is_sent_as_it_was():
    """A message with an unknown type is kept in its binary form, and sent so."""
    config = (AnyMessage("type.googleapis.com/a.B", b""),)
    asked = json_value(SessionMessage(actions=(action("COUNT", {}, {"n": "out"}, configs=config),)))
    assert list(asked) == ["hex"]
    answer = json_value(SessionMessage((leaf("out", "1"),)))
    found = await again([Message(0.0, ">", 1, asked), Message(1.0, "<", 1, answer)])
    assert found[0].startswith("fail COUNT: output n: expected [b'1']")


async def test_sessions_are_mocked():
    """The mock server answers the recorded client as it was answered; an aborted session ends with its code."""
    comparisons, _ = await replay_to_mock(await recorded(), timeout_s=10)
    assert [(one.verdict, one.kind) for one in comparisons] == [("pass", "UPPER"), ("pass", "COPY"), ("pass", "NONE")]


async def test_a_redacted_session_is_not_sent():
    """Payloads that were taken out cannot be sent again."""
    redacted = {"nodeFragments": [{"id": "a", "chunkFragment": {"data": {"$redacted": "prompt"}}}]}
    with pytest.raises(UsageError, match="redacted"):
        await again([Message(0.0, ">", 1, redacted)])


async def test_two_recordings_are_compared(tmp_path):
    """`trace diff` compares the actions of sessions too: the same is no finding, another output is."""
    events = await recorded()
    for name, swap in (("a", b"JAM"), ("b", b"HAM")):
        writer = TraceWriter(tmp_path / name, Header())
        jam, other = (base64.b64encode(text).decode() for text in (b"JAM", swap))
        for event in events:
            if isinstance(event, Message):
                writer.write(replace(event, value=json.loads(json.dumps(event.value).replace(jam, other))))
            else:
                writer.write(event)
        writer.close(events[-1].time)
    for other, status in (("a", 0), ("b", 1)):
        words = ["lmtool", "trace", "diff", str(tmp_path / "a"), str(tmp_path / other)]
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *words], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert ("expected [b'JAM'], got [b'HAM']" in done.stdout) is bool(status)
