"""Recordings that go on in the background."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from lmtool.errors import FileError
from lmtool.trace.events import Close, Event, Remark
from lmtool.trace.header import Header
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder
from lmtool.trace.recording import Recording
from lmtool.trace.redaction import Redaction
from lmtool.trace.writer import TraceWriter
from tests.trace.conftest import generate


def recording(folder: Path, warnings: list[str], *, split: bool = False) -> Recording:
    """A recording into `folder`."""

    def start(number: int) -> Recorder:
        return Recorder(TraceWriter(folder / f"{number}", Header()), Redaction((), b""))

    return Recording(start, warnings.append, lambda: 9.0, split=split)


async def until_written(path: Path, text: str) -> None:
    """Wait for the background flush."""
    async with asyncio.timeout(30):
        while text not in path.read_text():
            await asyncio.sleep(0.005)


async def test_events_reach_the_disk_by_themselves(tmp_path: Path) -> None:
    """Without anything more happening, what was told is on the disk soon: a kill loses nothing older."""
    running = recording(tmp_path, [])
    running.tell(1, [Remark(1, "mark", 0, "here")])
    await until_written(tmp_path / "0", "here")
    assert list(TraceReader(tmp_path / "0")) == [Remark(1, "mark", 0, "here")]
    await running.close()
    reader = TraceReader(tmp_path / "0")
    assert len(list(reader)) == 2
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    assert running.counts == (1, 1, 0)


async def test_one_trace_a_connection(tmp_path: Path) -> None:
    """Split: each connection's events are in a trace of their own, begun with its first event."""
    running = recording(tmp_path, [], split=True)
    running.tell(3, [])
    running.tell(1, [generate(1)])
    running.tell(2, [generate(1, connection=2)])
    await running.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert running.counts[:2] == (2, 2)
    assert not running.suspects


async def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path) -> None:
    """One loud line; events go on being taken from whoever follows; what was written before can be read."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    running.tell(1, [generate(1)])
    await until_written(tmp_path / "0", "GENERATE")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "0").stat().st_size, limit[1]))
    try:
        running.tell(1, [generate(2)])
        async with asyncio.timeout(30):
            while not running.failed:
                await asyncio.sleep(0.005)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    seen: list[Event] = []
    running.tell(1, (seen.append(event) or event for event in [generate(3)]))  # type: ignore[func-returns-value]
    await running.close()
    assert seen == [generate(3)]
    assert len(warnings) == 1
    assert "RECORDING STOPPED: File too large" in warnings[0]
    assert next(iter(TraceReader(tmp_path / "0"))) == generate(1)


async def test_a_trace_that_cannot_be_begun_ends_the_recording(tmp_path: Path) -> None:
    """A second connection's file that exists already is not overwritten: told once, and everything goes on."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings, split=True)
    (tmp_path / "2").write_text("mine")
    running.tell(1, [generate(1)])
    running.tell(2, [generate(1, connection=2)])
    await running.close()
    assert "exists already" in warnings[0]
    assert (tmp_path / "2").read_text() == "mine"
    assert len(warnings) == 1


async def test_a_mistake_of_ours_cuts_nothing(tmp_path: Path) -> None:
    """An event that cannot be written ends the recording, loudly; whoever tells of events never sees an error."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    running.tell(1, [generate(1), Remark(2, "note", 0, "\ud800"), generate(3)])
    await running.close()
    assert "RECORDING STOPPED: lmtool failed (UnicodeEncodeError" in warnings[0]
    assert len(warnings) == 1


async def test_a_slow_disk_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More waiting than memory should hold: given up, loudly."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    monkeypatch.setattr("lmtool.trace.recorder.MOST_WAITING", -1)
    async with asyncio.timeout(30):
        while not running.failed:
            await asyncio.sleep(0.005)
    await running.close()
    assert "too slow" in warnings[0]


def test_the_first_trace_must_be_possible(tmp_path: Path) -> None:
    """A recording that cannot even begin says so to whoever starts it."""

    async def begin() -> None:
        recording(tmp_path / "none", [])

    with pytest.raises(FileError, match="cannot write"):
        asyncio.run(begin())


async def test_a_trace_is_complete_when_its_connection_is_over(tmp_path: Path) -> None:
    """Split: its file is closed then, so that a server of many connections holds few files; late events are dropped."""
    running = recording(tmp_path, [], split=True)
    for number in (1, 2):
        running.tell(number, [generate(1, connection=number), Close(2, number, "client")])
    await until_written(tmp_path / "1", '"end"')
    await until_written(tmp_path / "2", '"end"')
    running.tell(1, [generate(3)])
    running.tell(3, [generate(1, connection=3)])
    assert running.counts == (3, 5, 0)
    await running.close()
    assert running.counts == (3, 5, 0)
    assert not running.failed
    assert len(list(TraceReader(tmp_path / "1"))) == 3
