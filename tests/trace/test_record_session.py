"""Recordings of a program's own connections: `serve --record`, `chat --record`."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from lmtool.core.errors import FileError, ResourceError
from lmtool.net.access.credentials import key_protocol
from lmtool.settings.terminal import Output
from lmtool.trace.codec import Header
from lmtool.trace.events import Close, Drop, Event, Frame, Open, Vocab
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import record_session
from lmtool.trace.statistics import TraceFigures
from tests.conftest import STORIES
from tests.net.access.knocking import KEY


def events_of(path: Path) -> list[Event]:
    """The events of a complete trace."""
    reader = TraceReader(path)
    events = list(reader)
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    return events


async def test_a_file(tmp_path: Path) -> None:
    """One file for everything, which must not be there yet."""
    path = tmp_path / "a.lmtp.jsonl"
    out = Output.of(quiet=True)
    async with record_session(out, str(path), "client", Header()) as tap:
        tap.opened(1, "x")
        tap.frame(1, ">", 'SCORE {"stream_id":1}')
        tap.ended(1, "client", 1000)
    assert [type(event) for event in events_of(path)][:3] == [Open, Frame, Close]
    assert TraceReader(path).header.at == "client"
    with pytest.raises(FileError, match="exists already") as refused:
        async with record_session(out, str(path), "client", Header()):
            pass
    assert "--force" not in str(refused.value.hints)


async def record_much(path: str) -> None:
    """Some ten thousand bytes that do not pack."""
    async with record_session(Output.of(), path, "client", Header()) as tap:
        tap.opened(1, "x")
        for number in range(200):
            tap.frame(1, ">", f'SCORE {{"stream_id":"{random.Random(number).randbytes(50).hex()}"}}')


@pytest.mark.parametrize("name", ["a.lmtp.jsonl", "a.lmtp.jsonl.gz", "folder/"])
async def test_a_full_disk_is_told_at_the_end(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The recording says that it is cut, with the status for it, and counts nothing that is not there."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limit[1]))
    try:
        with pytest.raises(ResourceError, match=f"the recording {tmp_path}/{name} is cut: File too large"):
            await record_much(f"{tmp_path}/{name}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    said = capsys.readouterr().err
    assert "RECORDING STOPPED: File too large" in said
    assert "recorded into" not in said
    assert ResourceError.exit_code == 8


async def test_a_folder(tmp_path: Path) -> None:
    """In a folder each connection has a file of its own."""
    folder = tmp_path / "traces"
    async with record_session(Output.of(quiet=True), f"{folder}/", "server", Header()) as tap:
        for number in (1, 2):
            tap.opened(number, "")
            tap.ended(number, "client", 1006)
    files = sorted(folder.iterdir())
    assert [file.name[-15:] for file in files] == ["0001.lmtp.jsonl", "0002.lmtp.jsonl"]
    assert isinstance(events_of(files[1])[1], Drop)


def test_serve_and_chat_record(start_server, lmtool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A server keeps what every client said and how each left; a client keeps its own side; both agree."""
    server_side, client_side = tmp_path / "server.lmtp.jsonl", tmp_path / "client.lmtp.jsonl"
    with start_server(str(STORIES), "--record", str(server_side)) as server:
        server.expect("ready in")
        done = lmtool("-e", server.url, "chat", "Once", "-n", "4", "--record", str(client_side))
        assert done.returncode == 0, done.stderr
        with connect(server.url, compression=None) as client:
            client.send(f"GENERATE {json.dumps({'prompt': [1, 403], 'stream_id': 7, 'max_tokens': 1})}")
            assert "TOKEN" in str(client.recv())
        server.interrupt()
        assert server.wait() == 0
    ours, theirs = events_of(client_side), events_of(server_side)
    said = [event.wire() for event in ours if isinstance(event, Frame)]
    assert said == [event.wire() for event in theirs if isinstance(event, Frame) and event.connection == 1]
    assert {event.connection for event in theirs if isinstance(event, Close)} == {1, 2}
    assert any(isinstance(event, Vocab) for event in theirs)
    header = TraceReader(server_side).header
    assert (header.at, header.model["name"]) == ("server", "stories260K")


MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
ASKED: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"prompt": "Once", "logprobs": 2},
    "/v1/responses": {"input": "Once", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "/v1/messages": {"messages": MESSAGES},
    "/messages": {"messages": MESSAGES},
}


@pytest.mark.parametrize("folder", [False, True])
def test_serve_records_http_too(start_server, tmp_path: Path, folder: bool) -> None:  # type: ignore[no-untyped-def]
    """Every API, whole and streamed, beside LMTP: the same tokens as the clients got.

    No key on any way that it may come, nothing that the door refuses, no probes.
    """
    place = tmp_path / ("traces" if folder else "a.lmtp.jsonl")
    key = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": f"key={KEY}", "x-token": KEY}
    with start_server("--api-key", KEY, "--record", f"{place}/" if folder else str(place)) as server:
        server.expect("ready in")
        url = server.url.replace("ws://", "http://").rstrip("/")
        assert httpx2.post(f"{url}/v1/completions", json={"prompt": "refused"}).status_code == 401
        for path, body in ASKED.items():
            most = "max_output_tokens" if "responses" in path else "max_tokens"
            for stream in (False, True):
                asked = {**body, most: 16, "temperature": 0, "stream": stream}
                answer = httpx2.post(f"{url}{path}?key={KEY}", json=asked, headers=key, timeout=60)
                assert answer.status_code == 200, answer.text
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.get(f"{url}/metrics", headers=key).status_code == 200
        refused = httpx2.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": -1}, headers=key)
        assert refused.status_code == 400
        protocol: Any = key_protocol(KEY)
        with connect(server.url, compression=None, subprotocols=["lmtp", protocol]) as client:
            client.send(f"MODEL_INFO {json.dumps({'stream_id': 7})}")
            client.recv()
        server.interrupt()
        assert server.wait() == 0
    files = sorted(place.iterdir()) if folder else [place]
    assert len(files) == (2 * len(ASKED) + 2 if folder else 1)
    written = "".join(file.read_text() for file in files)
    assert not any(secret in written for secret in (KEY, protocol, "refused"))
    assert {TraceReader(file).header.redacted for file in files} == {("headers",)}
    figures = []
    for file in files:
        counted = TraceFigures()
        for event in events_of(file):
            counted.add(event)
        figures += counted.streams
    of_http = [one for one in figures if one.request.startswith("POST")]
    assert [one.request.split()[1] for one in of_http if not one.choice] == [
        *[path for path in ASKED for _ in (False, True)], "/v1/completions",
    ]  # fmt: skip
    named = [one for one in of_http if "messages" not in one.request and one.error is None]
    assert len(named) == 8  # two choices of each chat completion
    assert all((one.pieces, one.with_logprob) == (0, one.tokens) for one in named)
    assert {one.tokens for one in named if "/v1/completions" in one.request} == {16}
    pieces = [one for one in of_http if "messages" in one.request]
    assert all(one.tokens == one.pieces > 0 for one in pieces)
    assert [one.error is not None for one in of_http] == [False] * (len(of_http) - 1) + [True]
