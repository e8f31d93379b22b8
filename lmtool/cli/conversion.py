"""Command line words to plain values, without loading pydantic for it.

typer converts every argument through pydantic, whose import is most of a short command's start-up: 150 of 270 ms of
CPU for `lmtool chat` when this was written (typer 0.29.2). The types that our options have are converted here instead;
any other type, or a typer that works differently inside, is left to typer.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption

TRUE = {"1", "true", "t", "yes", "y", "on"}
FALSE = {"0", "false", "f", "no", "n", "off"}


@dataclass(frozen=True, slots=True)
class PlainParam:
    """Converts the values of one parameter; takes the place of typer's own converter."""

    convert: Callable[[Any], Any]
    """Makes the value from a word; raises `ValueError` with what was expected."""
    minimum: float | None
    maximum: float | None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the converted value, or the tuple of them for a parameter that may be repeated."""
        if param.multiple or param.nargs == -1:
            values = value if isinstance(value, list | tuple) else [] if value is None else [value]
            return [self._one(v, param, ctx) for v in values]
        return None if value is None else self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            converted = self.convert(value)
        except ValueError as error:
            raise typer.BadParameter(f"{value!r} is not {error}.", ctx=ctx, param=param) from None
        if self.minimum is not None and converted < self.minimum:
            raise typer.BadParameter(f"{value} is less than {self.minimum}.", ctx=ctx, param=param)
        if self.maximum is not None and converted > self.maximum:
            raise typer.BadParameter(f"{value} is more than {self.maximum}.", ctx=ctx, param=param)
        return converted


def convert_plainly() -> None:
    """From now on convert parameters of plain type with `PlainParam`, the others as typer does.

    typer has no public way to choose the converter, so its parameter classes are given another method; where a later
    typer has no such method, nothing changes but the time.
    """
    for kind in (TyperOption, TyperArgument):
        original = getattr(kind, "get_runtime_param", None)
        if original is not None:
            kind.get_runtime_param = functools.partialmethod(_runtime_param, original)  # type: ignore[method-assign, assignment] # see above


def _runtime_param(param: Any, original: Callable[[Any], Any]) -> Any:
    convert = converter(param.type_descriptor.annotation)
    if convert is None:
        return original(param)
    return PlainParam(convert, getattr(param, "min", None), getattr(param, "max", None))


def converter(annotation: Any) -> Callable[[Any], Any] | None:
    """Return the conversion for an annotation, or None for a type that is left to typer."""
    if get_origin(annotation) is list:
        return converter(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return _choice(get_args(annotation))
    plain: dict[Any, Callable[[Any], Any]] = {str: _text, int: _integer, float: _number, bool: _truth}
    return plain.get(annotation)


# Settings files give numbers, lists and tables where a command line gives words.


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")  # noqa: TRY004 - what was expected is said in one way
    return value


def _integer(value: Any) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return int(value)
    raise ValueError("a whole number")


def _number(value: Any) -> float:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError("a number")  # noqa: TRY004 - as above
    try:
        number = float(value)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def _truth(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in TRUE | FALSE:
        return word in TRUE
    raise ValueError("true or false")


def _choice(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    def choose(value: Any) -> Any:
        if value in choices:
            return value
        raise ValueError(f"one of {', '.join(map(str, choices))}")

    return choose
