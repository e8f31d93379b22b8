"""Loops of SDKs with a tool, played without the SDKs: the same bytes, and every delta in the inspector.

`tests/peer/agent_loops.py` records them, `tests/peer/test_agent_loops.py` plays them to the SDKs themselves.
"""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from lmtool.terminal.tui.documents.text import SplitDocument
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.events import Piece
from lmtool.trace.exchanges import HttpExchange, recorded_requests
from lmtool.trace.reader import TraceReader
from lmtool.trace.replaying import mock_server
from tests.terminal.tui.states import rows

FOLDER = Path(__file__).parents[2] / "recordings"
LOOPS = {
    "openai_tool_loop": ["/v1/chat/completions"] * 2 + ["/v1/responses"] * 2,
    "anthropic_tool_loop": ["/v1/messages"] * 2,
}
"""Paths of the requests, by name of the recording."""


def path_of(name: str) -> Path:
    """Where a recording is."""
    return FOLDER / f"{name}.lmtp.jsonl"


def deltas(event: Piece) -> list[str]:
    """The texts that an event of an answer brings, read for itself from the JSON."""
    data = event.wire().decode().partition("data: ")[2].strip()
    value = json.loads(data) if data not in ("", "[DONE]") else {}
    if value.get("object") == "chat.completion.chunk":
        delta = next((choice["delta"] for choice in value["choices"]), {})
        calls = [call["function"] for call in delta.get("tool_calls", ())]
        found = [delta.get("reasoning_content"), delta.get("content")]
        return [text for text in (*found, *(part for call in calls for part in call.values())) if text]
    kind, delta = value.get("type", ""), value.get("delta", {})
    if kind == "response.output_item.added":
        return [value["item"]["name"]] if "name" in value["item"] else []
    if kind.startswith("response."):
        return [delta] if kind.endswith(".delta") else []
    if kind == "content_block_start":
        return [value["content_block"]["name"]] if "name" in value["content_block"] else []
    parts = (delta.get(name) for name in ("thinking", "text", "partial_json")) if kind == "content_block_delta" else ()
    return [part for part in parts if part]


@pytest.mark.parametrize("name", LOOPS)
async def test_the_same_bytes(name: str) -> None:
    """Each request of the loop gets, byte for byte, the answer that was recorded; a request too many is a miss."""
    recorded = [one for one in recorded_requests(list(TraceReader(path_of(name)))) if isinstance(one, HttpExchange)]
    assert [one.request.path for one in recorded] == LOOPS[name]
    async with mock_server(recorded) as port, httpx2.AsyncClient(trust_env=False) as client:
        for one in recorded:
            url = f"http://127.0.0.1:{port}{one.request.path}?beta=true"
            answer = await client.post(url, content=one.text, headers={"x-api-key": "another"})
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.content == b"".join(part.data for part in one.parts)
        assert (await client.post(url, content=one.text)).status_code == 404


@pytest.mark.parametrize("name", LOOPS)
def test_every_delta_in_the_inspector(name: str) -> None:
    """Each delta is a token of the screen, in order, with its frame's time; a call stands under its tool's name."""
    file = TraceFile(path_of(name))
    while not file.load(1.0):
        pass
    view, state = View(file.state, file, live=False), file.state
    expected = [
        (event.time, text) for event in TraceReader(path_of(name)) if isinstance(event, Piece) for text in deltas(event)
    ]
    assert len(expected) > 20
    tokens = state.tokens
    shown = [(state.frames.times[tokens.frames[row]], state.texts.piece(tokens.ids[row])) for row in range(len(tokens))]
    assert shown == expected
    turns = [stream.finish_reason for stream in state.streams]
    assert turns == ["tool_calls", "stop"] * (len(LOOPS[name]) // 2)
    assert all(stream.usage is not None for stream in state.streams)
    text = "\n".join(rows(SplitDocument(view, UNICODE, rows=40), 158))
    assert text.count("─ tool get_weather ─") == len(LOOPS[name]) // 2
    assert "Hm, hm." in text
    assert view.state.is_thought(state.streams[0].rows[0])
    assert not view.state.is_thought(state.streams[0].rows[-1])
