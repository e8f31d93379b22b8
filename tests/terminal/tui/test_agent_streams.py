"""Agents and SDKs watched through the proxy: thoughts, text, calls of tools as they form, usage, failures."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING

import httpx2
import pytest

from lmtool.terminal.tui.documents.streams import StreamsDocument
from lmtool.terminal.tui.documents.text import SplitDocument, TextDocument
from lmtool.terminal.tui.documents.tokens import DetailDocument
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.events import Close, Done, Piece
from tests.fake_upstream import BAD, Behaviour, FakeUpstream
from tests.terminal.tui.sources_running import Watch, watching
from tests.terminal.tui.states import rows
from tests.terminal.tui.test_proxy import listening, proxy
from tests.trace.test_http_outputs import LOOP, PATHS, chat, exchange

if TYPE_CHECKING:
    from lmtool.protocol.providers.answer_events import Api
    from lmtool.trace.events import Event

KEY = "sesame-0123456789abcdef"
NO_CURSOR = {ord(sign): "" for sign in "▕▏"}
RESULT = {
    "chat": {"messages": [{"role": "tool", "tool_call_id": "c", "content": "sunny in Oslo"}]},
    "responses": {"input": [{"type": "function_call_output", "call_id": "c", "output": "sunny in Oslo"}]},
    "messages": {
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "sunny in Oslo"}]}
        ]
    },
}


def seen(events: list[Event]) -> View:
    """A view of these events, at their end."""
    store = EventStore()
    store.feed(events)
    return View(store.state, store)


async def asked(watch: Watch, place: socket.socket, api: Api, ends: int, **more: object) -> httpx2.Response:
    """A request through the proxy, with keys wherever they can stand."""
    url = f"http://127.0.0.1:{place.getsockname()[1]}{PATHS[api]}?key={KEY}"
    headers = {"Authorization": f"Bearer {KEY}", "x-api-key": KEY, "Cookie": f"a={KEY}"}
    body = {"model": "m", "stream": True, **RESULT[api], **more}
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(url, json=body, headers=headers)
    await watch.until(lambda: sum(isinstance(event, Done | Close) for event in watch.events) >= ends)
    return answer


@pytest.mark.parametrize("api", PATHS)
async def test_a_stream_of_an_agent(api: Api) -> None:
    """Every delta stands on the screen with its time; what a tool answered is its prompt; no key is shown."""
    place = listening()
    async with FakeUpstream(Behaviour(words=LOOP)) as upstream, watching(proxy(upstream.url, place)) as watch:
        answer = await asked(watch, place, api, 1)
        assert upstream.received[0].key == KEY
    view = seen(watch.events)
    stream = view.state.streams[0]
    assert len(stream.rows) == len({view.state.tokens.frames[row] for row in stream.rows}) == 12
    assert answer.content == b"".join(event.wire() for event in watch.events if isinstance(event, Piece))
    for columns, high in ((158, 30), (78, 20), (58, 14)):
        text = [line.translate(NO_CURSOR) for line in rows(SplitDocument(view, UNICODE, rows=high), columns)]
        assert any("─ tool weather ─" in line for line in text)
        assert any("─ tool time ─" in line for line in text)
        assert any('{"city":"Oslo"}' in line for line in text)
        assert any('{"zone":"CET"}' in line for line in text)
        assert any("Let me see." in line for line in text)
        assert any("sunny in Oslo" in line for line in text)
        assert any("usage: 7 read, 5 written" in line for line in text)
        assert KEY not in "\n".join(text)
    detail = "\n".join(rows(DetailDocument(view, UNICODE), 78))
    assert "after the one before" in detail
    assert "usage: 7 read, 5 written" in detail
    assert KEY not in repr(watch.events)


def test_the_name_of_a_tool_is_a_token_of_its_own() -> None:
    """The cursor goes to it like to any delta, and it stands in the rule; text behind a call begins under a rule."""
    begun = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": ""}}
    goes_on = {"index": 0, "function": {"arguments": "}"}}
    other = {"index": 1, "id": "d", "function": {"name": "time", "arguments": "{"}}
    view = seen(
        exchange("chat", chat(begun), chat({"index": 0, "function": {"arguments": "{"}}), chat(other), chat(goes_on))
        + exchange("chat", chat(begun), chat(content="Done."))
    )
    texts = TextDocument(view, UNICODE)
    view.choose_token(view.state.streams[0].rows[0])
    lines = rows(texts, 40)
    assert [line.split(" ─")[0] for line in lines[:6]] == [
        "─ tool ▕weather▏",
        "{",
        "─ tool time",
        "{",
        "─ tool weather goes on",
        "}",
    ]
    view.choose_stream(1)
    assert [line.split(" ─")[0] for line in rows(texts, 40)[:3]] == ["─ tool weather", "─ answer", "▕Done.▏"]


@pytest.mark.parametrize(("bad", "told"), [
    ("401", "HTTP 401 Unauthorized: Incorrect API key provided: ***"),
    ("429 in seconds", "HTTP 429 Too Many Requests, retry after 30 s: slow down, ***"),
    ("500", "HTTP 500 No: *** broke it"),
    ("half a body", "the connection ended before the stream did"),
    ("an error in the stream", "*** overloaded"),
])  # fmt: skip
@pytest.mark.parametrize("api", PATHS)
async def test_failures(api: Api, bad: str, told: str) -> None:
    """What went wrong stands on the screen in plain words, without the key that the server repeats."""
    place = listening()
    async with FakeUpstream(BAD[bad]) as upstream, watching(proxy(upstream.url, place)) as watch:
        if bad == "half a body":
            with pytest.raises(httpx2.HTTPError):
                await asked(watch, place, api, 1)
            await watch.until(lambda: "Drop" in repr(watch.events))
        else:
            await asked(watch, place, api, 1)
    view = seen(watch.events)
    for columns in (158, 78, 58):
        assert any(told[:30] in line for line in rows(SplitDocument(view, UNICODE, rows=14), columns))
    assert told in " ".join(" ".join(rows(DetailDocument(view, UNICODE), 78)).split())
    if bad in ("401", "500"):
        assert any(told[:8] in line for line in rows(StreamsDocument(view, UNICODE), 78))
    assert KEY not in repr(watch.events)


async def test_nobody_behind_the_proxy() -> None:
    """The stream fails on the screen, and a note says why."""
    async with FakeUpstream() as gone:
        url = gone.url
    place, warnings = listening(), list[str]()
    source = proxy(url, place)
    async with watching(source) as watch:
        answer = await asked(watch, place, "chat", 1)
    assert answer.status_code == 502
    assert "no connection to" in json.loads(answer.content)["error"]["message"]
    assert not warnings
    view = seen(watch.events)
    assert any("HTTP 502 Bad Gateway: no connection" in line for line in rows(SplitDocument(view, UNICODE, rows=9), 78))
    await asyncio.sleep(0)
