"""A contest that cannot start; whole ones run in `tests/cli/bench/test_engine.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.errors import ResourceError
from lmtool.measure.bench.contestants import Contestant
from lmtool.measure.bench.engine_report import EngineBench
from lmtool.measure.bench.engine_run import WARM_UP_TOKENS, run
from lmtool.measure.bench.peer_process import PeerProcess

STORIES = str(Path(__file__).parents[2] / "data/stories260K")


async def test_nothing_is_measured_without_ours() -> None:
    """A peer that cannot run is left out, ours is not."""
    lines: list[str] = []
    ours, peer = Contestant("lmtool", "float32", "/no/python"), Contestant("transformers", "int8", sys.executable)
    with pytest.raises(ResourceError, match="cannot start '/no/python'"):
        await run(EngineBench(STORIES, (ours, peer)), lines.append)
    assert lines == ["loading lmtool:float32"]


async def test_long_prompts_warm_up_with_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round that tells nothing has the beginning of a prompt, those that are timed have all of it."""
    called, lengths = PeerProcess.call, list[int]()

    async def call(self: PeerProcess, limit: float, method: str, /, **arguments: Any) -> dict[str, Any]:
        if method == "timed":
            lengths.extend(len(prompt) for prompt in (*arguments["first"], *arguments["then"]))
        return await called(self, limit, method, **arguments)

    monkeypatch.setattr(PeerProcess, "call", call)
    ours = Contestant("lmtool", "float32", sys.executable)
    report = await run(EngineBench(STORIES, (ours,), batch=(1,), prompt_len=300, output_len=65, rounds=1), print)
    assert report.failures == {}
    assert lengths[:4] == [WARM_UP_TOKENS, WARM_UP_TOKENS, 300, 300]
