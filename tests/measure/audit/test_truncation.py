"""What parameters do to a distribution: which of two explanations fits."""

from __future__ import annotations

import math

import pytest

from lmtool.measure.audit.evidence import Token
from lmtool.measure.audit.truncation import cut_of, read_constraint, read_penalty, read_temperature, read_truncation

PLAIN = {"a": 0.4, "b": 0.3, "c": 0.1, "d": 0.05}
TOLERANCE = 0.05


def token(probabilities: dict[str, float]) -> Token:
    """A token with these alternatives, the best one chosen."""
    pairs = tuple((name, math.log(one)) for name, one in probabilities.items())
    return Token(*max(pairs, key=lambda one: one[1]), pairs)


def powered(power: float) -> dict[str, float]:
    """The distribution at a temperature of `1 / power`."""
    total = sum(one**power for one in PLAIN.values()) + 0.15**power
    return {name: one**power / total for name, one in PLAIN.items()}


def test_temperature() -> None:
    """Unchanged is raw, tempered is processed, anything between is neither."""
    plain = token(PLAIN)
    assert read_temperature(plain, plain, 0.5, TOLERANCE).kind == "raw"
    assert read_temperature(plain, token(powered(2)), 0.5, TOLERANCE).kind == "processed"
    neither = read_temperature(plain, token(powered(1.5)), 0.5, TOLERANCE)
    assert (neither.kind, neither.fits(TOLERANCE)) == (None, False)
    flat = token(dict.fromkeys("abcd", 0.2))
    assert read_temperature(flat, flat, 0.5, TOLERANCE).kind is None
    assert read_temperature(flat, flat, 0.5, TOLERANCE).fits(TOLERANCE)


def test_truncation() -> None:
    """A cut leaves the best tokens at its widest gap; processed logprobs are those of what is left."""
    plain = token(PLAIN)
    cut = cut_of(plain)
    assert cut is not None
    assert (cut.survivors, cut.count, cut.mass) == ({"a", "b"}, 2, pytest.approx(0.7))
    assert 0.4 < cut.top_p < 0.7
    assert 0.1 / 0.4 < cut.min_p < 0.3 / 0.4
    assert read_truncation(plain, plain, cut, TOLERANCE).kind == "raw"
    assert read_truncation(plain, token({"a": 4 / 7, "b": 3 / 7}), cut, TOLERANCE).kind == "processed"
    assert not read_truncation(plain, token({"a": 0.5, "b": 0.35, "c": 0.1}), cut, TOLERANCE).fits(TOLERANCE)
    assert cut_of(Token("a", -1.0, (("a", -1.0), ("", -2.0)))) is None  # a name that hides a token
    assert cut_of(Token("a", -1.0, (("a", -1.0),))) is None


def test_penalty() -> None:
    """Raw ones stay, processed ones fall for the tokens that are penalized, by as much and no more."""
    plain = token(PLAIN)
    assert read_penalty(plain, plain, {"a": 1.0}, TOLERANCE).kind == "raw"
    weights = {**PLAIN, "a": 0.4 / math.e}
    shown = token({name: one / (sum(weights.values()) + 0.15) for name, one in weights.items()})
    assert read_penalty(plain, shown, {"a": 1.0}, TOLERANCE).kind == "processed"
    assert not read_penalty(plain, shown, {"a": 2.0}, TOLERANCE).fits(TOLERANCE)


def test_constraint() -> None:
    """What is allowed becomes likelier by one factor, or nothing changes; it never becomes less likely."""
    free = token(PLAIN)
    assert read_constraint(free, free, TOLERANCE).kind == "raw"
    assert read_constraint(free, token({"b": 0.75, "c": 0.25}), TOLERANCE).kind == "processed"
    assert not read_constraint(free, token({"b": 0.15, "c": 0.05}), TOLERANCE).fits(TOLERANCE)
