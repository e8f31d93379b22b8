"""A contest that cannot start; whole ones run in `tests/cli/bench/test_engine.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lmtool.bench.contestants import Contestant
from lmtool.bench.engine_report import EngineBench
from lmtool.bench.engine_run import run
from lmtool.errors import ResourceError

STORIES = str(Path(__file__).parents[1] / "data/stories260K")


async def test_nothing_is_measured_without_ours() -> None:
    """A peer that cannot run is left out, ours is not."""
    lines: list[str] = []
    ours, peer = Contestant("lmtool", "float32", "/no/python"), Contestant("transformers", "int8", sys.executable)
    with pytest.raises(ResourceError, match="cannot start '/no/python'"):
        await run(EngineBench(STORIES, (ours, peer)), lines.append)
    assert lines == ["loading lmtool:float32"]
