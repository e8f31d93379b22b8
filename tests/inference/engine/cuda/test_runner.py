"""Steps over pages: the model's own logits, recorded or not, whole or cut because memory ran out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmtool.inference.engine.cuda.step_rows import lay_out
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.engine.selfcheck import check_runner
from tests.inference.engine.cuda.conftest import INTERPRETED

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "mistral", "qwen2", "qwen3", "gemma2", "gpt2"])
def test_logits_are_the_models_own(runner_of, architecture):
    """Texts computed together, in uneven pieces, have the logits of transformers' own pass."""
    runner, reference, _ = runner_of(architecture)
    with torch.inference_mode():
        check_runner(runner, architecture, reference)


def decoding(runner, lengths):
    """Sequences that have all but their last id computed."""
    sequences = []
    for number, length in enumerate(lengths):
        tokens = [3 + (7 * number + position) % 90 for position in range(length)]
        sequence = Sequence(number, tokens, prompt_length=max(length - 1, 1), max_length=200)
        sequence.blocks = list(range(1 + 4 * number, 5 + 4 * number))
        sequences.append(sequence)
        runner.run(Plan([Span(sequence, 0, length - 1)]))
        sequence.computed = length - 1
    return sequences


ARCHITECTURES = ["small", "llama", "llama-tied", "mistral", "qwen2", "qwen3", "gemma2", "gpt2"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recorded_steps_equal_plain_ones(runner_of, architecture, monkeypatch):
    """Recorded steps, padded to a batch size, give what plain steps give: of decoding streams, of prompts, of both."""
    if INTERPRETED:
        monkeypatch.setattr("lmtool.inference.engine.cuda.graphs._PART_TOKENS", (16,))
    runner, _, _ = runner_of(architecture)
    with torch.inference_mode():
        recorded = runner.prepared(4, 256)
        sequences = decoding(runner, (2, 9, 18))
        plans = [Plan([Span(sequence, sequence.computed, 1) for sequence in sequences[:count]]) for count in (1, 3)]
        prompts = [Sequence(number, list(range(3, 12)), 9, max_length=90, blocks=[32 + number]) for number in (8, 9)]
        plans.append(Plan([Span(prompts[0], 0, 9), plans[1].spans[2], Span(prompts[1], 0, 5), plans[1].spans[0]]))
        plans.append(Plan([Span(prompts[1], 5, 4)]))
        for plan in plans:
            used = recorded.graphs.run(lay_out(plan))
            assert used is not None
            torch.testing.assert_close(used, runner.run(plan), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["small", "llama-tied", "mistral", "qwen2", "qwen3"])
def test_a_stream_alone(runner_of, architecture, monkeypatch):
    """Products of one row are our own kernel's, with the gate in one launch; the logits are those of two streams."""
    from lmtool.inference.engine.cuda import forward, products

    monkeypatch.setattr(products, "computes_rows", lambda _: True)
    gates = []
    own = forward.gated_row_product
    monkeypatch.setattr(forward, "gated_row_product", lambda *given: gates.append(1) or own(*given))
    runner, *_ = runner_of(architecture)
    with torch.inference_mode():
        spans = [Span(sequence, sequence.computed, 1) for sequence in decoding(runner, (9, 18))]
        together = runner.run(Plan(spans))
        gates.clear()
        alone = torch.cat([runner.run(Plan([span])) for span in spans])
    assert len(gates) == 2 * len(runner.forward.layers)
    torch.testing.assert_close(alone, together, atol=2e-5, rtol=1e-5)


def test_drafts_are_recorded_steps_too(runner_of):
    """Guessed positions run as rows of their own, in the order of the texts."""
    runner, _, _ = runner_of("small")
    with torch.inference_mode():
        recorded = runner.prepared(4, 256)
        first, second = decoding(runner, (5, 9))
        first.draft = [11, 12]
        plan = Plan([Span(first, first.computed, 3), Span(second, second.computed, 1)])
        logits = recorded.run(plan)
        assert len(logits) == 4
        torch.testing.assert_close(logits, runner.run(plan), atol=1e-5, rtol=1e-5)


class Scarce:
    """A forward pass without memory for more than so many tokens."""

    def __init__(self, forward, tokens):
        self._forward, self._tokens = forward, tokens
        self.refused = 0

    def logits(self, batch, attention):
        """Compute what fits."""
        if batch.input_ids.shape[1] > self._tokens:
            self.refused += 1
            raise torch.OutOfMemoryError("too many tokens")
        return self._forward.logits(batch, attention)


def test_out_of_memory_makes_smaller_steps(runner_of):
    """A step that does not fit is computed in parts, with the same logits."""
    runner, _, _ = runner_of("small")
    tokens = [3 + position % 90 for position in range(34)]
    scored = Sequence(0, tokens, prompt_length=1, max_length=34, scoring=True, blocks=[1, 2, 3])
    prompt = Sequence(1, tokens[5:10], prompt_length=5, max_length=60, blocks=[4])
    plan = Plan([Span(scored, 0, 33), Span(prompt, 0, 5)], fresh_blocks=[1, 2, 3, 4])
    with torch.inference_mode():
        whole = runner.run(plan)
        scarce = Scarce(runner.forward, 17)
        parts = replace(runner, forward=scarce).run(plan)
    assert scarce.refused == 2  # of 38 tokens, and of the first 33
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


def test_halves_in_graphs_keep_their_logits(runner_of):
    """The first half's logits are not overwritten by the second's, which a CUDA graph writes to the same memory."""
    runner, _, _ = runner_of("small")
    with torch.inference_mode():
        recorded = runner.prepared(2, 256)
        sequences = decoding(runner, (2, 17, 33, 9))
        plan = Plan([Span(sequence, sequence.computed, 1) for sequence in sequences])
        scarce = replace(recorded, forward=Scarce(runner.forward, 3))
        torch.testing.assert_close(scarce.run(plan), runner.run(plan), atol=1e-5, rtol=1e-5)
        assert scarce.forward.refused == 1


def test_out_of_memory_for_the_smallest_step(runner_of):
    """Where not even one block fits, the error is passed on."""
    runner, _, _ = runner_of("small")
    sequence = Sequence(0, list(range(3, 50)), prompt_length=47, max_length=60, blocks=[1, 2, 3])
    with torch.inference_mode(), pytest.raises(torch.OutOfMemoryError):
        replace(runner, forward=Scarce(runner.forward, 8)).run(Plan([Span(sequence, 0, 47)]))


def test_wrong_recordings_are_not_used(runner_of, monkeypatch, caplog):
    """Where recorded steps give other logits than plain ones, they are left aside, and the log says so."""
    from lmtool.inference.engine.cuda.graphs import StepGraphs

    runner, _, _ = runner_of("small")
    right = StepGraphs.run
    monkeypatch.setattr(StepGraphs, "run", lambda self, layout, **size: right(self, layout, **size) + 1)
    with torch.inference_mode():
        assert runner.prepared(2, 256).graphs is None
    assert "is off by 1, where" in caplog.text


def test_a_model_that_cannot_be_recorded_runs_without(runner_of, caplog):
    """Where recording fails, the steps are computed one by one, and the log says so."""
    runner, _, _ = runner_of("small")
    with torch.inference_mode():
        assert replace(runner, forward=Scarce(runner.forward, 17)).prepared(24, 256).graphs is None
    assert "run without CUDA graphs" in caplog.text


def test_what_the_host_decides_is_not_captured(runner_of, caplog):
    """Where a pass is known to ask the host, no capture is tried, and the log says what is decided there."""

    class Asking(Scarce):
        host_choices = "experts run one after the other"

    runner, _, _ = runner_of("small")
    asking = Asking(runner.forward, 100)
    with torch.inference_mode():
        assert replace(runner, forward=asking).prepared(2, 256).graphs is None
    assert "run without CUDA graphs, and slower: experts run one after the other" in caplog.text


def test_a_step_ahead(runner_of):
    """A step whose ids lie on the device gives what it gives once they are known; without recordings there is none."""
    runner, _, _ = runner_of("small")
    assert runner.max_ahead_rows == 0
    with torch.inference_mode():
        recorded = runner.prepared(4, 256)
        assert recorded.max_ahead_rows == 4
        sequences = decoding(runner, (2, 17, 33))
        recorded.run(Plan([Span(sequence, sequence.computed, 1) for sequence in sequences]))
        plan = Plan([Span(sequence, len(sequence.tokens), 1) for sequence in sequences[::-1]])
        ahead = recorded.run_ahead(plan, torch.tensor([21, 22, 23], device=runner.device))
        for span, token in zip(plan.spans, (21, 22, 23), strict=True):
            span.sequence.tokens.append(token)
        torch.testing.assert_close(ahead, recorded.run(plan), atol=0, rtol=0)


def test_a_step_ahead_clears_its_blocks(runner_of):
    """Where attention looks behind a text's end, blocks handed out for a step ahead are cleared like any other's."""
    runner, _, _ = runner_of("small")
    with torch.inference_mode():
        foreign = replace(runner, backend=replace(runner.backend, prefill_name="another"))
        recorded = foreign.prepared(2, 256)
        (sequence,) = decoding(runner, (17,))
        keys, _ = runner.cache.memory(runner.forward.layers[0])
        keys[30] = 5.0
        plan = Plan([Span(sequence, 17, 1)], fresh_blocks=[30])
        recorded.run_ahead(plan, torch.tensor([21], device=runner.device))
        assert not keys[30].any()
