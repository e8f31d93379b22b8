"""What is sampled from logits, with which log-probabilities, for any mix of parameters."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from lmtool.core.logprobs.uniform import uniform
from lmtool.core.types import SamplingParams
from lmtool.inference.engine import logits as logits_module
from lmtool.inference.engine import sampler, sampling_result
from lmtool.inference.engine.logits import row_chunks
from lmtool.inference.engine.sampler import sample, start_sampling
from lmtool.inference.engine.sampling_result import SampledToken, SamplingResult, row_logprobs
from lmtool.inference.engine.sampling_row import Bias, Row, uniforms

EXTRA = json.loads((Path(__file__).parents[2] / "data/stories260K/reference_extra.json").read_text())
LOGITS = torch.log(torch.tensor([0.05, 0.4, 0.1, 0.3, 0.15]))


@pytest.fixture(autouse=True, params=["kernels", "torch"])
def by(request, monkeypatch):
    """Rows that follow few rules are drawn by kernels, where there are any; all others by torch's operators."""
    if request.param == "torch":
        for module in (sampler, sampling_result):
            monkeypatch.setattr(module, "has_kernel", lambda _logits: False)
    return request.param


def one(logits=LOGITS, *, top_logprobs=None, seed=0, position=0, barred=(), known_ids=(), counts=None, **params):
    """The choice for one row."""
    sampling = SamplingParams(**params)
    bias = Bias.of(sampling.logit_bias)
    row = Row(sampling, None, bias, top_logprobs, seed, position, barred, known_ids, counts or {})
    (choice,) = sample(torch.as_tensor(logits).clone().unsqueeze(0), [row])
    return choice


def many(count=4000, **params):
    """How often each id is drawn with seeds 0 to `count`."""
    sampling = SamplingParams(**{"temperature": 1.0, **params})
    rows = [Row(sampling, seed=seed) for seed in range(count)]
    tokens = [choice.token for choice in sample(LOGITS.repeat(count, 1), rows)]
    return [tokens.count(token) / count for token in range(5)]


class TestGreedy:
    """Temperature 0 or less picks the most likely token."""

    @pytest.mark.parametrize("temperature", [0.0, -1.0])
    def test_most_likely(self, temperature):
        """The token, with its own log-probability."""
        choice = one(temperature=temperature, seed=5)
        assert choice.token == 1
        assert choice.logprob == pytest.approx(math.log(0.4), abs=1e-6)

    def test_real_model(self):
        """Log-probabilities of a real model's logits are their log-softmax."""
        for case in EXTRA["next_token_logits"]:
            logits = torch.tensor(case["logits"])
            choice = one(logits, top_logprobs=5)
            expected = torch.log_softmax(logits.double(), -1).topk(5)
            assert [token for token, _ in choice.top_logprobs] == expected.indices.tolist()
            assert [value for _, value in choice.top_logprobs] == pytest.approx(expected.values.tolist(), abs=1e-5)


class TestSampling:
    """A drawn token follows the distribution that the parameters describe."""

    def test_temperature(self):
        """Frequencies are the softmax of logits over temperature."""
        expected = torch.softmax(LOGITS / 2, -1).tolist()
        assert many(temperature=2.0) == pytest.approx(expected, abs=0.025)

    def test_truncated(self):
        """What is cut is never drawn, the rest keeps its proportions."""
        assert many(top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7, 0], abs=0.025)

    def test_tiny_temperature(self):
        """A temperature next to 0 is as good as greedy, without overflow."""
        assert one(temperature=1e-30, seed=3).token == 1

    def test_seed(self):
        """The same seed and position draw the same token; another seed or position another number."""
        assert one(temperature=1.0, seed=9, position=4) == one(temperature=1.0, seed=9, position=4)
        numbers = {uniform(seed, position) for seed in range(50) for position in range(50)}
        assert len(numbers) == 2500
        assert all(0 <= number < 1 for number in numbers)
        assert sum(numbers) / 2500 == pytest.approx(0.5, abs=0.03)

    @pytest.mark.parametrize("seed", [-1, 2**80, 0])
    def test_any_integer_is_a_seed(self, seed):
        """Negative and huge seeds work."""
        assert 0 <= uniform(seed, 7) < 1


class TestBias:
    """`logit_bias` is added to the logits."""

    def test_forced(self):
        """A forced token has logprob 0."""
        choice = one(logit_bias={0: 100.0}, top_logprobs=1)
        assert (choice.token, choice.logprob, choice.top_logprobs) == (0, 0.0, ((0, 0.0),))

    def test_allow_list(self):
        """+100 on some ids leaves the choice among them as the model would have it."""
        choice = one(logit_bias={0: 100.0, 2: 100.0}, top_logprobs=2)
        assert choice.token == 2
        assert choice.logprob == pytest.approx(math.log(2 / 3), abs=1e-4)

    @pytest.mark.parametrize("value", [1e38, 1e308, float("inf")])
    def test_huge(self, value):
        """A bias beyond float32 still only forces or forbids."""
        assert one(logit_bias={4: value}).token == 4
        assert one(logit_bias={1: -value}).token == 3


class TestPenalties:
    """Repetition, presence and frequency."""

    def test_repetition(self):
        """Divides positive and multiplies negative logits of ids in prompt or output."""
        choice = one(
            torch.tensor([2.0, -1.0, 1.5]),
            repetition_penalty=2.0,
            known_ids=[0, 1],
            top_logprobs=3,
            logprobs_mode="processed",
        )
        expected = torch.log_softmax(torch.tensor([1.0, -2.0, 1.5]), -1)
        assert dict(choice.top_logprobs) == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-6)

    def test_presence_and_frequency(self):
        """Subtracted once for each id generated, and once for each time."""
        choice = one(
            torch.zeros(3), presence_penalty=0.5, frequency_penalty=0.25, counts={0: 1, 2: 3}, top_logprobs=3,
            logprobs_mode="processed",
        )  # fmt: skip
        expected = torch.log_softmax(torch.tensor([-0.75, 0.0, -1.25]), -1)
        assert dict(choice.top_logprobs) == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-6)

    def test_barred(self):
        """A barred id is neither drawn nor listed among what could be."""
        choice = one(barred=[1], top_logprobs=5, logprobs_mode="processed")
        assert choice.token == 3
        assert {token for token, _ in choice.top_logprobs} == {0, 2, 3, 4}


SHAPED = {"temperature": 2.0, "top_k": 2, "logit_bias": {0: 5.0}, "top_logprobs": 5, "seed": 1}


class TestModes:
    """raw: the model's own. biased: after `logit_bias`. processed: what was drawn from."""

    def test_raw(self):
        """Neither bias nor temperature nor truncation change a raw logprob."""
        choice = one(**SHAPED, logprobs_mode="raw")
        assert dict(choice.top_logprobs) == pytest.approx(dict(enumerate(LOGITS.tolist())), abs=1e-6)
        assert choice.logprob == dict(choice.top_logprobs)[choice.token]

    def test_biased(self):
        """Only the bias changes a biased logprob."""
        choice = one(**SHAPED, logprobs_mode="biased")
        expected = torch.log_softmax(LOGITS + torch.tensor([5.0, 0, 0, 0, 0]), -1)
        assert dict(choice.top_logprobs) == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-6)

    def test_processed(self):
        """What was cut is left out, never -inf; the rest is normalised."""
        choice = one(**SHAPED, logprobs_mode="processed")
        expected = torch.log_softmax((LOGITS + torch.tensor([5.0, 0, 0, 0, 0]))[:2] / 2, -1)
        assert dict(choice.top_logprobs) == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-6)


class TestAlternatives:
    """The stream's own k best, plus the chosen one."""

    def test_chosen_is_added(self):
        """The chosen one comes last when it is not among the best k; with k 0 it is alone."""
        (choice,) = sample(LOGITS.clone().unsqueeze(0), [Row(target=0, top_logprobs=2)])
        assert [token for token, _ in choice.top_logprobs] == [1, 3, 0]
        assert [token for token, _ in one(top_logprobs=0).top_logprobs] == [1]

    def test_none(self):
        """None asks for no alternatives at all."""
        assert one(top_logprobs=None).top_logprobs is None

    def test_more_than_the_vocabulary(self):
        """256 of 5 ids are 5."""
        assert len(one(top_logprobs=256).top_logprobs) == 5

    def test_certain_token(self):
        """A logprob is never above 0."""
        choice = one(torch.tensor([0.0, 1e4, 0.0]), top_logprobs=1)
        assert choice.logprob == 0.0


class TestScored:
    """A scored row reports its target and nothing else changes it."""

    def test_target(self):
        """Raw log-probability of the target."""
        (choice,) = sample(LOGITS.clone().unsqueeze(0), [Row(target=2)])
        assert choice.token == 2
        assert choice.logprob == pytest.approx(math.log(0.1), abs=1e-6)

    def test_impossible_target(self):
        """An id that the model rules out altogether still gets a finite number."""
        (choice,) = sample(torch.tensor([[0.0, float("-inf")]]), [Row(target=1)])
        assert math.isfinite(choice.logprob)


class TestBrokenLogits:
    """Logits that are not numbers end their own row."""

    @pytest.mark.parametrize("bad", [[math.nan, 0, 0], [math.inf, 0, 0], [-math.inf] * 3])
    def test_only_their_row(self, bad):
        """The neighbours get their choice."""
        logits = torch.tensor([[0.0, 1.0, 2.0], bad, [0.0, 3.0, 2.0]])
        rows = [Row(), Row(SamplingParams(temperature=1.0, top_p=0.5)), Row(target=0)]
        choices = sample(logits, rows)
        assert choices[1] is None
        assert [choices[0].token, choices[2].token] == [2, 0]

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("size", [5, 5000])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_an_id_all_the_same(self, bad, size, temperature):
        """Whatever a row holds, its id is one of the vocabulary: the next step may look it up before anyone knows."""
        rows = [Row(SamplingParams(temperature=temperature, top_k=top_k), seed=7) for top_k in (0, 3)] * 2
        logits = torch.full((4, size), bad)
        logits[2:, : size // 2] = 0.0
        assert all(0 <= token < size for token in start_sampling(logits, rows).tokens.tolist())


class Unwaited(TorchFunctionMode):
    """Refuses what would wait for a GPU, on a device that has no numbers to wait for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert func is not torch.tensor or "device" not in kwargs, "a list goes to the device from unpinned memory"
        if func in {torch.Tensor.__getitem__, torch.Tensor.__setitem__}:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(part, list) for part in parts), "a list of places does, too"
        result = func(*args, **kwargs)
        moved = func is torch.Tensor.to and result.device != args[0].device
        assert not moved or kwargs.get("non_blocking"), "a copy that waits"
        return result


NEIGHBOURS = (
    Row(),
    Row(SamplingParams(temperature=1.0)),
    Row(barred=(1, 2)),
    Row(allowed=torch.zeros(188, dtype=torch.int32)),
)


class TestWaiting:
    """On a GPU nothing is read, and nothing copied that waits, before all is drawn."""

    @pytest.fixture(autouse=True)
    def _device(self, monkeypatch):
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
        monkeypatch.setattr(sampling_result, "to_host", lambda tensor: tensor)
        monkeypatch.setattr(logits_module, "_logsumexp_kernel", lambda: partial(torch.logsumexp, dim=-1))
        monkeypatch.setattr(logits_module, "apply_masks_on_gpu", lambda *_: False)  # there may be Triton without a GPU

    def begun(self, *rows):
        """Draw from logits of 6000 ids that are nowhere."""
        with Unwaited():
            return start_sampling(torch.empty(len(rows), 6000, device="meta"), rows)

    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"temperature": 1.0},
            {"temperature": 1.0, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
            {"temperature": 1.0, "top_p": 0.9},
            {"temperature": 1.0, "top_k": 400, "min_p": 0.1},
            {"temperature": 0.7, "logprobs_mode": "processed"},
            {"logit_bias": {3: 1.0}, "logprobs_mode": "raw"},
            {"repetition_penalty": 1.5, "presence_penalty": 0.5, "temperature": 0.5},
        ],
    )
    @pytest.mark.parametrize("top_logprobs", [None, 0, 1, 20])
    @pytest.mark.parametrize("neighbours", [(), NEIGHBOURS])
    def test_nothing_waits(self, params, top_logprobs, neighbours):
        """Greedy, seeded, cut by a small top-k, biased, penalised, held by a mask, alone and mixed."""
        sampling = SamplingParams(**params)
        bias = Bias.of(sampling.logit_bias, torch.device("meta"))
        row = Row(sampling, None, bias, top_logprobs, known_ids={4, 5}, counts={6: 2})
        assert len(self.begun(row, *neighbours, row, Row(target=7)).tokens) == 3 + len(neighbours)


def test_everything_barred():
    """A row that bars every id has no choice, and never a logprob that is not a number."""
    for mode in ("biased", "processed"):
        for temperature in (0.0, 1.0):
            choice = one(barred=range(5), logprobs_mode=mode, temperature=temperature)
            assert choice is None or math.isfinite(choice.logprob)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 3, 400]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    logprobs_mode=st.sampled_from(["raw", "biased", "processed"]),
)
ROWS = st.builds(
    Row,
    params=PARAMS,
    bias=st.dictionaries(st.integers(0, 599), st.floats(-9, 9), max_size=3).map(Bias.of),
    target=st.sampled_from([None, None, 17]),
    top_logprobs=st.sampled_from([None, 0, 1, 4, 30]),
    seed=st.integers(0, 99),
    barred=st.sampled_from([(), (3, 5)]),
    known_ids=st.just((1, 2, 3)),
    counts=st.just({4: 2}),
)


@given(st.lists(ROWS, min_size=1, max_size=8), st.integers(0, 1000))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_does_not_depend_on_its_neighbours(rows, seed):
    """Any mix of rows gives each of them, bit for bit, what it gives alone."""
    logits = torch.randn(len(rows), 600, generator=torch.Generator().manual_seed(seed)) * 3
    alone = [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    assert sample(logits.clone(), rows) == alone
    assert all(math.isfinite(value) and value <= 0 for c in alone for _, value in c.top_logprobs or ((0, c.logprob),))


TWO_ROWS = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]))
TOKENS = torch.tensor([1, 2])


def test_numbers():
    """Log-probabilities of the chosen ids, and as many alternatives as each row asks for."""
    found = list(row_logprobs(TWO_ROWS, [0, 1], TOKENS, [4, 7], [2, None]).read())
    assert [row for row, _, _ in found] == [4, 7]
    assert [logprob for _, logprob, _ in found] == pytest.approx([math.log(0.3), math.log(0.6)], abs=1e-6)
    assert [token for token, _ in found[0][2]] == [0, 1]
    assert found[1][2] is None


def test_choices_of_several_stages():
    """Each row's numbers may come from another stage; they are read in the order of the rows."""
    parts = [
        row_logprobs(TWO_ROWS, [1], TOKENS[1:], [1], [1]),
        row_logprobs(TWO_ROWS, [0], TOKENS[:1], [0], [0]),
    ]
    result = SamplingResult(TOKENS, torch.zeros(2), parts)
    assert result.tokens.tolist() == [1, 2]
    first, second = result.read()
    assert (first.token, second.token) == (1, 2)
    assert [token for token, _ in first.top_logprobs] == [1]
    assert second.top_logprobs == ((2, second.logprob),)


def test_a_row_that_gave_nothing():
    """Neither logits that were no numbers nor a logprob that is none make a choice."""
    broken = torch.tensor([[0.0, 1.0, 2.0], [-math.inf] * 3, [0.0, 0.0, 1.0]])
    tokens = torch.tensor([2, 0, 2])
    result = SamplingResult(
        tokens, torch.tensor([math.inf, 0.0, 0.0]), [row_logprobs(broken, [0, 1, 2], tokens, [0, 1, 2], [None] * 3)]
    )
    none, neither, choice = result.read()
    assert (none, neither) == (None, None)
    assert choice == SampledToken(2, choice.logprob, None)


def test_parts_are_small():
    """On CPU, rows are looked at as many at a time as a cache holds; each once, in order."""
    parts = list(row_chunks([5, 6, 7], torch.empty(1, 400_000)))
    assert parts == [[5], [6], [7]]
    assert list(row_chunks([5, 6, 7], torch.empty(1, 10))) == [[5, 6, 7]]


def test_random_numbers_of_many_rows():
    """Made together they are those of each row by itself, to the bit, for seeds of any size and sign."""
    seeds = [0, 1, -1, 2**53 - 1, 2**64 + 5, 2**63, 7] * 9
    positions = list(range(0, 63 * 1000, 1000))
    expected = [uniform(*pair) for pair in zip(seeds, positions, strict=True)]
    assert uniforms(seeds, positions).tolist() == expected


def test_rows_are_drawn_alike_alone_and_among_many():
    """A row's random number does not depend on how many are drawn with it."""
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(3)) * 2
    rows = [Row(SamplingParams(temperature=0.9 * (i % 3 > 0)), seed=i, position=i * 7) for i in range(40)]
    together = sample(logits.clone(), rows)
    assert together == [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]


@pytest.mark.parametrize("change", [{}, {"barred": (1, 2)}, {"target": 3}, {"logprob_ids": (4,)}, {"position": 1}])
def test_one_alternative(change):
    """It is the best of several, whether the token is that id or another; a row may name it itself."""
    logits = torch.tensor([[0.5, 2.0, 1.0, -1.0, 0.0, 2.0]])
    params = SamplingParams(temperature=5.0 * ("position" in change))
    one, several = (sample(logits.clone(), [Row(params, top_logprobs=count, **change)])[0] for count in (1, 4))
    assert (one.token, one.logprob) == (several.token, several.logprob)
    best = several.top_logprobs[0]
    assert one.top_logprobs == ((best,) if best[0] == one.token else (best, (one.token, one.logprob)))
