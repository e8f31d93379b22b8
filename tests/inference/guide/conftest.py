"""A compiler over the embedded model's vocabulary, and ways to follow what it makes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.guide.llguidance import ConstraintBackend
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB


@pytest.fixture(scope="session")
def backend() -> Iterator[ConstraintBackend]:
    """ConstraintBackend for the embedded model's tokenizer."""
    made = ConstraintBackend(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


@pytest.fixture
def compiler() -> Iterator[MatcherCompiler]:
    """A compiler of its own for each test."""
    made = MatcherCompiler(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()
