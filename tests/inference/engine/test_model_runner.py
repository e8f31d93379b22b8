"""The flat, chunked, cached forward pass against transformers' own."""

from __future__ import annotations

import pytest
import torch

from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest


def plain_logprobs(model, ids):
    """Log-probability of each id but the first, by one plain forward pass."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    values = torch.log_softmax(logits, -1)
    return values[range(len(ids) - 1), ids[1:]].tolist(), logits


LEAN = ["llama", "llama-packed", "llama-tied", "llama3-rope", "mistral", "qwen2", "qwen3", "gpt2-packed"]
"""What runs otherwise without a C compiler."""


class TestAgainstTransformers:
    """Logits and ids equal those of transformers' own model, for every architecture."""

    async def test_scores(self, architecture, engine_of, reference, run, random_ids):
        """A mixed batch of texts, cut into chunks, has the logprobs of one plain pass each, within 1e-4."""
        await self.score(engine_of(architecture), reference(architecture), run, random_ids)

    @pytest.mark.parametrize("lean", LEAN)
    async def test_scores_without_a_compiler(self, lean, engine_of, reference, run, random_ids):
        """The same through torch's own operators."""
        await self.score(engine_of(lean, compiled=False), reference(lean), run, random_ids)

    async def score(self, engine, model, run, random_ids):
        """Compare a mixed batch."""
        texts = {length: random_ids(length, seed=length) for length in (2, 3, 40, 64, 65, 100, 190)}
        requests = [ScoreRequest(length, ids[:1], ids[1:]) for length, ids in texts.items()]
        outputs = await run(engine, *requests)
        for length, ids in texts.items():
            expected, _ = plain_logprobs(model, ids)
            assert [output.logprob for output in outputs[length]] == pytest.approx(expected, abs=1e-4)

    async def test_greedy(self, architecture, engine_of, reference, run, random_ids):
        """Greedy ids equal `transformers.generate` up to the first near tie, logprobs within 1e-4."""
        await self.greedy(engine_of(architecture), reference(architecture), run, random_ids)

    @pytest.mark.parametrize("lean", ["llama", "llama-packed", "qwen3"])
    async def test_greedy_without_a_compiler(self, lean, engine_of, reference, run, random_ids):
        """The same through torch's own operators."""
        await self.greedy(engine_of(lean, compiled=False), reference(lean), run, random_ids)

    async def greedy(self, engine, model, run, random_ids):
        """Compare greedy streams."""
        prompts = {length: random_ids(length, seed=1000 + length) for length in (1, 7, 66, 130)}
        sampling = SamplingParams(max_tokens=24, ignore_eos=True, top_logprobs=2)
        requests = [GenerateRequest(length, ids, sampling) for length, ids in prompts.items()]
        outputs = await run(engine, *requests)
        for length, ids in prompts.items():
            ours = [output.token for output in outputs[length]]
            theirs = model.generate(
                torch.tensor([ids]), max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0,
                attention_mask=torch.ones(1, length, dtype=torch.int64),
                eos_token_id=None,
            )[0, length:].tolist()  # fmt: skip
            expected, _ = plain_logprobs(model, (*ids, *ours))
            same = next((i for i in range(24) if ours[i] != theirs[i]), 24)
            assert [o.logprob for o in outputs[length]] == pytest.approx(expected[length - 1 :], abs=1e-4)
            if same < 24:
                (_, best), (_, second) = outputs[length][same].top_logprobs[:2]
                assert best - second < 0.01
