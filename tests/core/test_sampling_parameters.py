"""The table of sampling parameters against what it describes."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.sampling_parameters import NUMERIC_PARAMETERS, PARAMETER_HELP, Range, wrong_value
from lmtool.core.types import SamplingParams

FIELDS = {field.name: getattr(SamplingParams(), field.name) for field in fields(SamplingParams)}
NUMBERS = [name for name, value in FIELDS.items() if name == "seed" or type(value) in {int, float}]


class TestTable:
    """One row for each field of `SamplingParams`."""

    def test_every_field_has_its_row(self) -> None:
        """The numbers have ranges, in the order of the fields; every field has its sentence."""
        assert list(NUMERIC_PARAMETERS) == NUMBERS
        assert PARAMETER_HELP.keys() == FIELDS.keys()
        assert all(sentence.endswith(".") for sentence in PARAMETER_HELP.values())

    @pytest.mark.parametrize("name", NUMBERS)
    def test_ranges_agree(self, name: str) -> None:
        """Every interface accepts LMTP's default; what a person may type fits an engine and LMTP."""
        row, default = NUMERIC_PARAMETERS[name], FIELDS[name]
        ranges = (row.engine, row.lmtp, row.openai, row.anthropic, row.prompt)
        assert default is None or all(default in allowed for allowed in ranges)
        assert len({allowed.integer for allowed in ranges}) == 1
        for bound in (row.prompt.high, row.prompt.low if not row.prompt.above else row.prompt.high / 2):
            assert bound in row.engine
            assert bound in row.lmtp


class TestRange:
    """Which numbers are within a range, and how it reads."""

    @pytest.mark.parametrize(
        ("allowed", "within", "outside", "sentence"),
        [
            (Range(0, 2, integer=True), [0, 2], [-1, 3, 1.0, True, "1", None], "a whole number from 0 to 2"),
            (Range(0, 1), [0, 0.5, 1], [-0.1, 1.1, math.nan, False], "a number from 0 to 1"),
            (Range(0, 1, above=True), [1e-9, 1], [0, 1.5], "a number above 0, at most 1"),
            (Range(0, above=True), [1e-9, 1e300], [0, -1, math.inf], "a number above 0"),
            (Range(), [-1e300, 0], [math.inf, -math.inf, math.nan], "a finite number"),
        ],
    )
    def test_members_and_words(self, allowed: Range, within: list[Any], outside: list[Any], sentence: str) -> None:
        """Bounds are included unless `above`; no range holds a boolean or a number that is not finite."""
        assert all(value in allowed for value in within)
        assert not any(value in allowed for value in outside)
        assert str(allowed) == sentence

    @given(
        st.sampled_from([Range(0, 1), Range(0, 1, above=True), Range(0, above=True), Range(-2, 2), Range()]),
        st.floats(),
    )
    def test_msgspec_bounds_agree(self, allowed: Range, value: float) -> None:
        """`meta` accepts the same finite numbers (JSON has no others)."""
        if math.isfinite(value):
            try:
                msgspec.convert(value, Annotated[float, allowed.meta])
            except msgspec.ValidationError:
                assert value not in allowed
            else:
                assert value in allowed


def test_one_wording() -> None:
    """An error names the parameter, its value, and what was expected."""
    assert wrong_value("top_p", 2, Range(0, 1)) == "top_p is 2; expected a number from 0 to 1"
