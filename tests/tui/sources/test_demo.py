"""The race that shows something where there is no server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lmtool.trace.events import Remark
from lmtool.trace.reader import TraceReader
from lmtool.tui.sources.demo import PROMPTS, DemoSource, racing
from lmtool.types import GenerateRequest, SamplingParams
from tests.lmtp.harness import serving
from tests.scripted_model import ScriptedModel
from tests.tui.sources.watching import no_tokenizer, watching


@contextlib.asynccontextmanager
async def scripted(tell: Callable[[str], None]) -> AsyncIterator[str]:
    tell("nearly there")
    async with serving(ScriptedModel()) as served:
        yield served.url


def test_the_race_has_four_lanes() -> None:
    """Four different prompts, each with a seed of its own, so that every run shows the same."""
    lanes = racing()
    assert [lane.prompt for lane in lanes] == list(PROMPTS)
    assert len({lane.sampling.seed for lane in lanes}) == len(PROMPTS) == 4


async def test_it_says_what_it_does_and_races(tmp_path: Path) -> None:
    """Notes tell how far the server is; then the prompts run, and further ones can follow; all is recorded."""
    path = tmp_path / "demo.lmtp.jsonl"
    lanes = [GenerateRequest(0, (1,), SamplingParams(max_tokens=3)), GenerateRequest(0, (2,))]
    demo = DemoSource(scripted, pytest.fail, find_tokenizer=no_tokenizer, prompts=lanes)
    assert demo.generate is None
    demo.start_recording(path)
    async with watching(demo) as watch:
        await watch.until(lambda: watch.ends() == 2)
        assert [event.text for event in watch.events if isinstance(event, Remark)][1] == "nearly there"
        assert demo.recorded.tokens == 35
        await demo.generate(lanes[0])
        await watch.until(lambda: watch.ends() == 3)
        demo.cancel("1/2")
    assert sum(1 for _ in TraceReader(path)) > 38


async def test_not_staying() -> None:
    """With `stay` off it is over when the prompts are answered."""
    lanes = [GenerateRequest(0, (1,), SamplingParams(max_tokens=3))]
    async with watching(
        DemoSource(scripted, pytest.fail, find_tokenizer=no_tokenizer, prompts=lanes, stay=False)
    ) as watch:
        await watch.until(watch.over.is_set)
        assert watch.error is None
        assert watch.ends() == 1
