"""Steps of server cases, done against a server that the test speaks for."""

from __future__ import annotations

import json

import pytest

from lmtool.core.errors import ConnectError
from lmtool.measure.conformance.case_script import SERVER_STEPS, parse
from lmtool.measure.conformance.conversation import Conversation, StepFailedError
from lmtool.measure.conformance.server_under_test import ServerUnderTest
from lmtool.measure.conformance.transcript import Transcript
from lmtool.protocol.lmtp.endpoint import SocketEndpoint
from tests.measure.conformance.conftest import Say, msg, speaking, token


async def echo(frame: str, say: Say) -> None:
    """Answer MODEL_INFO, and each GENERATE with two tokens; close on CLOSE; say nothing to anything else."""
    command, _, text = frame.partition(" ")
    of = json.loads(text).get("stream_id") if text.strip() else None
    if command == "MODEL_INFO":
        await say.send(msg(of, model_info={"model": "m", "running": 0}))
    elif command == "GENERATE":
        await say.send(token(7, of, text="a"))
        await say.send(token(8, of, finish_reason="length"))
    elif command == "ORPHAN":
        await say.send(msg(None, error="no"))
    elif command == "CLOSE":
        await say.close(1008, "because")


async def run(url: str, script: str, patience: float = 10.0) -> Transcript:
    """Do a script on a server."""
    transcript = Transcript()
    conversation = Conversation(SocketEndpoint(url, True), ServerUnderTest("m"), transcript, patience)
    try:
        await conversation.connect("a")
        for step in parse(script, SERVER_STEPS):
            await conversation.do(step)
    finally:
        await conversation.end()
    return transcript


async def test_steps() -> None:
    """Frames, fragments, repeated frames, waits, fences, pings; what a stream brought can be used later."""
    script = """
    > GENERATE {"stream_id": 1}
    wait tokens 1 2
    wait end 1
    fragments GENERATE {"stream_id": "b"}
    times 2 GENERATE {"stream_id": $n()0}
    wait end "b" 10 20
    > SAY {"ids": $tokens(1), "first": $first(1), "after": $after(1), "begins": $begins(1)}$newline$pad(2)
    > SAY {"model": $model}
    bytes 00ff
    > ORPHAN {}
    wait error
    fence
    wait idle 3
    ping
    > MODEL_INFO {"stream_id": 5}
    wait answer 5
    """
    async with speaking(echo) as url:
        transcript = await run(url, script)
    sent = [message.content for message in transcript.sent()]
    assert sent[1:4] == ['GENERATE {"stream_id": "b"}', 'GENERATE {"stream_id": 10}', 'GENERATE {"stream_id": 20}']
    assert sent[4] == ('SAY {"ids": [7, 8], "first": 7, "after": [5, 6, 7, 8, 7, 8], "begins": "a"}\n  ')
    assert sent[5:7] == ['SAY {"model": "m"}', b"\x00\xff"]
    assert transcript.closed["a"].by == "client"


async def test_several_connections() -> None:
    """Each has its name; one that leaves is cut; one that holds reads nothing until it reads again."""
    script = """
    connect b "Origin: http://localhost"
    hold
    > GENERATE {"stream_id": 1}
    on a
    > GENERATE {"stream_id": 1}
    wait end 1
    on b
    read
    wait end 1
    leave
    """
    async with speaking(echo) as url:
        transcript = await run(url, script)
    assert (transcript.ids(1), transcript.ids(1, "b")) == ([7, 8], [7, 8])
    assert transcript.handshakes == {"a": 101, "b": 101}
    assert transcript.closed["b"].code == 1006


async def test_a_server_that_closes() -> None:
    """The code and who closed are kept; whoever waits for something else is told."""
    async with speaking(echo) as url:
        transcript = await run(url, "> CLOSE {}\nwait close")
        assert (transcript.closed["a"].code, transcript.closed["a"].reason, transcript.closed["a"].by) == (
            1008,
            "because",
            "server",
        )
        with pytest.raises(StepFailedError, match=r"the end of stream 1; the connection was closed \(1008 because\)"):
            await run(url, "> CLOSE {}\nwait end 1")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("wait end 1", "waited 0.2 s for the end of stream 1; nothing came"),
        ("fence\nwait tokens 1 2", "2 tokens of stream 1; the last that came: MSG"),
        ("wait close", "for the server to close connection a"),
    ],
)
async def test_waiting_ends(script: str, message: str) -> None:
    """What does not come is told in words, after the time allowed."""
    async with speaking(echo) as url:
        with pytest.raises(StepFailedError, match=message):
            await run(url, script, 0.2)


async def test_plain_http() -> None:
    """The answer to a GET is kept, whatever its status."""
    async with speaking(echo) as url:
        transcript = await run(url, "get /nothing")
    assert transcript.http["/nothing"].status == 426


async def test_nobody_there() -> None:
    """No server is an error of its own, not of a case."""
    async with speaking(echo) as url:
        pass
    with pytest.raises(ConnectError, match="no LMTP server"):
        await run(url, "fence")
