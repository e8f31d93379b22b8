"""The help of a pane."""

from __future__ import annotations

import pytest

from lmtool.tui.documents.help import help_lines
from lmtool.tui.heat import MODES
from lmtool.tui.keys import ACTIONS, Keys
from tests.tui.documents.watched import text


@pytest.mark.parametrize("pane", ["streams", "tokens", "detail", "frames", "time"])
def test_every_action_is_in_every_help(pane: str) -> None:
    """Those of the pane first, then all others, each once, with the keys of the settings."""
    shown = [text(line) for line in help_lines(Keys({"pause": "p"}), pane, "prob")]
    for action in ACTIONS:
        assert sum(line.endswith(f"  {action.sentence}") for line in shown) == 1
    assert any(line.strip().startswith("p  stop the screen") for line in shown)


@pytest.mark.parametrize("mode", MODES)
def test_scale(mode: str) -> None:
    """All steps of the heat, from expected to surprising."""
    styles = [run.style for line in help_lines(Keys(), "tokens", mode) for run in line if run.style.startswith("heat")]
    assert styles == ([] if mode == "stream" else [f"heat{i}" for i in range(8)])
