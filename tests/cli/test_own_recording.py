"""Recordings of a program's own connections: `serve --record`, `chat --record`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from websockets.sync.client import connect

from lmtool.cli.invocation import Common
from lmtool.cli.output import Output
from lmtool.cli.own_recording import recorded
from lmtool.errors import FileError
from lmtool.trace.events import Close, Drop, Event, Frame, Open, Vocab
from lmtool.trace.header import Header
from lmtool.trace.reader import TraceReader
from tests.conftest import STORIES


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
    out = Output.of(Common(quiet=True))
    async with recorded(out, str(path), "client", Header()) as tap:
        tap.opened(1, "x")
        tap.frame(1, ">", 'SCORE {"stream_id":1}')
        tap.ended(1, "client", 1000)
    assert [type(event) for event in events_of(path)][:3] == [Open, Frame, Close]
    assert TraceReader(path).header.at == "client"
    with pytest.raises(FileError, match="exists already") as refused:
        async with recorded(out, str(path), "client", Header()):
            pass
    assert "--force" not in str(refused.value.hints)


async def test_a_folder(tmp_path: Path) -> None:
    """In a folder each connection has a file of its own."""
    folder = tmp_path / "traces"
    async with recorded(Output.of(Common(quiet=True)), f"{folder}/", "server", Header()) as tap:
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
