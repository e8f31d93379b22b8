"""The sampler's kernels: they draw what the definition says, row by row, and never wait."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from lmtool.core.logprobs.uniform import uniform
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine import sampler
from lmtool.inference.engine.sampler import _sampled_rows
from lmtool.inference.engine.sampling_result import SamplingResult
from lmtool.inference.engine.sampling_row import Bias, Row, RowState
from tests.inference.engine.random_rows import random_rows
from tests.inference.engine.sampling_reference import EDGE, check, expected

pytestmark = [
    pytest.mark.cuda,
    # NumPy's, in the interpreter; a GPU gives the same numbers in silence
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|All-NaN slice) encountered:RuntimeWarning"),
]

MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_p=0.9, logprobs_mode="processed"),
    SamplingParams(temperature=1.0, top_k=7, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.1, logprobs_mode="raw"),
]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Several splits, tiles and parts of few ids: the interpreter has no time for thousands."""
    from lmtool.inference.engine.cuda.kernels import sampling

    for name, value in {"SPLIT": 64, "PART": 16, "TILE": 128}.items():
        monkeypatch.setattr(sampling, name, value)


def on_device(row, device):
    """The row as a stream has it: its bias where the logits are."""
    return row if row.bias is None else replace(row, bias=Bias(row.bias.ids.to(device), row.bias.values.to(device)))


@pytest.fixture
def sampled(device):
    """What the kernels give, as the engine would read it."""
    from lmtool.inference.engine.cuda.sampling import sample_rows

    def sampled(logits, rows):
        rows = [on_device(row, device) for row in rows]
        parts = sample_rows(logits.to(device), rows, list(range(len(rows))))
        tokens = torch.cat([part.tokens for part in parts])
        found = SamplingResult(tokens, None, [], [_sampled_rows(part, rows) for part in parts]).read()
        assert [one.token for one in found if one] == [t for t, one in zip(tokens.tolist(), found, strict=True) if one]
        return found

    return sampled


@pytest.mark.parametrize(("vocabulary", "scale"), [(10, 6.0), (64, 0.5), (150, 3.0)])
def test_equals_the_definition(sampled, vocabulary, scale):
    """Any mix of parameters gives the definition's id, log-probability and alternatives."""
    logits, rows = random_rows(random.Random(vocabulary), 8, vocabulary, scale)
    for own, row, found in zip(logits, rows, sampled(logits, rows), strict=True):
        check(own, row, found)


@pytest.mark.parametrize("params", [{"top_k": 6}, {"top_p": 0.5}, {"min_p": 0.4}, {"top_k": 9, "top_p": 0.7}, {}])
def test_ties(sampled, params):
    """Of tokens as likely as the cut the first ones stay; a grid of uniform numbers draws each of those, in order."""
    logits = torch.tensor([1.0, 0.0, 1.0, -1.0, 2.0, 1.0, 0.0]).repeat(19)
    rows = [
        Row(SamplingParams(temperature=1.0, logprobs_mode="processed", **params), None, None, 20, seed)
        for seed in range(2)
    ]
    for row, found in zip(rows, sampled(logits.repeat(len(rows), 1), rows), strict=True):
        check(logits, row, found)


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 1e30])
def test_extreme_temperatures(sampled, temperature):
    """Next to greedy, and next to uniform, without overflow."""
    logits = torch.randn(2, 130, generator=torch.Generator().manual_seed(3)) * 20
    rows = [Row(SamplingParams(temperature=temperature, top_p=top_p), seed=5) for top_p in (1.0, 0.9)]
    for own, row, found in zip(logits, rows, sampled(logits, rows), strict=True):
        check(own, row, found)


@pytest.mark.parametrize("params", MIXED)
def test_one_allowed_id(sampled, params):
    """A mask of one bit leaves one id, with probability 1 where the mode knows of the mask."""
    words = torch.zeros(5, dtype=torch.int32)
    words[3] = 1 << 7
    (found,) = sampled(torch.randn(1, 150), [Row(params, allowed=words, top_logprobs=1)])
    assert found.token == 3 * 32 + 7
    assert found.logprob == 0.0 or params.logprobs_mode == "raw"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_broken_rows(sampled, bad):
    """Logits that are not numbers end their own row, whatever its parameters; its id is of the vocabulary."""
    logits = torch.zeros(2 * len(MIXED), 70)
    logits[::2] = torch.randn(len(MIXED), 70)
    logits[1::2, :] = bad
    found = sampled(logits, [Row(params) for params in MIXED for _ in range(2)])
    assert [one is None for one in found] == [False, True] * len(MIXED)


def test_nothing_left(sampled):
    """A row that bars every id, or is allowed none, has no choice."""
    none = torch.zeros(3, dtype=torch.int32)
    rows = [Row(params, barred=frozenset(range(70))) for params in MIXED] + [Row(p, allowed=none) for p in MIXED]
    assert sampled(torch.randn(len(rows), 70), rows) == [None] * len(rows)


def test_alone_and_in_a_crowd(sampled):
    """A row has the same bits in any batch."""
    logits, rows = random_rows(random.Random(1), 5, 150, 3.0)
    whole = sampled(logits, rows)
    assert [sampled(logits[i : i + 1], rows[i : i + 1])[0] for i in range(5)] == whole


def test_parts_of_a_batch(sampled, monkeypatch):
    """A batch too large for one set of candidates is sampled in parts, with the same bits."""
    from lmtool.inference.engine.cuda import sampling

    logits, rows = random_rows(random.Random(2), 3, 70, 3.0)
    whole = sampled(logits, rows)
    monkeypatch.setattr(sampling, "_SCRATCH", 2 * 12 * 70)
    assert sampled(logits, rows) == whole


def test_half_precision(sampled):
    """Logits in bfloat16 are those numbers in float32."""
    logits = torch.randn(len(MIXED), 150).bfloat16()
    rows = [Row(params, top_logprobs=1, seed=4) for params in MIXED]
    assert sampled(logits, rows) == sampled(logits.float(), rows)


def test_uniform_numbers():
    """Those of a stream alone, to the bit, any seed included."""
    from lmtool.inference.engine.cuda.sampling import uniforms

    seeds, positions = [0, -1, 2**80 + 5, 2**63, 7], [0, 3, 2**40, 1, 99]
    assert uniforms(seeds, positions).tolist() == [uniform(*pair) for pair in zip(seeds, positions, strict=True)]


def test_edges(sampled):
    """Where the draw differs from the definition's, the uniform number is within 1e-6 of an edge: of 12, none is."""
    logits = torch.randn(150, generator=torch.Generator().manual_seed(8))
    rows = [Row(SamplingParams(temperature=1.0), seed=seed) for seed in range(12)]
    want = [expected(logits, row) for row in rows]
    assert EDGE == 1e-6
    assert all(len(one.tokens) == 1 for one in want)
    assert [one.token for one in sampled(logits.repeat(12, 1), rows)] == [one.token for one in want]


class TestCounts:
    """How often each id occurred is kept on the device, and the kernel adds what it samples."""

    PARAMS = SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2)

    def row(self, tokens, state):
        """The row that samples the token behind these, of which three are the prompt."""
        known, generated = set(tokens), tokens[3:]
        counts = {token: generated.count(token) for token in generated}
        return Row(self.PARAMS, None, None, 20, 1, len(tokens), known_ids=known, counts=counts, state=state)

    def test_step_by_step(self, sampled):
        """Each step's numbers are those of a row that is told everything; only what is new is uploaded."""
        tokens = [5, 6, 5]
        state = RowState(tokens, 3)
        for step in range(4):
            logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(step)) * 2
            row = self.row(tokens, state)
            (found,) = sampled(logits, [row])
            check(logits[0], row, found)
            assert found == sampled(logits, [self.row(tokens, None)])[0]
            tokens.append(found.token)
            if step == 2:
                tokens += [7, 7]  # such as a constraint forces

    def test_what_was_dropped(self, sampled):
        """An id that was sampled and not recorded does not count."""
        tokens = [5, 6, 5]
        state = RowState(tokens, 3)
        logits = torch.zeros(1, 12)
        (found,) = sampled(logits, [self.row(tokens, state)])
        again = self.row(tokens, state)
        check(logits[0], again, sampled(logits, [again])[0])
        tokens.append((found.token + 1) % 12)
        other = self.row(tokens, state)
        check(logits[0], other, sampled(logits, [other])[0])


class Halved:
    """A logits processor."""

    def apply(self, output, logits):
        logits /= 2


def test_with_processors(device):
    """Rows with processors go through torch's operators, beside others by kernels, which were tried before."""
    by_kernel = sampler.prepare_gpu.__wrapped__(device, 12, torch.float32)
    assert by_kernel is not None
    halved = Row(MIXED[2], None, None, 3, 5, processors=Halved())
    rows = [Row(target=3), halved, Row(MIXED[1], None, None, 2, 6), Row(MIXED[3], None, None, 1, 7)]
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(6)) * 2
    result = sampler._start_on_gpu(logits.clone().to(device), rows, by_kernel)
    found = result.read()
    assert result.tokens.tolist() == [one.token for one in found]
    logits[1] /= 2
    for own, row, one in zip(logits, rows, found, strict=True):
        check(own, row, one)


OWN = [
    {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4, "top_logprobs": 3},
    {"temperature": 0.8, "frequency_penalty": 0.3, "logprobs_mode": "processed"},
    {"repetition_penalty": 2.0, "min_tokens": 3},
]


@pytest.mark.parametrize("ahead", [False, True])
async def test_streams(engine_on, run, random_ids, monkeypatch, ahead):
    """Streams with penalties give through the kernels what they give through the CPU's sampler, step by step."""
    requests = [
        GenerateRequest(seed, random_ids(4 + seed, seed=seed), SamplingParams(max_tokens=5, seed=seed, **own))
        for seed, own in enumerate(OWN)
    ]
    engine = engine_on("small", step_ahead=ahead)
    theirs = await run(engine, *requests)
    monkeypatch.setattr("lmtool.inference.engine.sampler.kernels_work", lambda *_: True)
    by_kernel = sampler.prepare_gpu.__wrapped__(torch.device("cpu"), 101, torch.float32)
    monkeypatch.setattr(sampler, "_gpu_sampler", lambda _: by_kernel)
    ours = await run(engine, *requests)
    for request in requests:
        for mine, other in zip(ours[request.stream_id], theirs[request.stream_id], strict=True):
            assert (mine.token, mine.finish_reason) == (other.token, other.finish_reason)
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_nothing_waits(gpu, monkeypatch):
    """On a GPU no parameter makes the host wait for the device."""
    monkeypatch.undo()
    logits, rows = random_rows(random.Random(4), 16, 5000, 3.0)
    own = logits.to(gpu)
    rows = [row for row in rows if row.bias is None]
    sampler.start_sampling(own, rows).read()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = sampler.start_sampling(own, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for given, row, found in zip(logits, rows, result.read(), strict=False):
        check(given, row, found)
