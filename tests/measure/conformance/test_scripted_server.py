"""The server that client cases run against."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from lmtool.measure.conformance.case_script import CLIENT_STEPS, parse
from lmtool.measure.conformance.scripted_server import ScriptedServer, ScriptVariables
from lmtool.measure.conformance.transcript import ClientRun


async def talk(script: str, *frames: str, count: int, bare: bool = False) -> tuple[list[str], ClientRun]:
    """Send frames, read so many answers, leave."""
    run = ClientRun()
    server = ScriptedServer(parse(script, CLIENT_STEPS), run, (11, 12, 13), bare=bare)
    try:
        async with connect(await server.listen()) as client:
            for frame in frames:
                await client.send(frame)
            got = [str(await client.recv()) for _ in range(count)]
    finally:
        await server.close()
    return got, run


async def test_a_stream_is_answered_by_the_script() -> None:
    """Under the client's own id; what was said in both directions is kept."""
    got, run = await talk(
        "< TOKEN [$token(0), $last(1)]\nping\nfragments TOKEN []", 'GENERATE {"prompt": [1], "stream_id": "x"}', count=2
    )
    entries = json.loads(got[0].partition(" ")[2])
    assert [(one["token"], one["stream_id"], one["finish_reason"]) for one in entries] == [
        (11, "x", None),
        (12, "x", "stop"),
    ]
    assert "text" not in entries[0]
    assert got[1] == "TOKEN []"
    assert (run.paths, run.notes) == (["/"], [])
    assert [message.direction for message in run.transcript.messages] == [">", "<", "<"]
    assert run.transcript.closed["1"].by == "client"


async def test_other_requests() -> None:
    """MODEL_INFO, SCORE and CANCEL are answered whatever the script is."""
    frames = ('MODEL_INFO {"stream_id": 1}', 'SCORE {"scored": [3, 4], "stream_id": 2}', 'CANCEL {"stream_id": 3}')
    got, _ = await talk("drop", *frames, count=3)
    loaded: dict[Any, Any] = {}
    for frame in got:
        for one in json.loads(frame.partition(" ")[2]):
            loaded.setdefault(one["stream_id"], []).append(one)
    assert loaded[1][0]["model_info"]["lmtp"] == 1
    assert [(one["token"], one["finish_reason"]) for one in loaded[2]] == [(3, None), (4, "stop")]
    assert loaded[3] == [{"stream_id": 3, "finish_reason": "cancelled"}]
    (bare,), _ = await talk("drop", frames[0], count=1, bare=True)
    assert bare.startswith('MSG {"')


@pytest.mark.parametrize(("script", "code"), [("drop", 1006), ("close 1001", 1001)])
async def test_ends_of_the_connection(script: str, code: int) -> None:
    """It is cut, or closed in good order."""
    run = ClientRun()
    server = ScriptedServer(parse(script, CLIENT_STEPS), run, (11,))
    async with connect(await server.listen()) as client:
        await client.send('GENERATE {"stream_id": 1}')
        with pytest.raises(ConnectionClosed):
            await client.recv()
    await server.close()
    assert (run.transcript.closed["1"].code, run.transcript.closed["1"].by) == (code, "server")


@pytest.mark.parametrize(
    ("payload", "spoken"),
    [
        ({"prompt": [1]}, False),
        ({"prompt": "a"}, True),
        ({"messages": []}, True),
        ({"prompt": [1], "text": True}, True),
    ],
)
def test_text_for_those_who_ask(payload: dict[str, object], spoken: bool) -> None:
    """Entries have text in text mode alone (TXT-4)."""
    filling = ScriptVariables({**payload, "stream_id": 1}, (11, 12, 13))
    assert ("text" in json.loads(filling.text("token", "1"))) == spoken
    assert (filling.text("text", "0") != "") == spoken
    assert (filling.text("id", ""), filling.text("t", "2")) == ("1", "13")
