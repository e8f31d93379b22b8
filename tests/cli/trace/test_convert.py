"""`lmtool trace convert`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.trace.formats import FORMATS
from lmtool.trace.reader import TraceReader
from tests.cli.trace_runner import CONVERSATION, trace

RECORDINGS = Path(__file__).parents[3] / "recordings"


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


@pytest.mark.parametrize(
    "content", ["", "interactions:\n- request:\n", '{"resourceSpans": []}\n', '{"log": {"entries": []}}\n']
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    """Status 7, with its first line; nothing is written."""
    (tmp_path / "a").write_text(content)
    result = trace("convert", tmp_path / "a", "--to", "trace", "-O", tmp_path / "b")
    assert result.exit_code == 7
    assert f"cannot convert {tmp_path / 'a'}" in result.stderr
    assert ("line 1 is" if content else "it is empty") in result.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("to", sorted(FORMATS))
@pytest.mark.parametrize("name", ["answers_over_http", "evergreen_sessions", "plain_http", "two_streams_interleaved"])
def test_each_protocol_in_each_format(name: str, to: str) -> None:
    """What is there is in it; a wire log of what has no frames is refused, a table without streams is warned of."""
    result = trace("convert", RECORDINGS / f"{name}.lmtp.jsonl", "--to", to)
    if to == "lines" and name != "two_streams_interleaved":
        assert (result.exit_code, result.stdout) == (7, "")
        return
    assert result.exit_code == 0
    words = {"answers_over_http": "The capital", "plain_http": "lmtool chat", "two_streams_interleaved": "GENERATE"}
    if name == "plain_http" and to != "har":
        assert "has no stream of tokens" in result.stderr
    elif to in ("har", "lines") and name in words:
        assert words[name] in result.stdout
    elif to in ("csv", "markdown") and name != "two_streams_interleaved":
        assert "What is the capital of France?" in result.stdout


def test_lines_that_are_no_frames_are_told(tmp_path: Path) -> None:
    """Their number, and the first."""
    (tmp_path / "a").write_text('Connected\n> GENERATE {"stream_id": 1}\nx\n')
    result = trace("convert", tmp_path / "a", "--to", "trace", "-O", tmp_path / "b")
    assert result.exit_code == 0
    assert "2 lines are not frames and were skipped; the first is line 1" in result.stderr
