"""Rows of a batch that are held, over real guides and tensors."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from lmtool import constraint
from lmtool.cli.vllm.held import HeldRow, HeldRows, arguments, processors_of
from lmtool.cli.vllm.told import Step
from lmtool.errors import RequestError
from lmtool.guide.compiler import MatcherCompiler
from lmtool.tiny.path import MODEL_DIR

torch = pytest.importorskip("torch")

SIZE = 1600


class Heard:
    """The other end of a `Teller`, which hears at once, or is not there."""

    def __init__(self, *, there: bool = True) -> None:
        self.there = there
        self.steps: list[Step] = []

    def tell(self, steps: list[Step]) -> bool:
        self.steps += steps
        return self.there


@pytest.fixture(scope="module")
def tokenizer():
    from lmtool.text.tokenizer import load_tokenizer

    return load_tokenizer(str(MODEL_DIR))


@pytest.fixture(scope="module")
def eos() -> int:
    told = json.loads(Path(MODEL_DIR, "config.json").read_text())["eos_token_id"]
    return told[0] if isinstance(told, list) else told


@pytest.fixture(scope="module")
def guides(tokenizer, eos):
    compiler = MatcherCompiler(tokenizer.to_json(), SIZE, [eos])
    yield compiler
    compiler.close()


def generate(held: HeldRows, guides, eos: int, outputs: dict[int, list[int]], steps: int = 40) -> None:
    """Draw greedily from random logits, as vLLM would, until every row has ended."""
    torch.manual_seed(1)
    going = set(outputs)
    for _ in range(steps):
        logits = torch.randn(max(outputs) + 1, SIZE)
        held.apply(logits, guides)
        for index in sorted(going):
            token = int(logits[index].argmax())
            outputs[index].append(token)
            if token == eos:
                going.discard(index)
                held.rows.pop(index, None)


def test_rows_keep_to_their_own_constraints(guides, tokenizer, eos):
    """Each follows its own ids; a row that is not held stays as it was; what was told is the step's true numbers."""
    heard = Heard()
    held = HeldRows(SIZE, [eos], heard)  # type: ignore[arg-type]  # hears in this process
    patterns = {0: r"[0-9]{5}", 2: r"(ab|cd)+x"}
    outputs: dict[int, list[int]] = {index: [] for index in patterns}
    for index, pattern in patterns.items():
        guide = guides.compile(constraint.regex(pattern)).result()
        held.rows[index] = HeldRow(str(index), outputs[index], guide, bias={5: 3.0}, best=2)
    logits = torch.randn(3, SIZE)
    raw, first = logits.clone(), logits.clone()
    first[:, 5] += 3.0
    held.apply(first, guides)
    assert torch.equal(first[1][6:], raw[1][6:])
    for step, index in zip(heard.steps, patterns, strict=True):
        best = torch.log_softmax(first[index], -1)
        token = int(best.argmax())
        assert step.shift == pytest.approx(float(best[token] - torch.log_softmax(raw[index], -1)[token]), abs=1e-4)
        assert [one for one, _ in step.best] == best.topk(2).indices.tolist()
        assert (step.name, step.place, step.error) == (str(index), 0, ())
    generate(held, guides, eos, outputs)
    for index, pattern in patterns.items():
        assert outputs[index][-1] == eos
        assert re.fullmatch(pattern, tokenizer.decode(outputs[index]))


def test_eos_waits_for_min_tokens_but_not_for_what_cannot_go_on(guides, eos):
    """And `ignore_eos` goes on as long as the constraint lets it."""
    held = HeldRows(SIZE, [eos], None)
    rows = {"b*": HeldRow("a", [], min_tokens=5), "b{2,4}": HeldRow("b", [], ignore_eos=True)}
    for index, (pattern, row) in enumerate(rows.items()):
        row.guide = guides.compile(constraint.regex(pattern)).result()
        held.rows[index] = row
    generate(held, guides, eos, {index: row.output for index, row in held.rows.items()}, 400)  # type: ignore[misc]
    assert rows["b*"].output.index(eos) >= 5
    assert 1 <= rows["b{2,4}"].output.index(eos) <= 4


def test_an_id_not_known_yet_is_waited_for(guides, tokenizer, eos):
    """VLLM plans a step ahead and writes -1 meanwhile."""
    row = HeldRow("a", [-1], guides.compile(constraint.regex("[0-9]+")).result())
    row.follow()
    assert row.followed == 0
    row.output[0] = tokenizer.encode("7", special=False)[0]  # type: ignore[index]  # a list here
    row.follow()
    assert (row.followed, row.error()) == (1, None)


def test_an_error_ends_its_own_row(guides, tokenizer, eos):
    """Only eos is left to it, and the worker is told why; so it is when the worker cannot be told."""
    heard = Heard()
    held = HeldRows(SIZE, [eos], heard)  # type: ignore[arg-type]  # as above
    wrong = tokenizer.encode("z", special=False)[0]
    held.rows[0] = HeldRow("a", [wrong], guides.compile(constraint.regex("[0-9]+")).result())
    held.rows[1] = HeldRow("b", [], guides.compile(constraint.regex("[0-9]+")).result())
    logits = torch.zeros(2, SIZE)
    held.apply(logits, guides)
    assert [index for index in range(SIZE) if logits[0, index] > -math.inf] == [eos]
    assert int((logits[1] > -math.inf).sum()) > 5
    assert "does not allow" in heard.steps[0].error[1]
    assert heard.steps[1].error == ()
    heard.there = False
    held.apply(torch.zeros(2, SIZE), guides)
    assert "could not be told" in str(held.rows[1].error())


def test_what_travels_through_vllm():
    """Everything that a row is made from."""
    told = arguments("n", constraint="{}", processors=[], min_tokens=3, stop_ids=(5,), ignore_eos=True, best=None)
    assert json.loads(told) == {
        "name": "n", "constraint": "{}", "processors": [], "min_tokens": 3, "stop_ids": [5], "ignore_eos": True,
        "best": None,
    }  # fmt: skip
    assert processors_of([]) is None
    with pytest.raises(RequestError):
        processors_of([{"name": "there is none such"}])
