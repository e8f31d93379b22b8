"""The lines around the panes, and the help of the keys."""

from __future__ import annotations

import pytest

from lmtool.core.logprobs.heat import MODES
from lmtool.terminal.tui.action import Keymap
from lmtool.terminal.tui.documents import bars
from lmtool.terminal.tui.documents.bars import Status
from lmtool.terminal.tui.documents.help import MESSAGE_LINES, help_lines, keys_line, message_lines
from lmtool.terminal.tui.keymap import ACTIONS
from lmtool.terminal.tui.runs import length
from lmtool.terminal.tui.styles import ASCII, UNICODE
from lmtool.terminal.tui.view import View
from tests.terminal.tui.states import text


class TestBars:
    """The lines around the panes."""

    def test_header(self, view: View) -> None:
        """Source, model, connections, what runs, what ended, the rate, the recording, the time."""
        shown = text(bars.header(view, Status("proxy :1→:2", recording="x.jsonl 3 kB"), UNICODE, 120))
        for part in (
            "⬤ LIVE",
            "proxy :1→:2",
            "tiny",
            "1 connection ",
            "1 running · 1 done",
            "tok/s",
            "rec x.jsonl 3 kB",
            "0.900 s",
        ):
            assert part in shown
        assert length(bars.header(view, Status("proxy :1→:2"), UNICODE, 120)) == 120

    def test_header_in_trouble_and_paused(self, view: View) -> None:
        """A remote that has gone is told first; a pause tells how much it holds back."""
        assert text(bars.header(view, Status("x", "remote has gone", trouble=True), ASCII, 80)).startswith(
            " # remote has gone"
        )
        view.seek(0.45)
        assert "PAUSED +7 held back" in text(bars.header(view, Status("x"), UNICODE, 120))
        assert "PAUSED +7 " in text(bars.header(view, Status("x"), UNICODE, 60))

    @pytest.mark.parametrize("columns", [40, 50, 60, 80, 120])
    def test_header_keeps_the_time(self, view: View, columns: int) -> None:
        """Whatever there is no room for, the time stands at the right end."""
        line = bars.header(view, Status("a source with a very long name indeed"), UNICODE, columns)
        assert length(line) == columns
        assert text(line).endswith(" 0.900 s ")

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("columns", [30, 38, 50, 78])
    @pytest.mark.parametrize("attributes", [False, True])
    def test_legend_is_always_there(self, view: View, mode: str, columns: int, attributes: bool) -> None:
        """Its mode and both ends of its scale are shown at every width."""
        view.heat = mode
        line = bars.legend(view, UNICODE, columns, attributes=attributes)
        assert length(line) == columns
        assert f" {mode} " in text(line)
        assert mode == "stream" or {"heat0", "heat7"} <= {run.style for run in line}

    def test_a_narrow_legend_keeps_the_middle_of_its_scale(self, view: View) -> None:
        """As long as there are sixteen columns for the steps; then both ends only."""
        assert [("≥.3" in text(bars.legend(view, UNICODE, columns))) for columns in (22, 21)] == [True, False]

    def test_tabs(self) -> None:
        """The chosen pane has brackets; where there is little room the others are numbers."""
        names = ("Streams", "Tokens", "Token", "Frames", "Time")
        assert text(bars.tabs(names, 0, "", 60)).startswith("[1 Streams] 2 Tokens  3 Token ")
        narrow = bars.tabs(names, 2, "↓3", 40)
        assert text(narrow).startswith(" 1  2 [3 Token] 4  5 ")
        assert text(narrow).endswith("↓3")
        assert [run.target for run in narrow if run.target is not None] == [0, 1, 2, 3, 4]

    def test_peek(self, view: View) -> None:
        """The token under the cursor in one line: text, id, p, bits, rank, what else could have come."""
        view.choose_token(2)
        shown = text(bars.peek(view, UNICODE, 120))
        for part in ("' fox'", "id 8", "p .007", "7.2b", "rank 3", "' dog' .368"):
            assert part in shown

    def test_timeline(self, view: View) -> None:
        """The knob is where the moment is, marks are shown, a click means a share of the whole."""
        line = bars.timeline(view, UNICODE, 60)
        assert length(line) == 60
        assert text(line).count("●") == 1
        assert "▲" in text(line)
        view.seek(0.0)
        line = bars.timeline(view, UNICODE, 60)
        targets = [run.target for run in line if run.target is not None]
        assert targets[0] == 0
        assert targets[-1] == 1000
        assert next(run for run in line if run.text == "●").target == 0

    def test_too_small(self) -> None:
        """The size there is and the size that is needed; what is cut has a sign."""
        assert "30x8 is too small" in "".join(text(line) for line in bars.too_small(30, 8, (40, 10), 30))
        assert all(length(line) <= 7 for line in bars.too_small(7, 2, (40, 10), 7))

    def test_text_rule(self, view: View) -> None:
        """Says whose text follows."""
        assert text(bars.text_rule(view, UNICODE, 30)) == "─ text of 1/1 " + "─" * 16


class TestFooter:
    """Keys and messages at the bottom."""

    @pytest.mark.parametrize("columns", [40, 60, 80, 120, 160])
    def test_help_and_quit_are_always_there(self, columns: int) -> None:
        """However narrow it is, keys are whole, and the way to help and out is shown."""
        line = keys_line(Keymap(ACTIONS), "tokens", columns)
        assert length(line) <= columns
        assert text(line).endswith(" ? Help  q Quit ")

    def test_a_click_on_a_key_is_its_action(self) -> None:
        """The target of a run is the number of an action."""
        line = keys_line(Keymap(ACTIONS), "streams", 80)
        target = next(run.target for run in line if run.text == "Pause ")
        assert target is not None
        assert ACTIONS[target].id == "pause"

    def test_messages(self) -> None:
        """Whole words in a few lines; what is longer is cut with a sign; controls are signs."""
        assert [text(line) for line in message_lines("all is well", 40, warning=False)] == [" all is well "]
        long = message_lines("word " * 200, 40, warning=True)
        assert len(long) == MESSAGE_LINES
        assert text(long[-1]).rstrip().endswith("…")
        assert all(length(line) <= 40 for line in long)
        assert "\x1b" not in text(message_lines("\x1b[2J", 40, warning=True)[0])


class TestHelp:
    """The help of a pane."""

    @pytest.mark.parametrize("pane", ["streams", "tokens", "detail", "frames", "time"])
    def test_every_action_is_in_every_help(self, pane: str) -> None:
        """Those of the pane first, then all others, each once, with the keys of the settings."""
        shown = [text(line) for line in help_lines(Keymap(ACTIONS, {"pause": "p"}), pane, "prob")]
        for action in ACTIONS:
            assert sum(line.endswith(f"  {action.sentence}") for line in shown) == 1
        assert any(line.strip().startswith("p  stop the screen") for line in shown)

    @pytest.mark.parametrize("mode", MODES)
    def test_scale(self, mode: str) -> None:
        """All steps of the heat, from expected to surprising."""
        styles = [
            run.style
            for line in help_lines(Keymap(ACTIONS), "tokens", mode)
            for run in line
            if run.style.startswith("heat")
        ]
        assert styles == ([] if mode == "stream" else [f"heat{i}" for i in range(8)])
