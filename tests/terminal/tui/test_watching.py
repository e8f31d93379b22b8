"""A running server watched from beside: the streams of all its clients."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from lmtool.core.errors import UsageError
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.net.unix_sockets import runtime_folder, socket_beside
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.endpoint import parse
from lmtool.protocol.lmtp.messages import Watched
from lmtool.terminal.tui.sources.choice import beside
from lmtool.terminal.tui.sources.connect import ConnectSource, WatchFeed
from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.trace.events import Drop, Frame, Open, Remark, Request
from lmtool.trace.server_tap import ServerTap
from tests.protocol.lmtp.harness import serving
from tests.scripted_model import ScriptedModel, tokens_of
from tests.terminal.tui.sources_running import no_tokenizer, watching

if TYPE_CHECKING:
    from lmtool.trace.events import Event
    from tests.conftest import StartServer


def source(url: str, **more: object) -> ConnectSource:
    return ConnectSource(url, pytest.fail, find_tokenizer=no_tokenizer, **more)  # type: ignore[arg-type]


def ask(*prompt: int) -> GenerateRequest:
    return GenerateRequest(0, prompt, SamplingParams(max_tokens=3))


async def test_streams_of_others_are_seen() -> None:
    """Another client's stream is fed with its request; requests of the inspector's own are fed once."""
    tap = ServerTap(None, time.monotonic)
    async with (
        serving(ScriptedModel(), tap=tap, traffic=tap, everybody_watches=True) as served,
        watching(source(served.url, others="if possible")) as watch,
        LmtpClient(served.url) as other,
    ):
        await watch.until(lambda: watch.source.advice)
        assert watch.source.title.startswith("watch :")
        ended: list[bool] = []
        other.submit(ask(7), lambda outputs: ended.append(outputs[-1].last))
        await watch.until(lambda: watch.ends() == 1)
        own = await watch.source.send(ask(8))  # type: ignore[misc] # it is connected
        await watch.until(lambda: watch.ends() == 2)
        (theirs,) = set(watch.tokens()) - {own}
        assert watch.tokens() == {theirs: tokens_of((7,), 3), own: tokens_of((8,), 3)}
        assert len({event.connection for event in watch.events if isinstance(event, Open)}) == 2
        assert not any('"watch":' in frame for frame in watch.frames("<"))
        times = [event.time for event in watch.events if event.connection == int(theirs.partition("/")[0])]
        assert times == sorted(times)


async def test_where_it_is_not_allowed() -> None:
    """Own prompts are shown as before, and a note says why no others are; without a keyboard nothing is left to see."""
    tap = ServerTap(None, time.monotonic)
    async with serving(ScriptedModel(), tap=tap, traffic=tap) as served:
        async with watching(source(served.url, others="if possible", prompts=[ask(1)])) as watch:
            await watch.until(lambda: watch.ends() == 1)
            (note,) = [event.text for event in watch.events if isinstance(event, Remark)]
            assert "--watch" in note
            assert watch.source.advice == ""
        async with watching(source(served.url, others="only")) as watch:
            await watch.until(watch.over.is_set)
            assert isinstance(watch.error, UsageError)
            assert any("--proxy" in hint for hint in watch.error.hints)


def test_what_is_lost_is_told() -> None:
    """Lost events and unreadable ones are notes; connections that are open at the end are dropped."""
    fed: list[Event] = []
    pipeline = EventPipeline(pytest.fail, at="client")
    pipeline.feed_to(fed.extend)
    feed = WatchFeed(pipeline, iter(range(5, 9)).__next__)
    frame = 'GENERATE {"prompt": [1], "stream_id": 1}'
    feed.take(Watched("1", 10.0, [[9.0, "open", 3, {}], [9.5, ">", 3, None, frame], "what"], 2))
    feed.lose()
    notes = [event.text for event in fed if isinstance(event, Remark)]
    assert [note.partition(" ")[0] for note in notes] == ["2", "the"]
    opened, sent, dropped = [event for event in fed if not isinstance(event, Remark)]
    assert isinstance(opened, Open)
    assert isinstance(sent, Frame)
    assert isinstance(dropped, Drop)
    assert sent.command == "GENERATE"
    assert {one.connection for one in (opened, sent, dropped)} == {5}


def test_what_is_sent_from_here_is_fed_once() -> None:
    """A server shows the inspector's own answers over HTTP, too: their source feeds them, and nobody else."""
    fed: list[Event] = []
    pipeline = EventPipeline(pytest.fail, at="client")
    pipeline.feed_to(fed.extend)
    feed = WatchFeed(pipeline, iter(range(5, 9)).__next__, "lmtool inspect 12ab")
    own = [
        [9.0, "open", 3, {"agent": "lmtool inspect 12ab"}],
        [9.1, "note", 3, "own"],
        [9.2, "close", 3, {"by": "client"}],
    ]
    feed.take(Watched("1", 10.0, [*own, [9.3, "open", 4, {"agent": "lmtool inspect"}], [9.4, "open", 3, {}]], 0))
    assert [(type(event), event.connection) for event in fed] == [(Open, 5), (Open, 6)]


def test_a_socket_beside_is_this_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket is used only in a folder that is this user's alone, and where somebody listens."""
    from lmtool.serving.listening import listen_beside

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    endpoint = parse("ws://127.0.0.1:8080/", "key")
    assert beside(endpoint) is endpoint
    listener = listen_beside(8080)
    assert listener is not None
    found = beside(endpoint)
    assert found.url == f"unix:{runtime_folder() / '8080.sock'}"
    assert getattr(found, "authorization", None) == "Bearer key"
    assert beside(elsewhere := parse("ws://10.0.0.1:8080/")) is elsewhere
    runtime_folder().chmod(0o755)
    assert socket_beside(8080) is None
    runtime_folder().chmod(0o700)
    place, kept = Path(listener.path), tmp_path / "kept"
    kept.hardlink_to(place)
    listener.close()
    kept.rename(place)
    assert socket_beside(8080) is None


async def test_a_server_as_it_is_started(start_server: StartServer, tmp_path: Path) -> None:
    """`lmtool inspect` beside a plain `lmtool serve`: other clients' LMTP, HTTP and answers are seen, keys are not."""
    with start_server(XDG_RUNTIME_DIR=str(tmp_path)) as server:
        server.expect("ready in")
        port = server.url.rstrip("/").rpartition(":")[2]
        path = tmp_path / "lmtool" / f"{port}.sock"
        async with watching(source(f"unix:{path}", others="if possible")) as watch, LmtpClient(server.url) as other:
            await watch.until(lambda: watch.source.advice)
            other.submit(GenerateRequest(0, "Hello", SamplingParams(max_tokens=3)), lambda _: None)
            await watch.until(lambda: watch.ends() == 1)
            async with httpx2.AsyncClient() as client:
                body = {"model": "lmtool-tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
                headers = {"authorization": "Bearer sk-of-mine"}
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                answer = await client.post(url, json=body, headers=headers)
            await watch.until(lambda: any(isinstance(event, Request) for event in watch.events))
            (request,) = [event for event in watch.events if isinstance(event, Request)]
            assert json.loads(request.wire_body()) == body
            assert "sk-of-mine" not in repr(watch.events)
            assert answer.status_code == 200
        server.expect("WATCH")
    assert not path.exists()
