"""Servers that go wrong, each caught at the right level by a message that names stream, position, expected and got."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from lmtool.trace.comparison import Finding, Level, Tolerance, Verdict, worst
from lmtool.trace.events import Event
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.replaying import ReplayOptions, replay

RECORDING = Path(__file__).parents[2] / "recordings/two_streams_interleaved.lmtp.jsonl"
Frames = list[tuple[str, list[dict[str, Any]]]]
"""Commands and entries, one entry a frame."""


def recording() -> list[Event]:
    """Two greedy streams of our own server."""
    return [event for _, event in TraceReader(RECORDING).with_offsets(whole=True)]


def answers() -> Frames:
    """Everything that the server said, one entry a frame."""
    from lmtool.trace.events import Frame, JsonText

    said = [event.content for event in recording() if isinstance(event, Frame) and event.direction == "<"]
    assert all(isinstance(content, JsonText) for content in said)
    return [(one.lead, [entry]) for one in said if isinstance(one, JsonText) for entry in one.value]  # type: ignore[attr-defined]


async def driven(frames: Iterable[str], level: Level) -> list[Finding]:
    """What is found about a server that says this once both requests have come."""

    async def behave(connection: ServerConnection) -> None:
        for _ in range(2):
            await connection.recv()
        for frame in frames:
            await connection.send(frame)
        await connection.wait_closed()

    async with serve(behave, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        demand = ReplayOptions(level, Tolerance(1e-3, 0.0), timeout=0.2)
        comparisons, _ = await replay(recording(), parse_target(f"ws://127.0.0.1:{port}/"), demand)
    return [finding for one in comparisons for finding in one.findings]


def written(frames: Frames) -> list[str]:
    """The frames as text."""
    return [f"{command} {json.dumps(entries)}" for command, entries in frames]


def of(frames: Frames, stream_id: int, position: int) -> int:
    """Where the frame with this token of a stream is."""
    return [i for i, (_, (entry,)) in enumerate(frames) if entry["stream_id"] == stream_id][position]


def drop(frames: Frames) -> None:
    del frames[of(frames, 1, 2)]


def swap(frames: Frames) -> None:
    one, other = of(frames, 1, 2), of(frames, 1, 3)
    frames[one], frames[other] = frames[other], frames[one]


def shift(frames: Frames) -> None:
    frames[of(frames, 2, 4)][1][0]["logprob"] -= 0.01


def forget_reason(frames: Frames) -> None:
    del frames[of(frames, 1, 5)][1][0]["finish_reason"]


def never_end(frames: Frames) -> None:
    frames[of(frames, 2, -1)][1][0]["finish_reason"] = None


def cross(frames: Frames) -> None:
    frames[of(frames, 1, 2)][1][0]["stream_id"] = 2


def cross_out(frames: Frames) -> None:
    frames[of(frames, 1, 2)][1][0]["stream_id"] = 77


def repeat(frames: Frames) -> None:
    place = of(frames, 2, 3)
    frames.insert(place, frames[place])


def end_twice(frames: Frames) -> None:
    frames.append(frames[of(frames, 1, -1)])


def come_late(frames: Frames) -> None:
    late = dict(frames[of(frames, 1, 0)][1][0])
    frames.append(("TOKEN", [late]))


MUTATIONS: list[tuple[Callable[[Frames], None], Level, Verdict, str]] = [
    (drop, "ids", "fail", "stream 1/1 token 2: expected token "),
    (swap, "ids", "fail", "stream 1/1 token 2: expected token "),
    (shift, "numbers", "fail", "stream 1/2 token 4: expected logprob "),
    (forget_reason, "shape", "fail", "stream 1/1 token 5: expected finish_reason, got none"),
    (never_end, "shape", "fail", "stream 1/2: expected an end (finish_reason or error), got after 12 entries"),
    (cross, "ids", "fail", "stream 1/2 token "),
    (cross_out, "shape", "fail", "stream 1/77: expected only entries of started streams, got "),
    (repeat, "ids", "fail", "stream 1/2 token 4: expected token "),
    (end_twice, "shape", "fail", "stream 1/1 token 15: expected nothing after the end, got 1 more entries"),
    (come_late, "shape", "fail", "stream 1/1 token 15: expected nothing after the end, got 1 more entries"),
]


@pytest.mark.parametrize(("mutate", "level", "verdict", "message"), MUTATIONS, ids=[m[0].__name__ for m in MUTATIONS])
async def test_mutation(mutate: Callable[[Frames], None], level: Level, verdict: Verdict, message: str) -> None:
    """A wrong answer is found at its level, at its place, and not below that level."""
    frames = answers()
    mutate(frames)
    found = [str(finding) for finding in await driven(written(frames), level)]
    assert any(one.startswith(f"{verdict} ({level}) {message}") for one in found), found
    below: dict[Level, Level] = {"ids": "shape", "numbers": "ids"}
    if mutate in (swap, shift):
        assert worst(await driven(written(frames), below[level])) == "pass"


async def test_an_object_is_not_strict() -> None:
    """A bare object in place of a list is told, and is no failure."""
    frames = [f"{command} {json.dumps(entries[0])}" for command, entries in answers()]
    assert worst(await driven(frames, "numbers")) == "non-strict"


async def test_the_same_passes() -> None:
    """The answers as recorded, divided over frames otherwise, pass."""
    assert worst(await driven(written(answers()), "numbers")) == "pass"
