"""Options whose value may be left out."""

from __future__ import annotations

import pytest

from lmtool.cli.main import OPTIONAL_VALUES, complete_values
from lmtool.core.errors import UsageError
from lmtool.terminal.chat.heat import MODES


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["chat", "Hi", "--heat"], ["chat", "Hi", "--heat=prob"]),
        (["chat", "Hi", "--heat", "--stats"], ["chat", "Hi", "--heat=prob", "--stats"]),
        (["chat", "--heat", "Hello there"], ["chat", "--heat=prob", "Hello there"]),
        (["chat", "Hi", "--heat", "max_tokens=5"], ["chat", "Hi", "--heat=prob", "max_tokens=5"]),
        (["chat", "--heat", "rank", "Hi"], ["chat", "--heat", "rank", "Hi"]),
        (["chat", "--heat=rank", "Hi"], ["chat", "--heat=rank", "Hi"]),
        (["chat", "--heat", "--", "rank"], ["chat", "--heat=prob", "--", "rank"]),
        (["chat", "--", "--heat"], ["chat", "--", "--heat"]),
        ([], []),
    ],
)
def test_value_left_out(words: list[str], completed: list[str]) -> None:
    """An option alone gets its first value; a prompt behind it stays the prompt."""
    assert complete_values(words) == completed


@pytest.mark.parametrize("words", [["chat", "Hi", "--heat", "rainbow"], ["score", "--heat", "rainbow", "a b", "c"]])
def test_a_word_that_is_no_value(words: list[str]) -> None:
    """It is refused, and not taken for a part of the prompt."""
    with pytest.raises(UsageError, match="--heat rainbow: expected one of prob"):
        complete_values(words)


def test_values_are_the_modes() -> None:
    """The possible values of `--heat` are the modes of heat."""
    assert OPTIONAL_VALUES["--heat"] == MODES
