"""Command line words to plain values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import typer

from lmtool.cli.app import convert, is_plain


@pytest.mark.parametrize(
    ("annotation", "word", "value"),
    [
        (str, "a b", "a b"),
        (int, "12", 12),
        (int, "-1", -1),
        (float, "1e-3", 0.001),
        (bool, "Yes", True),
        (bool, "0", False),
        (Literal["raw", "biased"], "raw", "raw"),
        (list[int], "7", 7),
    ],
)
def test_plain_types_are_converted(annotation: Any, word: str, value: object) -> None:
    """Each type that our options have becomes the value a person means."""
    assert is_plain(annotation)
    assert convert(annotation, word) == value
    assert type(convert(annotation, word)) is type(value)


@pytest.mark.parametrize(
    ("annotation", "word", "expected"),
    [
        (int, "1.5", "a whole number"),
        (float, "warm", "a number"),
        (bool, "maybe", "true or false"),
        (Literal["raw", "biased"], "rwa", "one of raw, biased"),
        (float, "nan", "a finite number"),
        (float, "-inf", "a finite number"),
        (float, [1.0], "a number"),
        (float, True, "a number"),
        (int, 1.5, "a whole number"),
        (int, True, "a whole number"),
        (int, [1], "a whole number"),
        (str, 5, "a text"),
        (list[str], 5, "a text"),
    ],
)
def test_error_names_the_expected_kind(annotation: Any, word: object, expected: str) -> None:
    """The message says what a value of this type looks like; settings files have more than words."""
    with pytest.raises(ValueError, match=expected):
        convert(annotation, word)


def test_other_types_are_left_to_typer() -> None:
    """A type we do not know is converted as typer would."""
    assert not is_plain(Path)
    assert not is_plain(dict[str, int])


PROBE = """
import sys
from typing import Annotated
import typer
from lmtool.cli.app import convert_without_pydantic
convert_without_pydantic()
def probe(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    n: Annotated[int, typer.Option(min=1, max=9)] = 3,
    o: Annotated[list[str] | None, typer.Option("-o")] = None,
    flag: bool = False,
) -> None:
    print(words, n, o, flag, "pydantic" in sys.modules)
app = typer.Typer(rich_markup_mode=None)
app.command()(probe)
app()
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 0, "None 3 None False False"),
        (["a", "b", "--n", "4", "-o", "x=1", "-o", "y", "--flag"], 0, "['a', 'b'] 4 ['x=1', 'y'] True False"),
        (["--n", "0"], 2, "less than 1"),
        (["--n", "10"], 2, "more than 9"),
        (["--n", "x"], 2, "a whole number"),
    ],
)
def test_a_whole_command_needs_no_pydantic(words: list[str], status: int, said: str) -> None:
    """Arguments, repeated options, ranges and flags work as typer's own, without loading pydantic."""
    result = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert said in result.stdout + result.stderr


def test_bad_parameter_is_a_usage_error() -> None:
    """What typer raises for a bad value carries exit status 2."""
    assert typer.BadParameter.exit_code == 2
