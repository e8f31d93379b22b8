"""What a gateway records: its clients' requests, and its own calls of providers, which can be played again."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import aiohttp
import pytest

from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.terminal.tui.documents.tokens import DetailDocument
from lmtool.terminal.tui.sources.proxy import ProxySource
from lmtool.terminal.tui.styles import UNICODE
from lmtool.trace.answers import Answers
from lmtool.trace.events import Done, Event
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.server_tap import UpstreamTap
from lmtool.trace.stream_events import Stream, stream_of
from tests.cli.test_gateway import program
from tests.fake_upstream import BAD, HELLO, FakeUpstream
from tests.gateway.pools.running import CHAT, KEY, MESSAGE, gateway, member, pool
from tests.terminal.tui.sources_running import no_tokenizer, watching
from tests.terminal.tui.states import rows, view_of


async def test_calls_of_providers_are_recorded_without_keys(tmp_path: Path) -> None:
    """Each with its path, body and answer beside the client's own exchange; no key, whoever repeats it in a header."""
    file, trace = tmp_path / "pools.yaml", tmp_path / "trace.jsonl"
    async with FakeUpstream(BAD["500"]) as bad, FakeUpstream() as good:
        file.write_text(pool(member("a", bad), member("b", good, "ollama")))
        async with program(file, "--record", str(trace)) as (_, url, _), aiohttp.ClientSession() as session:
            for streamed in (False, True):
                body = MESSAGE | {"stream": streamed}
                async with session.post(f"{url}/v1/language/default/chat", json=body) as response:
                    await response.read()
    recorded = list(TraceReader(str(trace)))
    events = [repr(event) for event in recorded]
    told = shown(recorded)
    assert len(told) == 2
    for pane in told.values():
        assert "answered by b" in pane
        assert "a status 500" in pane
        assert "b ok" in pane
    text = "\n".join(events)
    assert text.count("/v1/chat/completions") >= 2
    assert text.count("/api/chat") >= 2
    assert text.count("/v1/language/default/chat") >= 2
    assert "Hello there" in text
    assert "*** broke it" in text  # the provider repeats the key
    assert KEY not in text
    assert "authorization" not in text.lower()


async def test_streams_of_a_socket_are_recorded(tmp_path: Path) -> None:
    """Each with its text, who gave it or why it failed, and what was called; a stream that was cut says so."""
    file, trace = tmp_path / "pools.yaml", tmp_path / "trace.jsonl"
    async with FakeUpstream(BAD["500"]) as bad, FakeUpstream() as good:
        lost = pool(member("a", bad), name="lost")
        file.write_text(pool(member("a", bad), member("b", good)) + lost.partition("\n")[2])
        async with program(file, "--record", str(trace)) as (_, url, _), aiohttp.ClientSession() as session:
            for name, ids in (("default", "xy"), ("lost", "z")):
                async with session.ws_connect(f"{url}/v1/language/{name}/chatStream") as websocket:
                    for each in ids:
                        await websocket.send_json(MESSAGE | {"id": each})
                    open_ids = set(ids)
                    while open_ids:
                        told = await websocket.receive_json(timeout=10)
                        if "error" in told or told["chunk"]["finish_reason"]:
                            open_ids.discard(told["id"])
    answers, texts, streams = Answers(stream_of), dict[str, str](), dict[str, Stream]()
    for event in TraceReader(str(trace)):
        for told in answers.follow(event):
            name = told.stream.label.partition("/")[2]
            if name in {"x", "y", "z"}:
                streams[name] = told.stream
                texts[name] = texts.get(name, "") + str(getattr(told, "text", None) or "")
    assert texts == {"x": HELLO.text, "y": HELLO.text, "z": ""}
    for name in "xy":
        assert (streams[name].member, streams[name].finish_reason, streams[name].error) == ("b", "stop", None)
    assert streams["z"].error is not None
    assert "a status 500" in streams["z"].attempts
    assert KEY not in trace.read_text()


def shown(events: Sequence[Event]) -> dict[str, str]:
    """The inspector's pane of each stream that a gateway answered, by its label."""
    view = view_of(events)
    panes = {}
    for each in view.state.streams:
        if each.attempts:
            view.choose_stream(each.index)
            panes[each.label] = "\n".join(rows(DetailDocument(view, UNICODE), 120))
    return panes


async def test_the_inspector_shows_who_answers_as_it_happens() -> None:
    """Of every route, behind a proxy: the member, and each call with its outcome."""
    place = socket.create_server(("127.0.0.1", 0))
    here = f"http://127.0.0.1:{place.getsockname()[1]}"
    async with (
        FakeUpstream(BAD["500"]) as bad,
        FakeUpstream() as good,
        gateway(pool(member("a", bad), member("b", good))) as served,
        watching(ProxySource(parse_target(served.url), [place], pytest.fail, find_tokenizer=no_tokenizer)) as watch,
    ):
        for path, body in (("/v1/default/chat", MESSAGE), ("/v1/chat/completions", CHAT)):
            for streamed in (False, True):
                async with served.session.post(here + path, json=body | {"stream": streamed}) as response:
                    await response.read()
        async with LmtpClient(here.replace("http", "ws")) as lmtp:
            prompt = ChatPrompt((ChatMessage("user", "Hello there"),))
            request = GenerateRequest("lmtp", prompt, model="default", text=True)
            assert [output async for output in stream(lmtp, request)]
        async with served.session.ws_connect(f"{here}/v1/language/default/chatStream") as websocket:
            await websocket.send_json(MESSAGE | {"id": "socket"})
            while not (await websocket.receive_json(timeout=10))["chunk"]["finish_reason"]:
                pass
        good.usual = BAD["429 alone"]
        async with served.session.post(f"{here}/v1/default/chat", json=MESSAGE) as response:
            assert response.status == 503
        await watch.until(lambda: sum(isinstance(event, Done) for event in watch.events) == 5)
    panes = list(shown(watch.events).values())
    assert len(panes) == 7
    assert all("a status 500" in pane for pane in panes)
    assert ["answered by b" in pane for pane in panes] == [True] * 6 + [False]
    assert "b rate limit" in panes[-1]


def test_headers_are_recorded_by_a_list_of_those_allowed() -> None:
    """Any other might hold a secret; so might a query."""
    found: list[Event] = []

    def emit(_number: int, events: Iterable[Event]) -> None:
        found.extend(events)

    tap = UpstreamTap(lambda: 7, emit, lambda: 1.0)
    headers = {"x-strange-key": KEY, "Authorization": KEY, "content-type": "application/json"}
    exchange = tap.begin("POST", f"http://host/v1/chat/completions?key={KEY}", headers, b'{"model": "m"}')
    exchange.head(200, {"Set-Cookie": KEY, "content-type": "application/json", "retry-after": "3"})
    exchange.data(b'{"choices": []}')
    exchange.end(complete=True)
    text = repr(found)
    assert KEY not in text
    assert "application/json" in text
    assert "retry-after" in text
    assert "/v1/chat/completions" in text
