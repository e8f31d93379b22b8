"""What a gateway records: its clients' requests, and its own calls of providers, which can be played again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import aiohttp

from lmtool.trace.events import Event
from lmtool.trace.reader import TraceReader
from lmtool.trace.upstream_tap import UpstreamTap
from tests.cli.test_gateway import program
from tests.fake_upstream import BAD, FakeUpstream
from tests.gateway.running import KEY, MESSAGE, member, pool


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
    events = [repr(event) for event in TraceReader(str(trace))]
    text = "\n".join(events)
    assert text.count("/v1/chat/completions") >= 2
    assert text.count("/api/chat") >= 2
    assert text.count("/v1/language/default/chat") >= 2
    assert "Hello there" in text
    assert "*** broke it" in text  # the provider repeats the key
    assert KEY not in text
    assert "authorization" not in text.lower()


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
