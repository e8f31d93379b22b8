"""A setting and its option, said once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from lmtool.core.errors import UsageError
from lmtool.settings.option import check_options, option, options_of


@dataclass(frozen=True, slots=True)
class Oven:
    """A configuration."""

    model: str = "gas"
    heat: int | None = option(None, "Degrees.", "Kitchen", metavar="N", minimum=50, maximum=250)
    programme: str = option("bake", "What it does.", "Kitchen", choices=("bake", "grill"))
    minutes: float = option(0.0, "How long.", "Kitchen", minimum=0)


def test_a_field_has_its_default_and_its_option() -> None:
    """The dataclass is one like any other; its options are in the order of its fields, others have none."""
    assert Oven() == Oven("gas", None, "bake", 0.0)
    assert list(options_of(Oven)) == ["heat", "programme", "minutes"]
    assert (options_of(Oven)["heat"].help, options_of(Oven)["heat"].metavar) == ("Degrees.", "N")
    assert [field.default for field in fields(Oven)] == ["gas", None, "bake", 0.0]


@pytest.mark.parametrize(
    ("oven", "message"),
    [
        (Oven(heat=49), "heat is 49; expected a number from 50 to 250"),
        (Oven(heat=251), "heat is 251; expected a number from 50 to 250"),
        (Oven(minutes=-1.0), "minutes is -1.0; expected a number from 0 on"),
        (Oven(programme="boil"), "programme 'boil' is not known; expected bake, grill"),
    ],
)
def test_a_value_outside_is_refused(oven: Oven, message: str) -> None:
    """The sentence names the setting, the value and what it may be."""
    with pytest.raises(UsageError) as refused:
        check_options(oven)
    assert refused.value.message == message


def test_the_ends_of_a_range_and_none_are_allowed() -> None:
    """None stands for something that is decided later."""
    for heat in (None, 50, 250):
        check_options(Oven(heat=heat, minutes=0.0))
