"""The demo: prompts that race, at a pace."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.terminal.tui.sources.demo import PROMPTS, DemoSource, PacedModel, racing
from lmtool.trace.events import Remark
from lmtool.trace.reader import TraceReader
from tests.protocol.lmtp.harness import serving
from tests.scripted_model import ScriptedModel, tokens_of
from tests.terminal.tui.sources_running import no_tokenizer, watching


@contextlib.asynccontextmanager
async def scripted(tell: Callable[[str], None]) -> AsyncIterator[str]:
    tell("nearly there")
    async with serving(ScriptedModel()) as served:
        yield served.url


def ask(tokens: int) -> GenerateRequest:
    return GenerateRequest("a", (5,), SamplingParams(max_tokens=tokens))


class TestDemo:
    """The race that shows something where there is no server."""

    def test_the_race_has_four_lanes(self) -> None:
        """Four different prompts, each with a seed of its own, so that every run shows the same."""
        lanes = racing()
        assert [lane.prompt for lane in lanes] == list(PROMPTS)
        assert len({lane.sampling.seed for lane in lanes}) == len(PROMPTS) == 4

    async def test_it_says_what_it_does_and_races(self, tmp_path: Path) -> None:
        """Notes tell how far the server is; then the prompts run, and further ones can follow; all is recorded."""
        path = tmp_path / "demo.lmtp.jsonl"
        lanes = [GenerateRequest(0, (1,), SamplingParams(max_tokens=3)), GenerateRequest(0, (2,))]
        demo = DemoSource(scripted, pytest.fail, find_tokenizer=no_tokenizer, prompts=lanes)
        assert not demo.takes_requests
        demo.start_recording(path)
        async with watching(demo) as watch:
            await watch.until(lambda: watch.ends() == 2)
            assert [event.text for event in watch.events if isinstance(event, Remark)][1] == "nearly there"
            assert demo.recording.tokens == 35
            await demo.send(lanes[0])
            await watch.until(lambda: watch.ends() == 3)
            demo.cancel("1/2")
        assert sum(1 for _ in TraceReader(path)) > 38

    async def test_not_staying(self) -> None:
        """With `stay` off it is over when the prompts are answered."""
        lanes = [GenerateRequest(0, (1,), SamplingParams(max_tokens=3))]
        async with watching(
            DemoSource(scripted, pytest.fail, find_tokenizer=no_tokenizer, prompts=lanes, stay=False)
        ) as watch:
            await watch.until(watch.over.is_set)
            assert watch.error is None
            assert watch.ends() == 1


class TestPace:
    """A model slowed down."""

    async def test_nothing_is_lost_or_reordered(self) -> None:
        """Every token comes, in order; the model is paused meanwhile instead of running ahead."""
        model = ScriptedModel()
        outputs = [output async for output in stream(PacedModel(model, 2000.0), ask(12))]
        assert [output.token for output in outputs] == tokens_of((5,), 12)
        assert (await PacedModel(model, 1.0).info()).model == "scripted"

    async def test_a_pace_that_changes(self) -> None:
        """Each stream has the pace that there is when it begins."""
        paces = iter((2000.0, 4000.0))
        model = PacedModel(ScriptedModel(), lambda: next(paces))
        for _ in range(2):
            assert len([output async for output in stream(model, ask(3))]) == 3
        assert next(paces, None) is None

    async def test_leaving_early_cancels_below(self) -> None:
        """A stream that is cancelled while it waits ends in the model."""
        model = ScriptedModel()
        outputs = stream(PacedModel(model, 0.01), ask(100))
        assert (await anext(outputs)).token == tokens_of((5,), 1)[0]
        await outputs.aclose()  # type: ignore[attr-defined]
        assert model.cancelled == ["a"]

    async def test_holding_a_stream(self) -> None:
        """A reader that falls behind pauses the stream and gets the rest later."""
        outputs = [output async for output in stream(PacedModel(ScriptedModel(), 5000.0), ask(40), high_water=2)]
        assert len(outputs) == 40
