"""No constraint stops the process, stalls it, or takes longer than its time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from lmtool.core.errors import ConstraintError, OverloadedError
from lmtool.inference.guide.compiler import MatcherCompiler
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, WORDS
from tests.inference.guide.hostile import CASES

STEPS = 20


@pytest.fixture(scope="module")
def shared():
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS)
    yield compiler
    compiler.close()


@pytest.mark.parametrize("name", CASES)
def test_refused_or_followed(shared, name):
    """Each is refused with a sentence or followed; compiling ends within its deadline, and so does each step."""
    started = time.monotonic()
    try:
        guide = shared.compile(CASES[name]()).result(30)
    except (ConstraintError, OverloadedError) as problem:
        told = str(problem)
    else:
        told = _follow(shared, guide)
    assert len(told) < 600
    assert time.monotonic() - started < 60


def _follow(shared, guide):
    mask = np.zeros((1, WORDS), np.int32)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        shared.fill([(guide, 0)], mask)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB].nonzero()[0]
        assert len(allowed)
        further = [token for token in allowed if token not in EOS]
        if guide.error() is not None or not further:
            break
        guide.advance(int(rng.choice(further)))
        guide.forced()
    return str(guide.error())
