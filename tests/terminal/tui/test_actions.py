"""The table of actions, the keys, and what they do to files and sources."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import ConnectError, UsageError
from lmtool.terminal.tui.action import Keymap, key_label
from lmtool.terminal.tui.documents.document import ListDocument
from lmtool.terminal.tui.keymap import ACTIONS
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.runs import Run
from tests.terminal.tui.scripted import tokens, watching

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.terminal.tui.actions.context import ActionContext


def keymap(changes: Mapping[str, str] | None = None) -> Keymap[ActionContext]:
    """The table's keys with these changes."""
    return Keymap(ACTIONS, changes)


def action(keys: Keymap[ActionContext], key: str, character: str | None) -> str | None:
    """Id of the action of a pressed key."""
    found = keys.action(key, character)
    return None if found is None else found.id


class TestTable:
    """The table of actions and its changes by settings."""

    def test_every_action_has_keys_of_its_own(self) -> None:
        """No key does two things, and no action is without a key."""
        counts = Counter(key for one in ACTIONS for key in one.keys)
        assert counts.most_common(1)[0][1] == 1
        assert len({one.id for one in ACTIONS}) == len(ACTIONS)
        for one in ACTIONS:
            assert one.keys

    def test_keys_that_terminals_cannot_tell_apart_are_not_used(self) -> None:
        """Nor those that tmux, flow control and job control take; alt is unreliable."""
        used = {key for one in ACTIONS for key in one.keys}
        assert not used & {"ctrl+b", "ctrl+s", "ctrl+z", "ctrl+h", "ctrl+i", "ctrl+m"}
        assert not [key for key in used if key.startswith("alt+")]

    def test_a_changed_key(self) -> None:
        """It is taken from the action that had it; the old one is free."""
        keys = keymap({"pause": "p, n"})
        assert action(keys, "p", "p") == action(keys, "n", "n") == "pause"
        assert action(keys, "space", " ") is None
        assert keys.signs("pause") == "p n"
        assert keys.sign("surprising") == ""

    def test_characters_and_names(self) -> None:
        """A key is known by what it types or by its name; the case of a letter counts."""
        keys = keymap()
        assert action(keys, "question_mark", "?") == "help"
        assert action(keys, "left_square_bracket", "[") == "frame_back"
        assert action(keys, "upper_n", "N") == "surprising_back"
        assert action(keys, "space", " ") == "pause"
        assert action(keys, "f9", None) is None
        assert action(keymap({"pause": ","}), "comma", ",") == "pause"
        assert (key_label("ctrl+p"), key_label("escape"), key_label("x")) == ("^p", "esc", "x")

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"puase": "p"}, "no action 'puase'"),
            ({"pause": "p", "heat": "p"}, "'p' is given to 'pause' and to 'heat'"),
            ({"quit": ""}, "no key is left for 'quit'"),
        ],
    )
    def test_changes_that_make_no_sense(self, changes: dict[str, str], said: str) -> None:
        """Are refused, with what is possible."""
        with pytest.raises(UsageError) as caught:
            keymap(changes)
        assert said in caught.value.message
        assert caught.value.hints

    @pytest.mark.parametrize("pane", ["streams", "tokens", "detail", "frames", "time"])
    def test_the_line_of_a_pane(self, pane: str) -> None:
        """Begins with pause, has no action twice, and ends with quit."""
        ids = [one.id for one in keymap().footer(pane)]
        assert ids[0] == "pause"
        assert ids[-1] == "quit"
        assert len(set(ids)) == len(ids)
        assert keymap().of_pane(pane)


class TestMessages:
    """What every action works with."""

    async def test_messages(self) -> None:
        """A message stands in place of the keys, at most in three lines; one that stays is gone with the next key."""
        async with watching() as seen:
            seen.app.say("word " * 100, warning=True, stays=True)
            await seen.settle()
            assert seen.rows()[-3].startswith(" word word")
            assert seen.rows()[-1].endswith("…")
            await seen.press("j")
            assert seen.rows()[-1].endswith("q Quit")
            seen.app.say("soon gone")
            await seen.settle()
            assert seen.rows()[-1] == " soon gone"

    async def test_reading_calls_back(self) -> None:
        """The line that enter was pressed on is told; nothing is told for esc."""
        async with watching() as seen:
            chosen: list[int] = []
            document = ListDocument([[Run("a", "", 7)]], cursor=">")
            seen.app.read("One", document, chosen.append)
            await seen.settle()
            await seen.press("escape")
            seen.app.read("One", document, chosen.append)
            await seen.settle()
            await seen.press("enter")
            assert chosen == [7]


class TestExports:
    """Keys that keep something, and leaving."""

    async def test_record(self, tmp_path: Path) -> None:
        """R records into a file of its own name, the header says so, and r again stops it."""
        async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
            await seen.press("r")
            (path,) = tmp_path.glob("lmtool-inspect-*.lmtp.jsonl")
            assert f"rec {path.name}"[:20] in seen.text()
            await seen.press("r")
            await seen.settle()
            assert "recorded 3 events, 2 tokens" in seen.text()
            assert seen.source.recording is None

    async def test_a_recording_begins_with_what_runs(self, tmp_path: Path) -> None:
        """The stream that runs comes first as a whole; what is over is left out."""
        async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
            await seen.press("r")
            assert [type(event).__name__ for event in seen.source.history] == ["Frame"] * 4
            assert seen.source.history[0].time == 0.3
            (recorded,) = {event.wire().split('"stream_id": ')[1][0] for event in seen.source.history}
            assert recorded == "2"

    async def test_record_from_the_start(self, tmp_path: Path) -> None:
        """`record` begins a recording before the first event."""
        path = tmp_path / "a.lmtp.jsonl"
        async with watching(options=InspectorOptions(record=path)) as seen:
            assert "rec a.lmtp.jsonl 1.2 kB" in seen.text()

    async def test_snapshot(self, tmp_path: Path) -> None:
        """S writes an SVG and tells its path; no font comes from the network."""
        async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
            await seen.press("s", "s")
            pictures = [path.read_text() for path in tmp_path.glob("lmtool-inspect-*.svg")]
            assert len(pictures) == 2
            assert "<svg" in pictures[0]
            assert "cdnjs" not in pictures[0]
        async with watching(options=InspectorOptions(folder=tmp_path / "away")) as seen:
            await seen.press("s")
            assert "cannot write" in seen.text()

    async def test_export(self, tmp_path: Path) -> None:
        """E offers forms and writes the stream under the cursor in the one that is chosen."""
        async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
            await seen.press("e")
            assert "Export stream 1/1" in seen.text()
            await seen.press("j", "enter")
            assert "wrote" in seen.text()
            (path,) = tmp_path.glob("*.csv")
            assert " fox" in path.read_text()
            await seen.press("e", "escape")
            assert len(list(tmp_path.iterdir())) == 1

    async def test_copy(self) -> None:
        """Y copies the text of the stream, the token, or the frame, by the pane."""
        async with watching() as seen:
            await seen.press("y")
            assert seen.app.clipboard == " the fox🙂\n."
            await seen.press("2", "g", "y")
            assert seen.app.clipboard == " the"
            await seen.press("4", "y")
            assert seen.app.clipboard.startswith("TOKEN [")

    async def test_keys_that_quit(self) -> None:
        """q, ctrl+c and ctrl+q leave with 0."""
        for key in ("q", "ctrl+c", "ctrl+q"):
            async with watching() as seen:
                await seen.pilot.press(key)
                await seen.pilot.pause()
                assert seen.app.return_value == 0

    async def test_ctrl_c_quits_from_every_screen(self) -> None:
        """Also while something is asked or read."""
        for key in ("slash", "question_mark", "ctrl+p"):
            async with watching() as seen:
                await seen.press(key)
                await seen.pilot.press("ctrl+c")
                await seen.pilot.pause()
                assert seen.app.return_value == 0


class TestSource:
    """How sources end and come back."""

    async def test_a_server_that_comes_back(self) -> None:
        """After a request was taken again the header is live again, and the source is watched as before."""
        async with watching() as seen:
            seen.source.end(ConnectError("gone"))
            await seen.settle()
            assert "remote has gone" in seen.text()
            seen.source.end(None)
            await seen.press("i", *"again", "enter")
            await seen.settle()
            assert "remote has gone" not in seen.text()
            assert len(seen.source.requests) == 1
            seen.source.push([tokens(9.0, (2, 7, -0.1))])
            await seen.settle()
            assert seen.app.view.state.now == 9.0
