"""Strings and numbers of a JSON Schema, in xgrammar's notation."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

from lmtool.guide.schema.document import UnsupportedError
from lmtool.guide.xgrammar import notation
from lmtool.guide.xgrammar.formats import PATTERNS
from lmtool.guide.xgrammar.json_rules import literal
from lmtool.guide.xgrammar.matching import found_in_json
from lmtool.guide.xgrammar.numbers import INTEGER, NUMBER, decimals, integers
from lmtool.guide.xgrammar.pattern import PatternError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.guide.xgrammar.json_rules import JsonRules

_MAX_MULTIPLES = 2000
_MAX_PLACES = 12
_LARGEST = 10**18
_QUOTE = notation.text('"')


def string(node: Mapping[str, object], rules: JsonRules) -> str | None:
    """Return the expression of a node's strings. Raises `UnsupportedError`."""
    matched = [keyword for keyword in ("pattern", "format") if keyword in node]
    least, most = count(node, "minLength") or 0, count(node, "maxLength")
    if least == 0 and most is None:
        if not matched:
            return rules.string
        if len(matched) == 1:
            return notation.sequence([_QUOTE, _pattern(node, matched[0]), _QUOTE])
        raise UnsupportedError("format", "beside pattern is not supported")
    if matched:
        length = "minLength" if least else "maxLength"
        raise UnsupportedError(length, f"beside {matched[0]} is not supported")
    return notation.sequence([_QUOTE, notation.repeated(rules.character, least, most), _QUOTE])


def _pattern(node: Mapping[str, object], keyword: str) -> str | None:
    given = node[keyword]
    pattern = PATTERNS.get(str(given)) if keyword == "format" else given
    if not isinstance(pattern, str):
        raise UnsupportedError(keyword, f"{given!r:.60} is not known")
    try:
        return found_in_json(pattern)
    except PatternError as problem:
        raise UnsupportedError(keyword, f"{pattern!r:.60} has {problem}, which is not supported") from None


def integer(node: Mapping[str, object]) -> str | None:
    """Return the expression of a node's whole numbers. Raises `UnsupportedError`."""
    least, most = _bounds(node, 1)
    low, high = None if least is None else ceil(least), None if most is None else floor(most)
    step = _number(node, "multipleOf")
    if step not in {None, 1}:
        return _multiples(low, high, step)
    return INTEGER if low is None and high is None else integers(low, high)


def _multiples(low: int | None, high: int | None, step: Fraction | None) -> str | None:
    if low is None or high is None or high - low > _MAX_MULTIPLES:
        raise UnsupportedError("multipleOf", f"is supported between a minimum and a maximum {_MAX_MULTIPLES} apart")
    return notation.choice([literal(value) for value in range(low, high + 1) if step and value % step == 0])


def number(node: Mapping[str, object]) -> str | None:
    """Return the expression of a node's numbers. Raises `UnsupportedError`.

    Those with a bound are written with a fixed number of digits behind the point: see `narrowed`.
    """
    if "multipleOf" in node:
        raise UnsupportedError("multipleOf", "is supported for integers only")
    if not node.keys() & _BOUNDS:
        return NUMBER
    places = _places(node)
    return notation.choice([integer(node), decimals(*_bounds(node, 10**places), places)])


def narrowed(node: Mapping[str, object]) -> str | None:
    """Return in which way fewer numbers than a node's are written, if so."""
    if not node.keys() & _BOUNDS:
        return None
    return f"numbers with a bound are whole or have {_places(node)} digits behind the point"


_BOUNDS = frozenset({"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"})


def _places(node: Mapping[str, object]) -> int:
    """How many digits behind the point tell numbers within the bounds apart from the bounds."""
    exponents = [Decimal(str(node[name])).as_tuple().exponent for name in _BOUNDS if _number(node, name) is not None]
    places = max(2, *(-exponent for exponent in exponents if isinstance(exponent, int)))
    if places > _MAX_PLACES:
        raise UnsupportedError("minimum", f"and the like with more than {_MAX_PLACES} digits are not supported")
    return places


def _bounds(node: Mapping[str, object], unit: int) -> tuple[Fraction | None, Fraction | None]:
    """The least and the most that a number may be. unit: one over the step between the numbers that are written."""
    low, high = _number(node, "minimum"), _number(node, "maximum")
    above, below = _number(node, "exclusiveMinimum"), _number(node, "exclusiveMaximum")
    lows = [low, None if above is None else Fraction(floor(above * unit) + 1, unit)]
    highs = [high, None if below is None else Fraction(ceil(below * unit) - 1, unit)]
    least, most = ([bound for bound in bounds if bound is not None] for bounds in (lows, highs))
    return max(least, default=None), min(most, default=None)


def _number(node: Mapping[str, object], keyword: str) -> Fraction | None:
    value = node.get(keyword)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError(keyword, f"is {value!r:.60}, which is no number")
    if abs(value) > _LARGEST:
        raise UnsupportedError(keyword, f"beyond {_LARGEST} is not supported")
    return Fraction(str(value))


def count(node: Mapping[str, object], keyword: str) -> int | None:
    """Return a keyword's count, or None where it is absent. Raises `UnsupportedError` for what is none."""
    value = _number(node, keyword)
    if value is None:
        return None
    if value % 1 or value < 0:
        raise UnsupportedError(keyword, f"is {value}, which is no count")
    return int(value)
