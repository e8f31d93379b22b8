"""Recorded Evergreen sessions played to clients: the same actions get the same answers, whatever the ids."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import lmtool
from lmtool.protocol.evergreen.client import Session
from lmtool.protocol.evergreen.codec import json_value
from lmtool.protocol.evergreen.messages import Action, SessionMessage
from lmtool.protocol.evergreen.status import Abort, Status
from lmtool.trace.events import Close, Event, Message
from lmtool.trace.exchanges import recorded_requests
from lmtool.trace.matching import Matcher, MatchMode, OnMiss, Pace
from lmtool.trace.player import Player
from lmtool.trace.reader import TraceReader
from lmtool.trace.sessions import session_actions
from tests.protocol.evergreen.harness import action, leaf, parent

RECORDING = Path(__file__).parents[2] / "recordings/evergreen_sessions.lmtp.jsonl"
QUESTIONS = ("What is the capital of France?", "And of Spain?")
ANSWERS = ["The capital of France is Paris.", "The capital of Spain is Madrid."]

wires = pytest.mark.parametrize("wire", ["http", "grpc"])


def said(time: float, direction: str, *parts: object) -> Message:
    """A recorded message of these fragments and actions."""
    fragments = tuple(each for each in parts if not isinstance(each, Action))
    message = SessionMessage(fragments, tuple(each for each in parts if isinstance(each, Action)))
    return Message(time, ">" if direction == ">" else "<", 1, json_value(message))


UPPER = [
    said(0, ">", leaf("a", "jam"), action("UPPER", {"text": "a"}, {"text": "up"})),
    said(1, "<", leaf("up", "JAM")),
]


@contextlib.asynccontextmanager
async def playing(
    events: Sequence[Event], *, mode: MatchMode = "exact", on_miss: OnMiss = "error", pace: Pace | None = None
) -> AsyncIterator[tuple[Player, dict[str, str]]]:
    """A player of these events, and its addresses by wire."""
    player = Player(Matcher(recorded_requests(events), mode), pace or Pace(None), on_miss, lambda _: None)
    server = await asyncio.start_server(player._accept, "127.0.0.1", 0)
    assert player.sessions is not None
    grpc = await player.sessions.listen("127.0.0.1", 0)
    try:
        yield player, {"http": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "grpc": f"grpc://{grpc}"}
    finally:
        server.close()
        await player.close()


async def aborted(url: str, script: Callable[[Session], Awaitable[object]]) -> Abort:
    """The abort that a script's session ends with."""
    with pytest.raises(Abort) as caught:
        async with lmtool.session(url) as session:
            await script(session)
    return caught.value


@wires
async def test_a_conversation_is_played(wire):
    """Our client, whose ids are random, holds the recorded conversation; the tokens of each turn come as recorded."""
    events = list(TraceReader(RECORDING))
    options = [{"max_tokens": 24}, {"max_tokens": 24, "temperature": 0.8, "seed": 7}]
    async with playing(events) as (player, urls), lmtool.session(urls[wire]) as session:
        connection, nodes, turns = session.connection, [], []
        for text, config, more in zip(QUESTIONS, options, ("usage", "tokens"), strict=True):
            question = await session.leaf(text, role="user")
            turns += [question]
            outputs = await session.call("GENERATE", {"prompt": session.tree(*turns)}, ["response", more], **config)
            nodes.append(await outputs["response"].text())
            turns += [outputs["response"]]
        assert nodes == ANSWERS
        assert connection.failure is None
        assert (player.answered, player.missed) == (2, 0)


@wires
async def test_aborts_are_played(wire):
    """An action that failed, with its session or into `status`, fails again, in the recorded words."""
    events = list(TraceReader(RECORDING))
    async with playing(events) as (_, urls):
        async with lmtool.session(urls[wire]) as session:
            question = await session.leaf(QUESTIONS[0], role="user")
            told = await session.call("GENERATE", {"prompt": question}, ["response", "status"], target="no-such-model")
            assert "NOT_FOUND" in await told["status"].text()
        abort = await aborted(urls[wire], lambda session: session.call("PAINT", {"text": "any"}, ["picture"]))
        assert (abort.status, "no action 'PAINT'" in abort.message) == (Status.UNIMPLEMENTED, True)


@wires
async def test_what_was_not_recorded_is_told(wire):
    """An action that no recorded one equals ends its session; the sentence names the nearest and what differs."""
    async with playing(UPPER) as (player, urls):
        abort = await aborted(urls[wire], lambda session: session.call("UPPER", {"text": "ham"}, ["text"]))
        assert abort.status is Status.NOT_FOUND
        assert "input text differs at 0" in abort.message
        assert player.missed == 1
    async with playing(UPPER, on_miss="nearest") as (_, urls), lmtool.session(urls[wire]) as session:
        assert await (await session.call("UPPER", {"text": "ham"}, ["text"]))["text"].text() == "JAM"
    async with playing(UPPER, mode="order") as (_, urls), lmtool.session(urls[wire]) as session:
        assert await (await session.call("ANY", {"x": "y"}, ["text"]))["text"].text() == "JAM"


async def test_trees_are_played_as_they_came():
    """Children in any order, shared ones and those of the client: the same leaves, in the recorded order of time."""
    events = [
        said(0, ">", leaf("mine", "m"), action("TREE", {"in": "mine"}, {"out": "root"})),
        said(1, "<", leaf("late", "2", 1), parent("root", "late", "x", "mine", seq=1)),
        said(2, "<", parent("root", "early", seq=0, continued=True), leaf("early", "1")),
        said(3, "<", leaf("late", "(", continued=True), leaf("x", "x")),
    ]
    [recorded] = session_actions(events)
    assert [(step.offset, step.fragment.id) for step in recorded.steps] == [
        (2, "root"), (2, "root"), (2, "mine"), (2, "early"), (3, "late"), (3, "late"), (3, "x"),
    ]  # fmt: skip
    async with playing(events) as (_, urls), lmtool.session(urls["http"]) as session:
        found = await (await session.call("TREE", {"in": "m"}, ["out"]))["out"].leaves()
        assert [value for _, value in found] == [b"1", b"(2", b"x", b"m"]


async def test_what_was_refused_before_its_input_came():
    """Where the recorded client never completed an input, the answer does not wait for it; else it does."""
    asked = action("UPPER", {"text": "never"}, {"text": "out"})
    refused: list[Event] = [said(0, ">", asked), Close(1, 1, "server", 4400, "NOT_FOUND: no such model")]
    async with playing(refused) as (_, urls):

        async def ask(session: Session) -> None:
            [node] = session.connection.start(asked).values()
            await node.completed()

        abort = await aborted(urls["http"], ask)
        assert (abort.status, abort.message) == (Status.NOT_FOUND, "no such model")


async def test_cancel_ends_an_answer():
    """CANCEL is the session's own: an answer that was recorded to its half, and waits, is closed by it."""
    half = [UPPER[0], said(1, "<", leaf("up", "JA", continued=True))]
    async with playing(half) as (_, urls), lmtool.session(urls["grpc"]) as session:
        node = (await session.call("UPPER", {"text": "jam"}, ["text"]))["text"]
        await session.connection.growth(node.node)
        await session.call("CANCEL", {"node": node}, [])
        assert await node.text() == "JA"


async def test_the_pace():
    """An answer takes the recorded time, at the speed that was asked for."""
    loop = asyncio.get_running_loop()
    async with playing(UPPER, pace=Pace(10)) as (_, urls), lmtool.session(urls["http"]) as session:
        began = loop.time()
        await (await session.call("UPPER", {"text": "jam"}, ["text"]))["text"].text()
        assert 0.1 <= loop.time() - began < 1


def test_more_actions_than_run_at_once():
    """A recorded session may have had any number of actions."""
    asked = [said(at, ">", action("NOTHING", {}, {"n": f"n{at}"})) for at in range(200)]
    assert len(session_actions(asked)) == 200
