"""The vocabulary of the seams."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest

from lmtool.core import types
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest, TokenOutput

SEAMS = [c for c in vars(types).values() if isinstance(c, type) and is_dataclass(c)]


@pytest.mark.parametrize("kind", SEAMS, ids=lambda c: c.__name__)
def test_what_travels_cannot_be_changed_on_the_way(kind: type) -> None:
    """Every type of the seams is frozen and slotted."""
    assert hasattr(kind, "__slots__")
    blank = kind.__new__(kind)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(blank, fields(kind)[0].name, 1)


def test_defaults_are_those_of_lmtp() -> None:
    """LMTP: 32 tokens, greedy, one alternative; SCORE without alternatives."""
    sampling = GenerateRequest(1, (5,)).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_logprobs) == (32, 0.0, 1)
    assert ScoreRequest(1, (5,), (6,)).top_logprobs is None
    assert SamplingParams() == sampling


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (TokenOutput(1, token=5), False),
        (TokenOutput(1, token=5, finish_reason="length"), True),
        (TokenOutput(1, finish_reason="cancelled"), True),
        (TokenOutput(1, error="no"), True),
    ],
)
def test_a_stream_ends_with_a_reason_or_an_error(output: TokenOutput, last: bool) -> None:
    """The last event of a stream has `finish_reason` or `error`."""
    assert output.last is last


def test_needs_the_standard_library_only() -> None:
    """Whoever speaks the vocabulary imports nothing else."""
    code = (
        "import sys, lmtool.core.types\n"
        "print(any(m.split('.')[0] in ('msgspec', 'torch', 'asyncio') for m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
