"""`lmtool trace convert`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.trace.formats import FORMATS
from lmtool.trace.reader import TraceReader
from tests.cli.trace_runner import CONVERSATION, trace


@pytest.mark.parametrize("to", sorted(FORMATS))
def test_every_format_is_written(tmp_path: Path, to: str) -> None:
    """To stdout, or into a file that does not exist yet."""
    (tmp_path / "a").write_text(CONVERSATION)
    shown = trace("convert", tmp_path / "a", "--to", to)
    assert shown.exit_code == 0
    assert shown.stdout
    assert trace("convert", tmp_path / "a", "--to", to, "-O", tmp_path / "b").exit_code == 0
    assert (tmp_path / "b").read_text() == shown.stdout
    assert trace("convert", tmp_path / "a", "--to", to, "-O", tmp_path / "b").exit_code == 7


def test_a_wire_log_becomes_a_trace_and_back(tmp_path: Path) -> None:
    """`>` and `<` lines are frames; the trace gives the same lines again."""
    log = '> GENERATE {"stream_id": 1}\n< TOKEN [{"token": 1, "logprob": -Infinity}]\n'
    (tmp_path / "log").write_text(log)
    assert trace("convert", tmp_path / "log", "--to", "trace", "-O", tmp_path / "a").exit_code == 0
    assert trace("convert", tmp_path / "a", "--to", "lines").stdout == log


def test_a_trace_is_packed_and_mended(tmp_path: Path) -> None:
    """`--to trace` packs by the name, and gives a cut trace an end record."""
    (tmp_path / "a").write_text(CONVERSATION)
    result = trace("convert", tmp_path / "a", "--to", "trace", "-O", tmp_path / "b.gz")
    assert result.exit_code == 0
    assert "is cut" in result.stderr
    reader = TraceReader(tmp_path / "b.gz")
    assert len(list(reader)) == 9
    assert reader.ending is not None
    assert reader.ending.state == "complete"


def test_a_trace_needs_a_file(tmp_path: Path) -> None:
    """Traces are not written to stdout."""
    (tmp_path / "a").write_text(CONVERSATION)
    assert trace("convert", tmp_path / "a", "--to", "trace").exit_code == 2
    assert trace("convert", tmp_path / "none", "--to", "trace", "-O", tmp_path / "b").exit_code == 7
