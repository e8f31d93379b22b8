"""What came, kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.errors import FileError
from lmtool.trace.events import Open, Vocab
from lmtool.trace.header import Header
from lmtool.trace.keeping import keep
from lmtool.trace.reader import TraceReader
from tests.trace.conftest import generate, token, tokens


def test_with_what_the_recording_knew(tmp_path: Path) -> None:
    """The trace has the recording's title and its words for the ids that came, large masks once."""
    path = tmp_path / "a.lmtp.jsonl"
    recorded = [Vocab(0, 0, {5: "Hello", 7: b"\xf0\x9f", 99: "never"})]
    mask = {str(i): -100 for i in range(2000)}
    keep(
        path,
        Header(title="t", redacted=("headers",)),
        recorded,
        [Open(0, 1), generate(1, logit_bias=mask), tokens(2, token(7))],
    )
    reader = TraceReader(path)
    events = list(reader)
    assert (reader.header.title, reader.header.redacted) == ("t", ())
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    words = {i: text for event in events if isinstance(event, Vocab) for i, text in event.tokens.items()}
    assert (words[5], words[7]) == ("Hello", b"\xf0\x9f")
    assert path.stat().st_size < 40_000


def test_nothing_came(tmp_path: Path) -> None:
    """Even nothing is a trace."""
    keep(tmp_path / "a.lmtp.jsonl", Header(), [], [])
    assert len(list(TraceReader(tmp_path / "a.lmtp.jsonl"))) == 1
    with pytest.raises(FileError, match="cannot write"):
        keep(tmp_path / "no/a.lmtp.jsonl", Header(), [], [])
