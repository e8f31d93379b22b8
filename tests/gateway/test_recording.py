"""What a gateway records: its clients' requests, and its own calls of providers, which can be played again."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import aiohttp
import pytest

from lmtool.trace.events import Done, Event
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.upstream_tap import UpstreamTap
from lmtool.tui.documents.detail import DetailDocument
from lmtool.tui.sources.proxy import ProxySource
from lmtool.tui.styles import UNICODE
from tests.cli.test_gateway import program
from tests.fake_upstream import BAD, FakeUpstream
from tests.gateway.running import CHAT, KEY, MESSAGE, gateway, member, pool
from tests.tui.sources_running import no_tokenizer, watching
from tests.tui.states import rows, view_of


async def test_calls_of_providers_are_recorded_without_keys(tmp_path: Path) -> None:
    """Each with its path, body and answer beside the client's own exchange; no key, whoever repeats it in a header."""
    file, trace = tmp_path / "pools.yaml", tmp_path / "trace.jsonl"
    async with FakeUpstream(BAD["500"]) as bad, FakeUpstream() as good:
        file.write_text(pool(member("a", bad), member("b", good, "ollama")))
        async with program(file, "--record", str(trace)) as (_, url, _), aiohttp.ClientSession() as session:
            for stream in (False, True):
                body = MESSAGE | {"stream": stream}
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


def shown(events: Sequence[Event]) -> dict[str, str]:
    """The inspector's pane of each stream that a gateway answered, by its label."""
    view = view_of(events)
    panes = {}
    for stream in view.state.streams:
        if stream.attempts:
            view.choose_stream(stream.index)
            panes[stream.label] = "\n".join(rows(DetailDocument(view, UNICODE), 120))
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
            for stream in (False, True):
                async with served.session.post(here + path, json=body | {"stream": stream}) as response:
                    await response.read()
        good.usual = BAD["429 alone"]
        async with served.session.post(f"{here}/v1/default/chat", json=MESSAGE) as response:
            assert response.status == 503
        await watch.until(lambda: sum(isinstance(event, Done) for event in watch.events) == 5)
    panes = list(shown(watch.events).values())
    assert len(panes) == 5
    assert all("a status 500" in pane for pane in panes)
    assert ["answered by b" in pane for pane in panes] == [True] * 4 + [False]
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
