"""Constraints inside vLLM's engine: compiled by the extension, applied to rows of a batch by the processor."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lmtool.core import constraint
from lmtool.core.constraint import written
from lmtool.core.types import GenerateRequest, NamedProcessor, SamplingParams
from lmtool.inference.backends.vllm import engine_guides
from lmtool.inference.backends.vllm.engine_guides import (
    BatchState,
    GuideExtension,
    RowState,
    compile_constraint,
    guide_compiler,
)
from lmtool.inference.backends.vllm.model import processor_arguments
from lmtool.inference.backends.vllm.shared_directory import KEY, EngineSettings, StepReport
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR

torch = pytest.importorskip("torch")

SIZE = 1600


class Recorder:
    """In place of a `StepSender`: records reports, or is not there."""

    def __init__(self, *, there: bool = True) -> None:
        self.there = there
        self.reports: list[StepReport] = []

    def send(self, reports: list[StepReport]) -> bool:
        self.reports += reports
        return self.there


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(MODEL_DIR))


@pytest.fixture(scope="module")
def eos() -> int:
    ids = json.loads(Path(MODEL_DIR, "config.json").read_text())["eos_token_id"]
    return ids[0] if isinstance(ids, list) else ids


@pytest.fixture(scope="module")
def guides(tokenizer, eos):
    compiler = MatcherCompiler(tokenizer.to_json(), SIZE, [eos])
    yield compiler
    compiler.close()


def generate(batch: BatchState, guides, eos: int, outputs: dict[int, list[int]], steps: int = 40) -> None:
    """Sample greedily from random logits, as vLLM would, until every row has ended."""
    torch.manual_seed(1)
    running = set(outputs)
    for _ in range(steps):
        logits = torch.randn(max(outputs) + 1, SIZE)
        batch.apply(logits, guides)
        for index in sorted(running):
            token = int(logits[index].argmax())
            outputs[index].append(token)
            if token == eos:
                running.discard(index)
                batch.rows.pop(index, None)


def test_rows_keep_to_their_own_constraints(guides, tokenizer, eos):
    """Each follows its own ids, other rows are left alone, and the reports have the step's true logprobs."""
    recorder = Recorder()
    batch = BatchState(SIZE, [eos], recorder)  # type: ignore[arg-type]  # records in this process
    patterns = {0: r"[0-9]{5}", 2: r"(ab|cd)+x"}
    outputs: dict[int, list[int]] = {index: [] for index in patterns}
    for index, pattern in patterns.items():
        guide = guides.compile(constraint.regex(pattern)).result()
        batch.rows[index] = RowState(str(index), outputs[index], guide, bias={5: 3.0}, top_logprobs=2)
    logits = torch.randn(3, SIZE)
    raw, first = logits.clone(), logits.clone()
    first[:, 5] += 3.0
    batch.apply(first, guides)
    assert torch.equal(first[1][6:], raw[1][6:])
    for report, index in zip(recorder.reports, patterns, strict=True):
        best = torch.log_softmax(first[index], -1)
        token = int(best.argmax())
        expected = float(best[token] - torch.log_softmax(raw[index], -1)[token])
        assert report.logprob_shift == pytest.approx(expected, abs=1e-4)
        assert [one for one, _ in report.top_logprobs] == best.topk(2).indices.tolist()
        assert (report.request_id, report.token_index, report.error) == (str(index), 0, ())
    generate(batch, guides, eos, outputs)
    for index, pattern in patterns.items():
        assert outputs[index][-1] == eos
        assert re.fullmatch(pattern, tokenizer.decode(outputs[index]))


def test_eos_waits_for_min_tokens_unless_nothing_else_can_follow(guides, eos):
    """And `ignore_eos` goes on as long as the constraint lets it."""
    batch = BatchState(SIZE, [eos], None)
    rows = {"b*": RowState("a", [], min_tokens=5), "b{2,4}": RowState("b", [], ignore_eos=True)}
    for index, (pattern, row) in enumerate(rows.items()):
        row.guide = guides.compile(constraint.regex(pattern)).result()
        batch.rows[index] = row
    generate(batch, guides, eos, {index: row.output for index, row in batch.rows.items()}, 400)  # type: ignore[misc]
    assert rows["b*"].output.index(eos) >= 5
    assert 1 <= rows["b{2,4}"].output.index(eos) <= 4


def test_a_guide_waits_for_an_unknown_id(guides, tokenizer, eos):
    """VLLM plans a step ahead and writes -1 meanwhile."""
    row = RowState("a", [-1], guides.compile(constraint.regex("[0-9]+")).result())
    row.advance_guide()
    assert row.guide_position == 0
    row.output[0] = tokenizer.encode("7", special=False)[0]  # type: ignore[index]  # a list here
    row.advance_guide()
    assert (row.guide_position, row.error()) == (1, None)


def test_rows_behind_the_logits_are_left_alone(guides, eos):
    """VLLM's batch may have more rows than a step computes."""
    batch = BatchState(SIZE, [eos], None)
    for index in (0, 1):
        batch.rows[index] = RowState(str(index), [], guides.compile(constraint.regex("[0-9]")).result())
    logits = torch.zeros(1, SIZE)
    batch.apply(logits, guides)
    assert 0 < int((logits[0] > -math.inf).sum()) < SIZE


def test_an_error_ends_its_own_row(guides, tokenizer, eos):
    """It may only end, and the report has the reason; a report that cannot be sent ends its streams, too."""
    recorder = Recorder()
    batch = BatchState(SIZE, [eos], recorder)  # type: ignore[arg-type]  # as above
    wrong = tokenizer.encode("z", special=False)[0]
    batch.rows[0] = RowState("a", [wrong], guides.compile(constraint.regex("[0-9]+")).result())
    batch.rows[1] = RowState("b", [], guides.compile(constraint.regex("[0-9]+")).result())
    logits = torch.zeros(2, SIZE)
    batch.apply(logits, guides)
    assert [index for index in range(SIZE) if logits[0, index] > -math.inf] == [eos]
    assert int((logits[1] > -math.inf).sum()) > 5
    assert "is not allowed by the constraint" in recorder.reports[0].error[1]
    assert recorder.reports[1].error == ()
    recorder.there = False
    batch.apply(torch.zeros(2, SIZE), guides)
    assert "could not be sent" in str(batch.rows[1].error())


@pytest.fixture
def worker():
    """VLLM's worker with our methods, as our worker describes the model to it."""
    worker = GuideExtension()
    worker.lmtool_describe(EngineSettings(1600, (1,), load_tokenizer(str(MODEL_DIR)).to_json()).to_json())
    yield worker
    compiler = guide_compiler()
    if compiler is not None:
        compiler.close()
    guide_compiler.cache_clear()


def compile_remotely(worker, rule):
    """Call until there is an outcome."""
    text = json.dumps(written(rule))
    while (answer := worker.lmtool_compile(text)) is None:
        engine_guides._pending[text].exception(30)  # instead of polling, as a worker does
    return answer


def test_outcomes(worker):
    """Warnings of a good one, code and message of a bad one; then nothing is pending."""
    assert compile_remotely(worker, constraint.regex("[0-9]+")) == {"warnings": []}
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert compile_remotely(worker, constraint.json_schema(unique, strict=False))["warnings"]
    code, message, *_ = compile_remotely(worker, constraint.json_schema(unique))["error"]
    assert code == "invalid_constraint"
    assert "uniqueItems" in message
    assert engine_guides._pending == {}


def test_a_compiled_constraint_is_cached_for_the_rows(worker):
    """At once, a fresh guide each."""
    rule = constraint.regex("[0-9]+")
    compile_remotely(worker, rule)
    first, second = (compile_constraint(json.dumps(written(rule))) for _ in range(2))
    assert first.done()
    assert first.result() is not second.result()


def test_a_model_without_a_tokenizer():
    """Has no structured output."""
    GuideExtension().lmtool_describe(EngineSettings(9, (1,), None).to_json())
    assert "needs a tokenizer" in str(compile_constraint("{}").exception())
    guide_compiler.cache_clear()


@pytest.fixture
def processor(worker, tmp_path, monkeypatch):
    """Our processor over a stub of vLLM's base class."""
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("vllm.v1.sample.logits_processor")
    module.LogitsProcessor = object
    module.process_dict_updates = lambda rows, update, make: rows.update({i: make(*one) for i, one in update.items()})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "lmtool.inference.backends.vllm.processor", raising=False)
    from lmtool.inference.backends.vllm.processor import GuideProcessor

    yield GuideProcessor(SimpleNamespace(additional_config={KEY: str(tmp_path)}), None, False)
    sys.modules.pop("lmtool.inference.backends.vllm.processor", None)


class TestProcessor:
    """Rows are made from what a request carries through vLLM."""

    def test_a_request_becomes_a_row(self, processor, plugin):
        """With its constraint compiled, its processors made, and its parameters."""
        params = SamplingParams(min_tokens=4, ignore_eos=True, stop_token_ids=(9,), logit_bias={3: 1.0}, top_logprobs=5)
        named = (NamedProcessor("louder", {"ids": [7]}),)
        request = GenerateRequest("a", (1,), params, constraint=constraint.regex("a+"), logits_processors=named)
        carried = SimpleNamespace(logit_bias={3: 1.0}, **processor_arguments(request, "n"))
        output = []
        row = processor._row(carried, None, output)
        assert (row.request_id, row.min_tokens, row.stop_ids, row.ignore_eos) == ("n", 4, [9], True)
        assert (row.bias, row.top_logprobs, row.error()) == ({3: 1.0}, 5, None)
        assert row.output is output
        assert row.guide is not None
        assert row.processors is not None

    def test_a_bad_one_fails_alone(self, processor):
        """As an error of its row; a request without either has no row."""
        request = GenerateRequest("a", (1,), logits_processors=(NamedProcessor("there is none such"),))
        row = processor._row(SimpleNamespace(logit_bias=None, **processor_arguments(request, "n")), None, [])
        assert "there is none such" in str(row.error())
        assert processor._row(SimpleNamespace(extra_args=None), None, []) is None

    def test_a_row_that_was_given_up(self, processor, plugin):
        """Comes back with its ids: its processors go on behind them, or end the stream where they cannot."""

        def made(name, output):
            request = GenerateRequest("a", (1,), logits_processors=(NamedProcessor(name),))
            return processor._row(SimpleNamespace(logit_bias=None, **processor_arguments(request, "n")), None, output)

        ids, fresh, back = [4, 7], torch.zeros(SIZE), torch.zeros(SIZE)
        row = made("walk", [])
        row.processors.apply([], torch.zeros(SIZE))
        row.processors.apply(ids[:1], torch.zeros(SIZE))
        row.processors.apply(ids, fresh)
        made("walk", ids).processors.apply(ids, back)
        assert fresh.tolist() == back.tolist()
        assert made("forget", []).error() is None
        assert "forget cannot go on" in str(made("forget", ids).error())

    def test_a_batch(self, processor, monkeypatch):
        """Nothing changes while vLLM warms up; then rows are masked, and their steps reported to the worker."""
        logits = torch.zeros(1, SIZE)
        processor.update_state(None)
        assert int((processor.apply(logits) > -math.inf).sum()) == SIZE
        assert processor.is_argmax_invariant() is False
        module = sys.modules["lmtool.inference.backends.vllm.processor"]
        monkeypatch.setattr(module, "_first_rank", lambda: False)
        request = GenerateRequest("a", (1,), constraint=constraint.regex("[0-9]"))
        carried = SimpleNamespace(logit_bias=None, **processor_arguments(request, "n"))
        processor.update_state({0: (carried, None, [])})
        assert 0 < int((processor.apply(logits) > -math.inf).sum()) < SIZE
