"""A proxy as a source."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx2
import pytest

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.terminal.tui.sources.proxy import ProxySource
from lmtool.trace.events import Open, Piece, Remark, Request, Vocab
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from tests.protocol.lmtp.harness import serving
from tests.scripted_model import ScriptedModel, tokens_of
from tests.terminal.tui.sources_running import no_tokenizer, watching


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def proxy(url: str, place: socket.socket, **more: object) -> ProxySource:
    return ProxySource(parse_target(url), [place], pytest.fail, find_tokenizer=no_tokenizer, **more)  # type: ignore[arg-type]


async def talk(place: socket.socket, prompt: tuple[int, ...]) -> list[int]:
    async with LmtpClient(f"ws://127.0.0.1:{place.getsockname()[1]}/") as client:
        request = GenerateRequest("a", prompt, SamplingParams(max_tokens=4))
        return [output.token async for output in stream(client, request) if output.token is not None]


class TestProxy:
    """Other programs' conversations, watched by the proxy."""

    async def test_any_client_is_watched(self) -> None:
        """A client that is pointed at the proxy is answered as by the server, and its stream is fed."""
        place = listening()
        async with serving(ScriptedModel()) as served, watching(proxy(served.url, place)) as watch:
            assert await talk(place, (5,)) == tokens_of((5,), 4)
            await watch.until(lambda: watch.ends() == 1)
            assert list(watch.tokens().values()) == [tokens_of((5,), 4)]
            assert watch.source.title.startswith("proxy :")
            assert watch.source.advice == ""
            watch.source.url = "ws://127.0.0.1:8081/"
            assert watch.source.advice == "point a client at ws://127.0.0.1:8081/"

    async def test_own_requests_go_beside_the_others(self) -> None:
        """A branch is a request on the inspector's own connection, never in somebody else's."""
        place = listening()
        async with serving(ScriptedModel()) as served, watching(proxy(served.url, place)) as watch:
            await talk(place, (5,))
            label = await watch.source.send(GenerateRequest(0, (5, 6), SamplingParams(max_tokens=3)))
            await watch.until(lambda: watch.ends() == 2)
            assert watch.tokens()[label] == tokens_of((5, 6), 3)
            agents = {event.connection: event.facts.get("agent") for event in watch.events if isinstance(event, Open)}
            assert agents[int(label.partition("/")[0])] == "lmtool inspect"
            assert len(agents) == 2

    async def test_ids_are_explained_by_a_given_tokenizer(self) -> None:
        """With a tokenizer of the user's, vocabulary comes before the tokens it explains."""
        place = listening()
        spelled = proxy("ws://127.0.0.1:1/", place, spell=lambda i: f"<{i}>".encode())
        async with serving(ScriptedModel()) as served:
            spelled = proxy(served.url, place, spell=lambda i: f"<{i}>".encode())
            async with watching(spelled) as watch:
                await talk(place, (5,))
                await watch.until(lambda: watch.ends() == 1)
                told = [event.tokens for event in watch.events if isinstance(event, Vocab)]
                assert told[0] == {5: "<5>"}

    async def test_a_server_that_is_away_is_told(self) -> None:
        """Nobody behind the proxy is a note on the screen; the proxy goes on."""
        async with serving(ScriptedModel()) as served:
            url = served.url
        async with watching(proxy(url, listening())) as watch:
            await watch.until(lambda: any(isinstance(event, Remark) for event in watch.events))
            assert not watch.over.is_set()

    async def test_an_openai_stream_without_its_key(self, embedded: str, tmp_path: Path) -> None:
        """Completions over HTTP are fed piece by piece; no Authorization header reaches screen or recording."""
        place, path = listening(), tmp_path / "http.lmtp.jsonl"
        base = embedded.replace("ws://", "http://") + "v1"
        async with watching(proxy(base, place)) as watch:
            watch.source.start_recording(path)
            assert not watch.source.takes_requests
            assert "--connect" in watch.source.no_requests
            body = {
                "model": "lmtool-tiny",
                "messages": [{"role": "user", "content": "Hi"}],
                "stream": True,
                "max_tokens": 3,
            }
            async with httpx2.AsyncClient(trust_env=False) as client:
                url = f"http://127.0.0.1:{place.getsockname()[1]}/v1/chat/completions"
                answer = await client.post(
                    url, json=body | {"logprobs": True, "top_logprobs": 2}, headers={"Authorization": "Bearer sesame"}
                )
            assert answer.status_code == 200
            await watch.until(lambda: sum(isinstance(event, Piece) for event in watch.events) >= 4)
            assert any(isinstance(event, Request) for event in watch.events)
            assert "sesame" not in repr(watch.events)
            await watch.source.stop_recording()
        assert "sesame" not in path.read_text()
        assert any(isinstance(event, Piece) for event in TraceReader(path))

    async def test_somebody_else_records_everything_as_it_came(self) -> None:
        """`also` is told the events of each connection."""
        place, told = listening(), []
        async with serving(ScriptedModel()) as served:
            source = proxy(served.url, place, also=lambda number, events: told.append((number, list(events))))
            async with watching(source) as watch:
                await talk(place, (5,))
                await watch.until(lambda: watch.ends() == 1)
                async with asyncio.timeout(30):
                    while source.connections < 2:
                        await asyncio.sleep(0)
        assert {number for number, _ in told} == {1, 2}
