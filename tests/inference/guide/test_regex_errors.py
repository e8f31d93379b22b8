"""What of a regular expression is not supported, in words, and where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.llguidance import ConstraintBackend
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB


@pytest.fixture(scope="module")
def backend() -> Iterator[ConstraintBackend]:
    """For the embedded model's tokenizer."""
    made = ConstraintBackend(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(?<=b)c", "look-ahead and look-behind are not supported, at character 2: (?<=b)c"),
        (r"(a)\1", r"back-references are not supported, at character 4: \1"),
        (r"a\bc", r"supported at the ends only, at character 2: \bc"),
        ("[$]a$b", "supported at the ends only, at character 5: $b"),
    ],
)
def test_the_place_in_an_expression(backend: ConstraintBackend, pattern: str, why: str) -> None:
    """Characters are counted from 1."""
    with pytest.raises(ConstraintError) as raised:
        backend.compile(constraint.regex(pattern))
    assert raised.value.message.endswith(why)
    assert raised.value.hints
