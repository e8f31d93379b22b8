"""A setting and the option that sets it, in one statement: a dataclass field with its default, help and range."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """What the command line needs to know of a setting beside its name, type and default."""

    help: str
    panel: str | None = None
    """Under which heading `--help` shows it; None: that of the command's own."""
    metavar: str | None = None
    """Placeholder of the value in `--help`, such as `SECONDS`; None for a flag."""
    flag: str | None = None
    """Its spelling, such as `--from`, where that is not the name of its field."""
    short: str | None = None
    """A second spelling of one letter, such as `-p`."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    """All that a text may be; empty: any."""
    shown_default: str | None = None
    """What `--help` gives as the default where None stands for something that is decided later; empty: nothing."""
    hidden: bool = False
    """True if `--help` leaves it out."""
    count: bool = False
    """True if its value is how often it was typed."""


def option(default: Any, text: str, panel: str | None = None, **more: Any) -> Any:  # noqa: ANN401 # as `field` is
    """A dataclass field, or the default of a command's parameter, that is an option.

    text: its help, one sentence; more: further fields of `Option`.
    """
    return field(default=default, metadata={_KEY: Option(text, panel, **more)})


def option_of(default: object) -> Option | None:
    """What `option` said of a field or of a parameter, by its default; None where it is no option."""
    return default.metadata.get(_KEY) if isinstance(default, Field) else None


def options_of(config: type) -> Mapping[str, Option]:
    """The options of a dataclass by the names of its fields, in their order."""
    return {each.name: found for each in fields(config) if (found := option_of(each)) is not None}


def check_options(config: object) -> None:
    """Raise `UsageError` for a value outside its option's choices or range; None is always allowed."""
    for name, each in options_of(type(config)).items():
        value = getattr(config, name)
        if value is None:
            continue
        if each.choices and value not in each.choices:
            raise UsageError(f"{name} {value!r} is not known; expected {', '.join(each.choices)}")
        low, high = each.minimum, each.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            span = f"from {low} to {high}" if high is not None else f"from {low} on"
            raise UsageError(f"{name} is {value}; expected a number {span}")
