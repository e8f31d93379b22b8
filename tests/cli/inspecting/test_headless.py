"""Lines and sentences on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lmtool.cli.inspecting import headless
from lmtool.cli.output import Output
from lmtool.errors import ConnectError
from lmtool.trace.filter import parse
from lmtool.tui.sources.connect import ConnectSource
from lmtool.types import GenerateRequest, SamplingParams
from tests.lmtp.harness import serving
from tests.scripted_model import ScriptedModel

RECORDING = Path(__file__).parents[3] / "recordings/two_streams_interleaved.lmtp.jsonl"
OUT = Output(color=False, note_color=False, terminal=False)


def source(url: str) -> ConnectSource:
    prompts = [GenerateRequest(0, (1,), SamplingParams(max_tokens=3))]
    return ConnectSource(url, pytest.fail, find_tokenizer=lambda _info: None, prompts=prompts, stay=False)


async def test_a_source_is_told_until_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """A line an event, and the end when the prompts are answered."""
    async with serving(ScriptedModel()) as served:
        connected = source(served.url)
        await headless.tell(OUT, connected, chosen=None, sentences=False)
        await connected.close()
    assert capsys.readouterr().out.count("p .") == 3


async def test_a_server_that_is_not_there() -> None:
    """Its error is raised."""
    async with serving(ScriptedModel()) as served:
        url = served.url
    with pytest.raises(ConnectError):
        await headless.tell(OUT, source(url), chosen=None, sentences=True)


def test_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """In lines with a filter, and in sentences."""
    headless.print_trace(OUT, str(RECORDING), chosen=parse("sid:1"), sentences=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all("1/1" in line for line in lines)
    headless.print_trace(OUT, str(RECORDING), chosen=None, sentences=True)
    assert capsys.readouterr().out.count("Stream 1/") == 2


@pytest.mark.parametrize("sentences", [False, True])
def test_a_filter_that_nothing_passes(capsys: pytest.CaptureFixture[str], sentences: bool) -> None:
    """Nothing on stdout, a word about it on stderr."""
    headless.print_trace(OUT, str(RECORDING), chosen=parse("sid:99"), sentences=sentences)
    told = capsys.readouterr()
    assert (told.out, told.err.strip()) == ("", "nothing passes the filter 'sid:99'")


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
