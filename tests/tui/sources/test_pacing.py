"""A model slowed down."""

from __future__ import annotations

from lmtool.interfaces import stream
from lmtool.tui.sources.pacing import Paced
from lmtool.types import GenerateRequest, SamplingParams
from tests.scripted_model import ScriptedModel, tokens_of


def ask(tokens: int) -> GenerateRequest:
    return GenerateRequest("a", (5,), SamplingParams(max_tokens=tokens))


async def test_nothing_is_lost_or_reordered() -> None:
    """Every token comes, in order; the model is paused meanwhile instead of running ahead."""
    model = ScriptedModel()
    outputs = [output async for output in stream(Paced(model, 2000.0), ask(12))]
    assert [output.token for output in outputs] == tokens_of((5,), 12)
    assert (await Paced(model, 1.0).info()).model == "scripted"


async def test_leaving_early_cancels_below() -> None:
    """A stream that is cancelled while it waits ends in the model."""
    model = ScriptedModel()
    outputs = stream(Paced(model, 0.01), ask(100))
    assert (await anext(outputs)).token == tokens_of((5,), 1)[0]
    await outputs.aclose()  # type: ignore[attr-defined]
    assert model.cancelled == ["a"]


async def test_holding_a_stream() -> None:
    """A reader that falls behind pauses the stream and gets the rest later."""
    outputs = [output async for output in stream(Paced(ScriptedModel(), 5000.0), ask(40), high_water=2)]
    assert len(outputs) == 40
