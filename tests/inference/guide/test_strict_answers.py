"""Random schemas, strict, to their ends: no finished answer is invalid. A slice of `strict_run`, and a harder one."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError, LmtoolError
from tests.inference.guide import awkward
from tests.inference.guide.schema_maker import Maker
from tests.inference.guide.strict_run import problem_of, run


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_any_tokens(first):
    """Whatever is drawn, also from tokens that hold whole names and halves of escapes, is valid once it has ended."""
    backend = awkward.backend()
    walker, came = awkward.Walker(backend), Counter()
    for number in range(first, first + 100):
        schema, rng = Maker(number).schema(), random.Random(number)
        try:
            template = backend.compile(constraint.json_schema(schema, any_whitespace=rng.random() < 0.2))
        except LmtoolError:
            came["refused"] += 1
            continue
        try:
            text = walker.walk(template, rng)
        except ConstraintError:  # only what no text matches, which is found out late
            came["failed"] += 1
            continue
        came["cut" if text is None else "ended"] += 1
        assert text is None or problem_of(schema, text.decode()) is None, (number, schema, text)
    backend.close()
    assert came["ended"] > 40
    assert came["failed"] < 2


async def test_a_model():
    """What the embedded model writes at temperature 1 is valid, and no more schemas are refused than need be."""
    figures = await run(150)
    assert figures.invalid == []
    assert not figures.failed
    assert figures.endings["stop"] > 40  # texts differ between processors, by the last digits of logits
    assert figures.taken >= 75
