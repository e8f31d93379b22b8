"""Numbers of a range."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.xgrammar.notation import Rules
from lmtool.guide.xgrammar.numbers import INTEGER, NUMBER, decimals, integers
from tests.guide.xgrammar.reading import matches

BOUND = st.none() | st.integers(-1200, 1200)


def is_one(expression: str | None, text: str) -> bool:
    return expression is not None and matches(Rules().written(expression), text)


@given(BOUND, BOUND, st.integers(-13000, 13000))
def test_integers(least: int | None, most: int | None, value: int) -> None:
    """Exactly the numbers between the bounds, both with them, each written in one way."""
    inside = (least is None or value >= least) and (most is None or value <= most)
    expression = integers(least, most)
    assert is_one(expression, str(value)) == inside
    assert not is_one(expression, f"0{value}")


@given(BOUND, BOUND, st.integers(0, 3), st.integers(-12000, 12000))
def test_decimals(least: int | None, most: int | None, places: int, scaled: int) -> None:
    """The same with a point: bounds of hundredths, values with as many places as asked for."""
    low, high = (None if bound is None else Fraction(bound, 100) for bound in (least, most))
    value = Fraction(scaled, 10**places)
    inside = (low is None or value >= low) and (high is None or value <= high)
    digits = f"{abs(scaled):0{places + 1}}"
    text = ("-" if scaled < 0 else "") + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)
    assert is_one(decimals(low, high, places), text) == inside


def test_without_bounds() -> None:
    """JSON's own numbers: no leading zeros, no bare point, exponents of two digits at most."""
    assert all(is_one(INTEGER, text) for text in ("0", "-1", "120"))
    assert not any(is_one(INTEGER, text) for text in ("01", "1.0", "+1", "-"))
    assert all(is_one(NUMBER, text) for text in ("0.5", "-1e10", "1E+2", "12"))
    assert not any(is_one(NUMBER, text) for text in (".5", "1.", "1e100", "1e"))
