"""Keys and messages at the bottom."""

from __future__ import annotations

import pytest

from lmtool.tui.documents.footer import MOST, action_at, keys_line, message_lines
from lmtool.tui.keys import Keys
from lmtool.tui.runs import length
from tests.tui.documents.watched import text


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 160])
def test_help_and_quit_are_always_there(columns: int) -> None:
    """However narrow it is, keys are whole, and the way to help and out is shown."""
    line = keys_line(Keys(), "tokens", columns)
    assert length(line) <= columns
    assert text(line).endswith(" ? Help  q Quit ")


def test_a_click_on_a_key_is_its_action() -> None:
    """The target of a run is the number of an action."""
    line = keys_line(Keys(), "streams", 80)
    target = next(run.target for run in line if run.text == "Pause ")
    assert target is not None
    assert action_at(target) == "pause"


def test_messages() -> None:
    """Whole words in a few lines; what is longer is cut with a sign; controls are signs."""
    assert [text(line) for line in message_lines("all is well", 40, warning=False)] == [" all is well "]
    long = message_lines("word " * 200, 40, warning=True)
    assert len(long) == MOST
    assert text(long[-1]).rstrip().endswith("…")
    assert all(length(line) <= 40 for line in long)
    assert "\x1b" not in text(message_lines("\x1b[2J", 40, warning=True)[0])
