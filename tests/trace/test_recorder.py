"""Events on their way into a trace: redacted, explained, large values kept once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.trace.events import Blob, Event, Frame, Open, Parsed, Request, Vocab
from lmtool.trace.header import Header
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder
from lmtool.trace.redaction import Redaction, What
from lmtool.trace.vocabulary import Spell
from lmtool.trace.writer import TraceWriter
from tests.trace.conftest import generate, token, tokens

WORDS = {5: b"Hel", 6: b"lo", 7: b"!", 11: b" there", 12: b"\xf0\x9f"}


def record(
    tmp_path: Path,
    *events: Event,
    what: tuple[What, ...] = (),
    spell: Spell | None = WORDS.__getitem__,
    times: bool = True,
) -> list[Event]:
    """What a trace holds after these events."""
    writer = TraceWriter(tmp_path / "a", Header(times="measured" if times else "numbered"), overwrite=True)
    recorder = Recorder(writer, Redaction(what, b"salt"), spell)
    recorder.take(events)
    recorder.close(99)
    assert recorder.counts[0] == writer.events
    return list(TraceReader(tmp_path / "a"))[:-1]


def test_ids_are_explained_on_first_sight(tmp_path: Path) -> None:
    """The vocabulary stands before the event that shows new ids; bytes inside a character are bytes."""
    found = record(tmp_path, generate(1), tokens(2, token(11, top_logprobs={"11": -1, "12": -2})), tokens(3, token(11)))
    assert [type(event) for event in found] == [Vocab, Frame, Vocab, Frame, Frame]
    assert found[0] == Vocab(1, 0, {5: "Hel", 6: "lo", 7: "!"})
    assert found[2] == Vocab(2, 0, {11: " there", 12: b"\xf0\x9f"})


def test_without_a_tokenizer_nothing_is_explained(tmp_path: Path) -> None:
    """No vocabulary where nobody knows it."""
    assert record(tmp_path, generate(1), spell=None) == [generate(1)]


def test_redacted_prompts_are_not_explained(tmp_path: Path) -> None:
    """An id of a prompt is explained once an output shows it, not before."""
    found = record(tmp_path, generate(1), tokens(2, token(6)), what=("prompt",))
    assert found[1:] == [Vocab(2, 0, {6: "lo"}), tokens(2, token(6))]
    assert record(tmp_path, tokens(2, token(6)), what=("text",)) == [tokens(2, token(6))]


def test_large_values_are_kept_once(tmp_path: Path) -> None:
    """A mask is written as a blob, and only referred to when it comes again; the frames come back byte for byte."""
    mask = {str(i): -100 for i in range(3000)}
    frames = [generate(i, i, logit_bias=mask) for i in (1, 2)]
    found = record(tmp_path, *frames, spell=None)
    assert [type(event) for event in found] == [Blob, Frame, Frame]
    whole = [e for _, e in TraceReader(tmp_path / "a").located(whole=True) if isinstance(e, Frame)]
    assert [frame.wire() for frame in whole] == [frame.wire() for frame in frames]


def test_numbered_times(tmp_path: Path) -> None:
    """Every event, vocabularies too, has its number / 1000."""
    found = record(tmp_path, Open(7, 1), generate(8), times=False)
    assert [event.time for event in found] == [0, 0.001, 0.002]


def test_keys_are_counted(tmp_path: Path) -> None:
    """What looks like a key in a client's request is remembered, with its middle left out."""
    key = "sk-" + "a1" * 20
    recorder = Recorder(TraceWriter(tmp_path / "a", Header()), Redaction((), b""))
    recorder.take([Request(0, 1, "POST", "/", {}, Parsed("", {"x": key}, "py")), generate(1)])
    recorder.abandon()
    assert list(recorder.suspects.values()) == [1]
    assert key not in recorder.suspects


def test_more_than_memory_should_hold_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the disk is counted; a flush takes it away."""
    monkeypatch.setattr("lmtool.trace.recorder.MOST_WAITING", 100)
    recorder = Recorder(TraceWriter(tmp_path / "a", Header()), Redaction((), b""))
    recorder.take([generate(i) for i in range(5)])
    assert recorder.overrun
    recorder.flush()
    assert not recorder.overrun
    recorder.abandon()
