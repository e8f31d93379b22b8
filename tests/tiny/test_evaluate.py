"""What the shipped model can do, and the judge that says so."""

from __future__ import annotations

import re

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from lmtool.tiny.evaluate import FIRST_PROMPTS, Case, Category, Result, categories, judge
from lmtool.tiny.path import MODEL_DIR
from lmtool.tiny.train import replies

NAMES = [category.name for category in categories()]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """How the shipped model does, in float32, each question asked once."""
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    assert model.dtype == torch.float32
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    judged = judge(categories(), lambda texts: replies(model, tokenizer, texts))
    return {result.category.name: result for result in judged}


@pytest.mark.parametrize("name", NAMES)
def test_shipped_model_reaches_its_threshold(name: str, results: dict[str, Result]) -> None:
    """The embedded model answers enough of each category well."""
    assert results[name].passed, f"{results[name].share:.1%}: {results[name].failures[:5]}"


def test_no_first_sum_is_wrong(results: dict[str, Result]) -> None:
    """Whoever tries a sum first gets the right result or a refusal, never a wrong number."""
    wrong = [said for text, said in results["first prompts"].failures if re.search(r"\d [-+*] \d+ = ", said)]
    assert not wrong


def test_there_are_fifty_first_prompts() -> None:
    """Fifty first prompts, and forty-five of them have to be answered well."""
    first = next(category for category in categories() if category.name == "first prompts")
    assert len(FIRST_PROMPTS) == len(first.cases) == 50
    assert first.needed == 0.9


def test_judge_gives_each_category_its_answers() -> None:
    """Answers are dealt out in the order of the questions."""
    small = [
        Category("a", (Case("1", "1".__eq__), Case("2", "2".__eq__)), 1.0),
        Category("b", (Case("3", "x".__eq__), Case("4", "4".__eq__)), 0.5),
    ]
    first, second = judge(small, list)
    assert (first.share, first.passed) == (1.0, True)
    assert (second.share, second.passed, second.failures) == (0.5, True, (("3", "3"),))


def test_questions_are_always_the_same() -> None:
    """Two calls give the same questions."""
    assert [[case.text for case in one.cases] for one in categories()] == [
        [case.text for case in one.cases] for one in categories()
    ]
