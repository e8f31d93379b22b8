"""Events on their way into a trace: redacted, explained, large values kept once."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from lmtool.core.errors import FileError
from lmtool.trace.codec import Header
from lmtool.trace.events import Blob, Close, Event, Frame, JsonText, Open, Remark, Request, Vocab
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder, Recording, TokenBytes, TokenSpelling
from lmtool.trace.redaction import RedactedPart, Redaction
from lmtool.trace.writer import TraceWriter
from tests.trace.conftest import generate, token, tokens

WORDS = {5: b"Hel", 6: b"lo", 7: b"!", 11: b" there", 12: b"\xf0\x9f"}


def record(
    tmp_path: Path,
    *events: Event,
    what: tuple[RedactedPart, ...] = (),
    spell: TokenBytes | None = WORDS.__getitem__,
    times: bool = True,
) -> list[Event]:
    """What a trace holds after these events."""
    writer = TraceWriter(tmp_path / "a", Header(times="measured" if times else "numbered"), overwrite=True)
    recorder = Recorder(writer, Redaction(what, b"salt"), spell)
    recorder.record(events)
    recorder.close(99)
    assert recorder.counts[0] == writer.events
    return list(TraceReader(tmp_path / "a"))[:-1]


def test_ids_are_explained_on_first_sight(tmp_path: Path) -> None:
    """The vocabulary stands before the event that shows new ids; bytes inside a character are bytes."""
    found = record(tmp_path, generate(1), tokens(2, token(11, top_logprobs={"11": -1, "12": -2})), tokens(3, token(11)))
    assert [type(event) for event in found] == [Vocab, Frame, Vocab, Frame, Frame]
    assert found[0] == Vocab(1, 0, {5: "Hel", 6: "lo", 7: "!"})
    assert found[2] == Vocab(2, 0, {11: " there", 12: b"\xf0\x9f"})


class Named:
    """A tokenizer with a special token."""

    def piece(self, token: int) -> bytes:
        return b"" if token == 12 else b"x"

    def token(self, token: int) -> str:
        return "<|im_end|>" if token == 12 else "Gx"


def test_special_tokens_have_names(tmp_path: Path) -> None:
    """What adds no text is explained by its name; a part of a trace keeps it, and prompts that are redacted do not."""
    found = record(tmp_path, generate(1), tokens(2, token(11, top_logprobs={"12": -2})), spell=TokenSpelling(Named()))
    assert found[2] == Vocab(2, 0, {11: "x", 12: ""}, {12: "<|im_end|>"})
    hidden = record(tmp_path, generate(1, prompt=[12]), what=("prompt",), spell=TokenSpelling(Named()))
    assert not any(isinstance(event, Vocab) for event in hidden)


def test_without_a_tokenizer_nothing_is_explained(tmp_path: Path) -> None:
    """No vocabulary where nobody knows it."""
    assert record(tmp_path, generate(1), spell=None) == [generate(1)]


def test_redacted_prompts_are_not_explained(tmp_path: Path) -> None:
    """An id of a prompt is explained once an output shows it, not before."""
    found = record(tmp_path, generate(1), tokens(2, token(6)), what=("prompt",))
    assert found[1:] == [Vocab(2, 0, {6: "lo"}), tokens(2, token(6))]
    (hidden,) = record(tmp_path, tokens(2, token(6)), what=("text",))
    assert isinstance(hidden, Frame)
    assert hidden.parse().value == [
        {"token": None, "stream_id": 1, "logprob": None, "finish_reason": None, "text": "***"}
    ]


def test_large_values_are_kept_once(tmp_path: Path) -> None:
    """A mask is written as a blob, and only referred to when it comes again; the frames come back byte for byte."""
    mask = {str(i): -100 for i in range(3000)}
    frames = [generate(i, i, logit_bias=mask) for i in (1, 2)]
    found = record(tmp_path, *frames, spell=None)
    assert [type(event) for event in found] == [Blob, Frame, Frame]
    whole = [e for _, e in TraceReader(tmp_path / "a").with_offsets(whole=True) if isinstance(e, Frame)]
    assert [frame.wire() for frame in whole] == [frame.wire() for frame in frames]


def test_numbered_times(tmp_path: Path) -> None:
    """Every event, vocabularies too, has its number / 1000."""
    found = record(tmp_path, Open(7, 1), generate(8), times=False)
    assert [event.time for event in found] == [0, 0.001, 0.002]


def test_keys_are_counted(tmp_path: Path) -> None:
    """What looks like a key in a client's request is remembered, with its middle left out."""
    key = "sk-" + "a1" * 20
    recorder = Recorder(TraceWriter(tmp_path / "a", Header()), Redaction((), b""))
    recorder.record([Request(0, 1, "POST", "/", {}, JsonText("", {"x": key}, "py")), generate(1)])
    recorder.abandon()
    assert list(recorder.suspects.values()) == [1]
    assert key not in recorder.suspects


def test_more_than_memory_should_hold_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the disk is counted; a flush takes it away."""
    monkeypatch.setattr("lmtool.trace.recorder.MAX_WAITING", 100)
    recorder = Recorder(TraceWriter(tmp_path / "a", Header()), Redaction((), b""))
    recorder.record([generate(i) for i in range(5)])
    assert recorder.overrun
    recorder.flush()
    assert not recorder.overrun
    recorder.abandon()


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
    running.record(1, [Remark(1, "mark", 0, "here")])
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
    running.record(3, [])
    running.record(1, [generate(1)])
    running.record(2, [generate(1, connection=2)])
    await running.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert running.counts[:2] == (2, 2)
    assert not running.suspects


async def test_a_trace_in_which_nothing_happened(tmp_path: Path) -> None:
    """It leaves no file, so that the same name may be given again."""
    for _ in range(2):
        running = recording(tmp_path, [])
        assert (tmp_path / "0").exists()
        await running.close()
        assert not (tmp_path / "0").exists()


async def test_a_process_that_ends_at_once(tmp_path: Path) -> None:
    """What was told is whole on the disk, and an empty trace is not there."""
    running = recording(tmp_path, [], split=True)
    running.record(1, [generate(1)])
    running.record(2, [])
    running.close_at_once()
    reader = TraceReader(tmp_path / "1")
    assert next(iter(reader)) == generate(1)
    assert len(list(TraceReader(tmp_path / "1"))) == 2
    await running.close()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


async def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path) -> None:
    """One loud line; events go on being taken from whoever follows; what was written before can be read."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    running.record(1, [generate(1)])
    await until_written(tmp_path / "0", "GENERATE")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "0").stat().st_size, limit[1]))
    try:
        running.record(1, [generate(2)])
        async with asyncio.timeout(30):
            while not running.failed:
                await asyncio.sleep(0.005)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    seen: list[Event] = []
    running.record(1, (seen.append(event) or event for event in [generate(3)]))  # type: ignore[func-returns-value]
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
    running.record(1, [generate(1)])
    running.record(2, [generate(1, connection=2)])
    await running.close()
    assert "exists already" in warnings[0]
    assert (tmp_path / "2").read_text() == "mine"
    assert len(warnings) == 1


async def test_a_mistake_of_ours_cuts_nothing(tmp_path: Path) -> None:
    """An event that cannot be written ends the recording, loudly; whoever tells of events never sees an error."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    running.record(1, [generate(1), Remark(2, "note", 0, "\ud800"), generate(3)])
    await running.close()
    assert "RECORDING STOPPED: lmtool failed (UnicodeEncodeError" in warnings[0]
    assert len(warnings) == 1


async def test_a_slow_disk_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More waiting than memory should hold: given up, loudly."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    monkeypatch.setattr("lmtool.trace.recorder.MAX_WAITING", -1)
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
        running.record(number, [generate(1, connection=number), Close(2, number, "client")])
    await until_written(tmp_path / "1", '"end"')
    await until_written(tmp_path / "2", '"end"')
    running.record(1, [generate(3)])
    running.record(3, [generate(1, connection=3)])
    assert running.counts == (3, 5, 0)
    await running.close()
    assert running.counts == (3, 5, 0)
    assert not running.failed
    assert len(list(TraceReader(tmp_path / "1"))) == 3


def test_events_that_name_no_ids(tmp_path: Path) -> None:
    """Nothing is explained for texts in place of ids, nor for a frame that cannot be read."""
    some = [
        Open(0, 1),
        Frame(1, ">", 1, JsonText("GENERATE", {"prompt": "Hi"}, "py")),
        Frame(2, "<", 1, "TOKEN nonsense"),
    ]
    assert record(tmp_path, *some) == some
