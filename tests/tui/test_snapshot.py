"""Pictures without a terminal."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from lmtool.errors import UsageError
from lmtool.tui.lines import TraceFile
from lmtool.tui.options import InspectorOptions
from lmtool.tui.snapshot import size_of, snapshot

RECORDING = Path(__file__).parents[2] / "recordings/two_streams_interleaved.lmtp.jsonl"


@pytest.mark.parametrize("text", ["120", "x", "0x10", "5x5", "120x", "9999x20", "120 x 36"])
def test_sizes_that_are_none(text: str) -> None:
    """They are refused with an example."""
    with pytest.raises(UsageError) as caught:
        size_of(text)
    assert "120x36" in caught.value.hints[0]


async def test_the_same_picture_each_time() -> None:
    """The end of a trace, with its streams, in fonts that every machine has and none from the network."""
    size = size_of("120x36")
    pictures = []
    for _ in range(2):
        with closing(TraceFile(RECORDING)) as file:
            pictures.append(await snapshot(file, InspectorOptions(), size))
    assert pictures[0].count("1/2") == pictures[1].count("1/2") > 0
    assert "@font-face" not in pictures[0]
    assert "cdnjs" not in pictures[0]
    assert "DejaVu Sans Mono" in pictures[0]


async def test_a_moment() -> None:
    """At its first second a trace has no second stream yet."""
    with closing(TraceFile(RECORDING)) as file:
        svg = await snapshot(file, InspectorOptions(at=0.0), (120, 36))
    assert "1/2" not in svg
