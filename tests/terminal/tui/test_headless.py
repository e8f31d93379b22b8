"""The inspector without a screen: lines and sentences, pictures and exports."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from lmtool.core.errors import ConnectError, FileError, UsageError
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.terminal.tui import headless
from lmtool.terminal.tui.headless import export, need_screen, save_snapshot
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.trace.codec import Header
from lmtool.trace.events import Event, Vocab
from lmtool.trace.filter import parse
from lmtool.trace.writer import write_trace
from tests.protocol.lmtp.harness import serving
from tests.scripted_model import ScriptedModel
from tests.trace.conftest import generate, token, tokens

RECORDING = Path(__file__).parents[3] / "recordings/two_streams_interleaved.lmtp.jsonl"


def source(url: str) -> ConnectSource:
    prompts = [GenerateRequest(0, (1,), SamplingParams(max_tokens=3))]
    return ConnectSource(url, pytest.fail, find_tokenizer=lambda _info: None, prompts=prompts, stay=False)


async def test_a_source_is_printed_until_it_is_over() -> None:
    """A line an event, and the end when the prompts are answered."""
    async with serving(ScriptedModel()) as served:
        connected = source(served.url)
        lines: list[str] = []
        await headless.print_source(lines.append, connected, asyncio.Event())
        await connected.close()
    assert sum("p ." in line for line in lines) == 3


async def test_a_server_that_is_not_there() -> None:
    """Its error is raised."""
    async with serving(ScriptedModel()) as served:
        url = served.url
    with pytest.raises(ConnectError):
        await headless.print_source(pytest.fail, source(url), asyncio.Event(), sentences=True)


async def test_a_source_can_be_stopped() -> None:
    """Whoever sets the event ends it in good order."""
    async with serving(ScriptedModel()) as served:
        connected = ConnectSource(served.url, pytest.fail, find_tokenizer=lambda _info: None)
        stop = asyncio.Event()
        stop.set()
        async with asyncio.timeout(10):
            await headless.print_source(lambda _line: None, connected, stop)
        await connected.close()


def test_a_trace() -> None:
    """In lines with a filter, and in sentences."""
    lines: list[str] = []
    headless.print_trace(lines.append, str(RECORDING), expression=parse("sid:1"), sentences=False)
    assert lines
    assert all("1/1" in line for line in lines)
    spoken: list[str] = []
    headless.print_trace(spoken.append, str(RECORDING), expression=None, sentences=True)
    assert sum("Stream 1/" in line for line in spoken) == 2


@pytest.mark.parametrize("sentences", [False, True])
def test_a_filter_that_nothing_passes(sentences: bool) -> None:
    """Nothing is printed."""
    headless.print_trace(pytest.fail, str(RECORDING), expression=parse("sid:99"), sentences=sentences)


def test_no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen needs a terminal on all three streams, and one that can be drawn on."""
    assert not headless.has_screen()  # the tests' own streams are no terminal

    class Terminal:
        def isatty(self) -> bool:
            return True

    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert headless.has_screen()
    monkeypatch.setenv("TERM", "dumb")
    assert not headless.has_screen()


def test_other_commands_need_a_screen() -> None:
    """Where there is none, they say which option to leave out."""
    with pytest.raises(UsageError, match="--inspect needs a terminal"):
        need_screen("--inspect")


@pytest.mark.parametrize("name", ["a.csv", "a.md", "a.ansi", "a.svg", "a.html", "a.lmtp.jsonl"])
def test_every_form(name: str, tmp_path: Path) -> None:
    """The ending says what to write; a file that exists is left alone."""
    export(RECORDING, tmp_path / name, "1/2", InspectorOptions(), force=False)
    assert (tmp_path / name).stat().st_size > 100
    with pytest.raises(FileError):
        export(RECORDING, tmp_path / name, None, InspectorOptions(), force=False)
    export(RECORDING, tmp_path / name, None, InspectorOptions(), force=True)


def test_a_stream_that_is_not_there(tmp_path: Path) -> None:
    """It says which ones are."""
    with pytest.raises(UsageError) as caught:
        export(RECORDING, tmp_path / "a.csv", "9/9", InspectorOptions(), force=False)
    assert "1/1, 1/2" in caught.value.hints[0]


async def test_a_picture(tmp_path: Path) -> None:
    """The whole screen at a moment, or two traces compared; nothing is overwritten unasked."""
    path = tmp_path / "a.svg"
    await save_snapshot([RECORDING], path, "100x30", InspectorOptions(at=0.004), force=False)
    assert "1/2" in path.read_text()
    with pytest.raises(FileError, match="exists already"):
        await save_snapshot([RECORDING], path, "100x30", InspectorOptions(), force=False)
    await save_snapshot([RECORDING, RECORDING], path, "100x30", InspectorOptions(), force=True)
    with pytest.raises(FileError, match="cannot write"):
        await save_snapshot([RECORDING], tmp_path / "no/a.svg", "100x30", InspectorOptions(), force=False)


@pytest.mark.parametrize("size", ["120x36", "80x24", "150x40"])
async def test_a_picture_begins_at_the_beginning(size: str, tmp_path: Path) -> None:
    """Three streams of 60 tokens stand there whole, from their first word on, where there is room for them."""
    words = await words_of_picture(three_streams(tmp_path), size)
    assert words.count("w0") == 3
    assert words.count("w59") >= 3
    assert all(words.count(word) == 2 for word in ("Once", "Then", "Last"))  # in the table, and before its answer


@pytest.mark.parametrize(("size", "shown"), [("60x20", 2), ("100x30", 2)])
async def test_a_small_picture_shows_the_beginning(size: str, shown: int, tmp_path: Path) -> None:
    """Where streams that have ended do not fit, each is shown from its first word on, not up to its last."""
    words = await words_of_picture(three_streams(tmp_path), size)
    assert words.count("w0") == shown


def three_streams(folder: Path) -> Path:
    """A recording of three streams that have ended."""
    path = folder / "three.lmtp.jsonl"
    events: list[Event] = [Vocab(0, 0, {i: f" w{i}" for i in range(60)} | {60: "Once", 61: "Then", 62: "Last"})]
    events += [generate(0, n, prompt=[60 + n], max_tokens=60) for n in range(3)]
    for i in range(60):
        last = "length" if i == 59 else None
        events.append(tokens(i / 100, *(token(i, n) | {"finish_reason": last} for n in range(3))))
    write_trace(path, Header(), events)
    return path


async def words_of_picture(path: Path, size: str) -> list[str]:
    """The words that stand in the picture of a recording."""
    picture = path.with_suffix(".svg")
    await save_snapshot([path], picture, size, InspectorOptions(), force=False)
    return re.findall(r"\w+", re.sub(r"<style>.*</style>|<[^>]*>|&#160;", " ", picture.read_text()))
