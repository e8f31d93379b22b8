"""`lmtool trace record`, as a process between a real client and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from lmtool.trace.events import Close, End, Event, Frame, Open, Remark, Vocab
from lmtool.trace.reader import TraceReader
from tests.cli.terminal import terminal
from tests.cli.trace_runner import trace
from tests.conftest import STORIES

ANSWER = 'TOKEN [{"token": 400, "stream_id": 1, "logprob": -0.5, "finish_reason": "length"}]'


async def _model(connection: ServerConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for _ in connection:
            await connection.send(ANSWER)


@dataclass
class Recorder:
    """A running `lmtool trace record`."""

    process: asyncio.subprocess.Process
    url: str

    async def ask(self) -> None:
        """Send a request through it and take the answer."""
        async with connect(self.url, compression=None) as client:
            await client.send('GENERATE {"model": "m", "prompt": [402, 397], "stream_id": 1}')
            assert await client.recv() == ANSWER

    async def stop(self, number: int) -> tuple[int, str]:
        """Send a signal; return the exit status and what was said since."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        said = await asyncio.wait_for(self.process.stderr.read(), 60)
        return await asyncio.wait_for(self.process.wait(), 60), said.decode()


@contextlib.asynccontextmanager
async def recording(*words: object) -> AsyncIterator[Recorder]:
    """A recorder in front of a server that answers each request with one token."""
    async with serve(_model, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "lmtool",
                "trace",
                "record",
                "--to",
                f"127.0.0.1:{port}",
                "--listen",
                "127.0.0.1:0",
            ),
            *(str(word) for word in words),
            stderr=asyncio.subprocess.PIPE,
            cwd=Path.cwd(),
        )
        try:
            assert process.stderr is not None
            line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
            found = re.search(r"recording (ws://\S+) → ws://", line)
            assert found is not None, line
            yield Recorder(process, found[1])
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def read(path: Path) -> tuple[list[Event], str]:
    """Events and state of a trace."""
    reader = TraceReader(path)
    events = list(reader)
    assert reader.ending is not None
    return events, reader.ending.state


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_conversation_is_recorded(tmp_path: Path, number: int) -> None:
    """Ctrl-C ends a recording in good order: status 0, a summary, a complete trace."""
    path = tmp_path / "a.lmtp.jsonl"
    async with recording("-O", path, "--tokenizer", STORIES, "--note", "a remark", "--title", "one token") as recorder:
        await recorder.ask()
        status, said = await recorder.stop(number)
    assert status == 0
    assert "1 connections · 7 events · 1 tokens over LMTP" in said
    events, state = read(path)
    assert [type(event) for event in events] == [Remark, Open, Vocab, Frame, Vocab, Frame, Close, End]
    assert state == "complete"
    header = TraceReader(path).header
    assert header.title == "one token"
    assert header.at == "proxy"
    assert header.redacted == ("headers",)


async def test_a_killed_recorder_loses_nothing(tmp_path: Path) -> None:
    """Kill -9: everything older than a tenth of a second is in the file, which is cut and readable."""
    path = tmp_path / "a.lmtp.jsonl"
    async with recording("-O", path) as recorder:
        await recorder.ask()
        await asyncio.sleep(0.15)  # the rule itself: a tenth of a second, and a little for a busy machine
        await recorder.stop(signal.SIGKILL)
    events, state = read(path)
    assert [type(event) for event in events] == [Open, Frame, Frame, Close]
    assert state == "cut"


async def test_the_same_conversation_gives_the_same_file(tmp_path: Path) -> None:
    """--no-time: recording again changes nothing."""
    for name in ("a", "b"):
        async with recording("-O", tmp_path / name, "--no-time") as recorder:
            await recorder.ask()
            await recorder.stop(signal.SIGINT)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert b'"redacted"' in (tmp_path / "a").read_bytes()


async def test_one_file_a_connection(tmp_path: Path) -> None:
    """--split connection: a folder with a complete trace for each."""
    async with recording("-O", tmp_path / "new", "--split", "connection") as recorder:
        await recorder.ask()
        await recorder.ask()
        _, said = await recorder.stop(signal.SIGINT)
    assert "in 2 files" in said
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files] == ["0001.lmtp.jsonl", "0002.lmtp.jsonl"]
    assert [read(file)[1] for file in files] == ["complete", "complete"]


async def test_a_busy_port_is_told(tmp_path: Path) -> None:
    """Status 8, with the option that picks another port."""
    async with recording("-O", tmp_path / "a") as recorder:
        place = recorder.url.removeprefix("ws://").rstrip("/")
        result = await asyncio.to_thread(
            trace, "record", "--to", "127.0.0.1:1", "--listen", place, "-O", tmp_path / "b"
        )
    assert result.exit_code == 8
    assert "already in use" in result.stderr
    assert "--listen" in result.stderr


def test_on_the_screen_meanwhile(served: str, tmp_path: Path) -> None:
    """`--inspect` shows what is recorded; leaving ends both. Without a terminal it does not begin."""
    path = tmp_path / "a.lmtp.jsonl"
    words = ("trace", "record", "--to", served, "--listen", "127.0.0.1:0", "-O", str(path), "--inspect")
    with terminal(*words, columns=140) as screen:
        screen.until("waiting for clients")
        screen.until("model_info")
        screen.press("q")
        assert screen.end() == 0
        assert "1 connections" in screen.text
    events, ending = read(path)
    assert ending == "complete"
    assert any(isinstance(event, Frame) for event in events)
    assert trace("record", "--inspect", "-O", tmp_path / "b").exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "ftp://x"), "'ftp://x' is not a server address"),
        (("--listen", "here:there"), "cannot listen on 'here:there'"),
        (("--listen", "1:99999"), "cannot listen on '1:99999'"),
        (("--redact", "everything"), "cannot redact 'everything'"),
    ],
)
def test_wrong_options_are_usage_errors(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Status 2 with the value that is wrong, before anything is listened to or written."""
    result = trace("record", *words, "-O", tmp_path / "a")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "a").exists()
