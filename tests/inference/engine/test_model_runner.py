"""A step's tensors, its attention over blocks, and its rows of logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface

from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_runner import attend, build, padded_blocks
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.engine.selfcheck import IMPLEMENTATION, RECORDING, register

CPU = torch.device("cpu")
CHUNK = 64


def generate(number, prompt, generated=0, blocks=()):
    """A GENERATE sequence whose ids are its number."""
    return Sequence(number, [number] * (prompt + generated), prompt, 999, blocks=list(blocks))


def test_flat():
    """Spans follow each other; slots are the blocks' places; padding comes last and is stored nowhere."""
    one, two = generate(1, 20, blocks=[5, 3]), generate(2, 3, 1, blocks=[7])
    batch = build(Plan([Span(one, 15, 3), Span(two, 3, 1)], fresh_blocks=[3]), CHUNK, 6, CPU)
    assert batch.input_ids.tolist() == [[1, 1, 1, 2, 0, 0]]
    assert batch.positions.tolist() == [[15, 16, 17, 3, 0, 0]]
    assert batch.slots.tolist() == [5 * 16 + 15, 3 * 16, 3 * 16 + 1, 7 * 16 + 3]
    assert batch.fresh_blocks.tolist() == [3]


def test_logit_rows():
    """Only the end of what is known brings a token; the rows are padded too, by one that is wanted."""
    batch = build(Plan([Span(generate(1, 9, blocks=[1]), 0, 5), Span(generate(2, 2, blocks=[2]), 0, 2)]), CHUNK, 4, CPU)
    assert (batch.logits, batch.logit_rows.tolist()) == (1, [6, 6, 6, 6])
    nothing = build(Plan([Span(generate(1, 9, blocks=[1]), 0, 5)]), CHUNK, 4, CPU)
    assert (nothing.logits, nothing.logit_rows.tolist()) == (0, [])


def test_units():
    """Prompts are cut at fixed positions, generated ids one by one: a unit's shape depends on its stream alone."""
    one = generate(1, 70, 3, blocks=range(1, 6))
    groups = build(Plan([Span(one, 0, 73)]), CHUNK, 1, CPU).groups
    assert [(group.positions[:, 0].tolist(), group.positions.shape[1]) for group in groups] == [
        ([0], 64),
        ([64], 6),
        ([70, 71, 72], 1),
    ]
    assert [group.span for group in groups] == [64, 96, 96]


def test_whole_batch_in_order():
    """When all streams decode at similar lengths, the queries are the whole batch and need no gathering."""
    spans = [Span(generate(n, 5, 1, blocks=[n]), 5, 1) for n in (1, 2, 3)]
    (group,) = build(Plan(spans), CHUNK, 2, CPU).groups
    assert group.rows is None
    assert group.table.tolist() == [1, 0, 2, 0, 3, 0]
    assert group.first_block is None
    (padded,) = build(Plan(spans), CHUNK, 4, CPU).groups
    assert padded.rows.tolist() == [0, 1, 2]


def test_consecutive_blocks():
    """Neighbouring blocks of one stream are told apart: they need no copy."""
    (group,) = build(Plan([Span(generate(1, 20, 1, blocks=[4, 5]), 20, 1)]), CHUNK, 1, CPU).groups
    assert group.first_block == 4
    (group,) = build(Plan([Span(generate(1, 20, 1, blocks=[5, 4]), 20, 1)]), CHUNK, 1, CPU).groups
    assert group.first_block is None


def test_masks():
    """A query sees itself and what is before it, within the window."""
    (group,) = build(Plan([Span(generate(1, 4, blocks=[1]), 1, 3)]), CHUNK, 1, CPU).groups
    seen = (~group.mask(None))[0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    seen = (~group.mask(2))[0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0, 1], [1, 2], [2, 3]]


@given(st.integers(1, 100_000))
def test_padded_blocks(positions):
    """The ladder of spans: never too short, at most a quarter (or one block) too long, and it never falls."""
    needed = -(-positions // BLOCK_TOKENS)
    padded = padded_blocks(positions)
    assert needed <= padded <= max(needed * 1.25, needed + 1)
    assert padded_blocks(positions + 1) >= padded


@pytest.mark.parametrize(("kv_heads", "heads"), [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("queries", [1, 5])
def test_against_torch(kv_heads, heads, queries):
    """Grouped queries over padded spans, each unit with its own mask, as torch computes them one head at a time."""
    units, span, size = 3, 32, 8
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(units, queries, kv_heads, heads, size, generator=generator)
    key = torch.randn(kv_heads * units, span, size, generator=generator)
    value = torch.randn(kv_heads * units, span, 6, generator=generator)
    mask = torch.rand(units, queries, span, generator=generator) < 0.5
    mask[..., 0] = False
    output = attend(query, key, value, mask, 0.3, None)
    for unit in range(units):
        for kv in range(kv_heads):
            at = kv * units + unit
            expected = torch.nn.functional.scaled_dot_product_attention(
                query[unit, :, kv].transpose(0, 1), key[at].expand(heads, -1, -1), value[at].expand(heads, -1, -1),
                attn_mask=~mask[unit], scale=0.3,
            )  # fmt: skip
            torch.testing.assert_close(output[unit, :, kv].transpose(0, 1), expected)


def test_softcap():
    """Scores are squeezed by tanh before the softmax."""
    query = torch.tensor([10.0]).view(1, 1, 1, 1, 1)
    key, value = torch.tensor([[[1.0], [-1.0]]]), torch.tensor([[[1.0], [0.0]]])
    output = attend(query, key, value, torch.zeros(1, 1, 2, dtype=torch.bool), 1.0, 2.0)
    squeezed = 2 * torch.tanh(torch.tensor([10.0, -10.0]) / 2)
    assert float(output) == pytest.approx(float(torch.softmax(squeezed, 0)[0]), abs=1e-6)


def test_registered():
    """Transformers knows both names, however often they are registered."""
    register()
    register()
    assert {IMPLEMENTATION, RECORDING} <= set(AttentionInterface().valid_keys())


def test_a_chunk_without_logits(engine_of, random_ids):
    """Where no row of logits is needed the output layer is left out, but keys and values are stored."""
    runner = engine_of("gpt2")._runner
    ids = list(random_ids(40, seed=1))
    with torch.inference_mode():
        whole, chunked = (Sequence(n, list(ids), prompt_length=40, max_length=60) for n in (1, 2))
        whole.blocks, chunked.blocks = [1, 2, 3], [4, 5, 6]
        expected = runner.run(Plan(spans=[Span(whole, 0, 40)], fresh_blocks=[1, 2, 3, 4, 5, 6]))
        assert runner.run(Plan(spans=[Span(chunked, 0, 30)], fresh_blocks=[])).numel() == 0
        found = runner.run(Plan(spans=[Span(chunked, 30, 10)], fresh_blocks=[]))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


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
