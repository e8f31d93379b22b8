"""Options whose value may be left out."""

from __future__ import annotations

import pytest

from lmtool.cli.arguments import OPTIONAL, complete
from lmtool.cli.talking.heat import MODES


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["chat", "Hi", "--heat"], ["chat", "Hi", "--heat=prob"]),
        (["chat", "Hi", "--heat", "--stats"], ["chat", "Hi", "--heat=prob", "--stats"]),
        (["chat", "--heat", "Hello there"], ["chat", "--heat=prob", "Hello there"]),
        (["chat", "--heat", "rank", "Hi"], ["chat", "--heat", "rank", "Hi"]),
        (["chat", "--heat=rank", "Hi"], ["chat", "--heat=rank", "Hi"]),
        (["chat", "--heat", "--", "rank"], ["chat", "--heat=prob", "--", "rank"]),
        (["chat", "--", "--heat"], ["chat", "--", "--heat"]),
        ([], []),
    ],
)
def test_value_left_out(words: list[str], completed: list[str]) -> None:
    """An option alone gets its first value; a prompt behind it stays the prompt."""
    assert complete(words) == completed


def test_values_are_the_modes() -> None:
    """The possible values of `--heat` are the modes of heat."""
    assert OPTIONAL["--heat"] == MODES
