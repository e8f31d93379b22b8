"""Events read again: from a trace file, packed or changed meanwhile, and from the file that live events go to."""

from __future__ import annotations

import gzip
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import FileError
from lmtool.terminal.tui.event_store import EventStore, NoLines, TraceFile
from lmtool.terminal.tui.state import State
from lmtool.trace.codec import Header
from lmtool.trace.events import Blob, Frame, JsonText, Open
from lmtool.trace.reader import TraceReader
from lmtool.trace.writer import TraceWriter
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from lmtool.trace.events import Event

RECORDINGS = sorted((Path(__file__).parents[3] / "recordings").glob("*.lmtp.jsonl*"))
EVENTS: tuple[Event, ...] = (
    Open(0.0, 1, {"peer": "client"}),
    Blob(0.05, 0, "ab", {"1": -100}),
    generate(0.1, logit_bias={"$blob": "ab"}),
    *(tokens((i + 1) / 10, token(i, top_logprobs={str(i): -0.5})) for i in range(1, 6)),
)


def written(path: Path) -> Path:
    """A trace of `EVENTS`."""
    writer = TraceWriter(path, Header(json="py"))
    for event in EVENTS:
        writer.write(event)
    writer.close(2.0)
    return path


def loaded(path: Path) -> TraceFile:
    """A file that is in its state, and verified."""
    file = TraceFile(path)
    while not file.load(1.0):
        pass
    while not file.verify(1.0):
        pass
    return file


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_recordings(path: Path) -> None:
    """Each recording opens whole; it makes the state that its events make, and each frame can be read again."""
    file = loaded(path)
    state = State(file.header)
    located = list(TraceReader(path).with_offsets())
    state.feed([event for _, event in located], [offset for offset, _ in located])
    assert file.ending is not None
    assert file.ending.state == "complete"
    assert [(s.label, s.rows, s.ended, s.error) for s in file.state.streams] == [
        (s.label, s.rows, s.ended, s.error) for s in state.streams
    ]
    assert file.state.frames.offsets == state.frames.offsets
    for frame in range(len(state.frames)):
        event = file.event(frame)
        assert (event.time, event.connection) == (state.frames.times[frame], state.frames.connections[frame])
    file.close()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_slice_at_a_time(tmp_path: Path, name: str) -> None:
    """Loading goes on where it stopped; what is loaded can be looked at meanwhile."""
    plain = written(tmp_path / "plain.jsonl").read_bytes()
    path = tmp_path / name
    path.write_bytes(gzip.compress(plain) if name.endswith("gz") else plain)
    file = TraceFile(path)
    assert (file.is_loaded, file.ending) == (False, None)
    while not file.load(0.0):
        assert file.event(0) == EVENTS[0]
    assert file.is_loaded
    assert file.load(0.0)
    assert file.event(3) == EVENTS[4]
    file.close()


def test_blobs_are_put_back_on_request(tmp_path: Path) -> None:
    """`event` leaves a reference, which is short to show; `whole` gives the frame as it was sent."""
    file = loaded(written(tmp_path / "a.jsonl"))
    light, whole = file.event(1), file.whole(1)
    assert isinstance(light, Frame)
    assert isinstance(whole, Frame)
    assert '{"$blob": "ab"}' in str(light.wire())
    assert '"logit_bias": {"1": -100}' in str(whole.wire())
    assert file.whole(0) == EVENTS[0]
    assert file.state.streams[0].ruled_out == 1


def test_a_blob_that_is_missing(tmp_path: Path) -> None:
    """A reference to nothing is an error only for who needs the value."""
    path = written(tmp_path / "a.jsonl")
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b'"blob"' not in line))
    file = loaded(path)
    with pytest.raises(FileError, match="refers to the blob ab"):
        file.whole(1)


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    """A file cut in the middle shows what it has, and says so."""
    path = written(tmp_path / "a.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1])[:-20])
    file = loaded(path)
    assert file.ending is not None
    assert file.ending.state == "cut"
    assert len(file.state.tokens) == 4
    assert not file.state.complete


def test_a_file_that_was_altered(tmp_path: Path) -> None:
    """A changed value is found by the hash, after everything is shown."""
    path = written(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes().replace(b"-0.5", b"-0.6"))
    file = loaded(path)
    assert file.ending is not None
    assert (file.ending.state, len(file.state.tokens)) == ("altered", 5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x00\x01\xff", "line 1"),
        (b"hello\n", "line 1"),
        (b'{"lmtp_trace": 99}\n', "version"),
        (b'{"lmtp_trace": 1}\n[1, "<"\n[2, "<", 1, null, "x"]\n', "line 2"),
        (b'{"lmtp_trace": 1}\n[2, "mark", 1, "x"]\n[1, "mark", 1, "x"]\n', "line 3"),
        (b"\x1f\x8bnot gzip", "wrong"),
    ],
)
def test_a_wrong_file(tmp_path: Path, content: bytes, says: str) -> None:
    """A file that is no trace is refused with a sentence that names the line."""
    path = tmp_path / "wrong"
    path.write_bytes(content)
    with pytest.raises(FileError, match=says):
        loaded(path)


def test_no_file(tmp_path: Path) -> None:
    """What is not there cannot be read."""
    with pytest.raises(FileError, match="cannot read"):
        TraceFile(tmp_path / "nothing")


def test_a_file_that_changes_while_it_is_looked_at(tmp_path: Path) -> None:
    """A line that is no longer there is an error that says so."""
    path = written(tmp_path / "a.jsonl")
    file = loaded(path)
    with path.open("r+b") as out:
        out.truncate(40)
    with pytest.raises(FileError, match="byte"):
        file.event(3)


def test_what_comes_after_a_file(tmp_path: Path) -> None:
    """Answers to branches follow the file's own events."""
    file = loaded(written(tmp_path / "a.jsonl"))
    frames = len(file.state.frames)
    more = [generate(3.0, connection=2), tokens(3.1, token(7), connection=2)]
    file.feed(more)
    assert [file.event(frame) for frame in (frames, frames + 1)] == more
    assert len(file.state.streams) == 2


def test_a_spool() -> None:
    """Live events are folded and can be read again, in any order."""
    spool = EventStore()
    spool.feed(EVENTS[2:5])
    spool.feed([])
    spool.feed(EVENTS[5:])
    assert [spool.event(frame) for frame in (4, 0, 2)] == [EVENTS[6], EVENTS[2], EVENTS[4]]
    assert spool.whole(1) == EVENTS[3]
    assert len(spool.state.tokens) == 5
    spool.feed([Frame(9.0, "<", 1, b"\x00\xff"), Frame(9.0, "<", 1, "TOKEN nonsense \x1b[31m")])
    assert [spool.event(frame) for frame in (6, 7)] == [
        Frame(9.0, "<", 1, b"\x00\xff"),
        Frame(9.0, "<", 1, "TOKEN nonsense \x1b[31m"),
    ]
    spool.close()


def test_large_frames_are_not_held() -> None:
    """A mask the size of a vocabulary is read again each time, so that memory stays small."""
    spool = EventStore()
    large = replace(generate(0.0), content=JsonText("GENERATE", {"x": "y" * 2**17}, "py"))
    spool.feed([large, generate(0.1)])
    assert spool.event(0) is not spool.event(0)
    assert spool.event(1) is spool.event(1)


def test_events_that_are_not_kept() -> None:
    """Without lines there is nothing to read."""
    with pytest.raises(FileError, match="not stored"):
        NoLines().whole(3)


def test_speed(tmp_path: Path) -> None:
    """A million tokens open in two seconds on a quiet machine; here with a wide margin for a busy one."""
    writer = TraceWriter(tmp_path / "a.jsonl", Header(json="msgspec"))
    top = {str(i): -1.25 * i for i in range(5)}
    for i in range(300):
        entries = [token(i % 90, s, -0.123, top_logprobs=top) for s in range(64)]
        writer.write(Frame(i / 100, "<", 1, JsonText("TOKEN", entries, "msgspec")))
    writer.close(9.0)
    began = time.process_time()
    file = loaded(tmp_path / "a.jsonl")
    spent = time.process_time() - began
    assert len(file.state.tokens) == 300 * 64
    assert spent / len(file.state.tokens) < 10e-6
