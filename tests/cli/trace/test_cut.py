"""`lmtool trace cut`."""

from __future__ import annotations

from pathlib import Path

from lmtool.trace.events import End, Frame, Open, Vocab
from lmtool.trace.reader import TraceReader
from tests.cli.trace_runner import CONVERSATION, trace


def test_a_part_is_a_trace(tmp_path: Path) -> None:
    """The part has its own header, what it needs, and an end record."""
    (tmp_path / "a").write_text(CONVERSATION)
    result = trace("cut", tmp_path / "a", "--from", "0.015", "--to", "0.03", "-O", tmp_path / "b")
    assert result.exit_code == 0
    reader = TraceReader(tmp_path / "b")
    assert [type(event) for event in reader] == [Open, Vocab, Frame, End]
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    assert reader.header.title == "one stream"


def test_blobs_are_fetched(tmp_path: Path) -> None:
    """A blob before the part is put into it when a frame of the part refers to it."""
    lines = [
        '{"lmtp_trace": 1}',
        '[0, "blob", 0, {"sha256": "ab", "value": {"1": 2}}]',
        '[1, ">", 1, "GENERATE", {"logit_bias": {"$blob": "ab"}}]',
    ]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    assert trace("cut", tmp_path / "a", "--from", "0.5", "-O", tmp_path / "b").exit_code == 0
    assert '"value": {"1":2}' in (tmp_path / "b").read_text()
    (tmp_path / "a").write_text("\n".join(lines[::2]) + "\n")
    result = trace("cut", tmp_path / "a", "-O", tmp_path / "c")
    assert result.exit_code == 7
    assert "refers to the blob ab" in result.stderr


def test_times_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """--to before --from is a usage error."""
    (tmp_path / "a").write_text(CONVERSATION)
    assert trace("cut", tmp_path / "a", "--from", "2", "--to", "1", "-O", tmp_path / "b").exit_code == 2
