"""`?` and `:`: every action and every word of the screen, found by typing, run with a value."""

from __future__ import annotations

import os
import shlex
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.cli.app import build_whole
from lmtool.cli.inspect import _source_words
from lmtool.terminal.tui.action import Keymap
from lmtool.terminal.tui.app import TIPS, InspectorApp, next_tip, tips_file
from lmtool.terminal.tui.documents.help import (
    WORDS,
    ActionList,
    Entry,
    entries,
    fit_score,
    matching,
    split_value,
    words_of,
)
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.keymap import ACTIONS
from lmtool.terminal.tui.options import InspectorOptions, SourceOptions
from lmtool.terminal.tui.runs import length
from tests.terminal.tui.scripted import Scripted, Watched, watching
from tests.terminal.tui.states import rows

if TYPE_CHECKING:
    from lmtool.terminal.tui.actions.context import ActionContext

KEYS: Keymap[ActionContext] = Keymap(ACTIONS)
RECORDING = Path(__file__).parents[3] / "recordings/alternatives.lmtp.jsonl"
PANES = ("streams", "tokens", "detail", "frames", "time")


def listed(pane: str = "streams") -> list[Entry]:
    """All entries, with a command line for one of them, and one that cannot be done."""
    return entries(
        KEYS,
        pane,
        lambda action: "lmtool inspect --heat prob" if action.id == "heat" else "",
        lambda action: "a file answers nothing" if action.id == "branch" else "",
    )


def best(query: str, pane: str = "streams") -> Entry:
    """What a query finds first."""
    return matching(listed(pane), KEYS, query)[0]


class TestList:
    """What is listed, and what is found."""

    @pytest.mark.parametrize("pane", PANES)
    def test_everything_is_listed(self, pane: str) -> None:
        """Every action but the list itself, and every word, once each, those of the pane first."""
        shown = listed(pane)
        assert sorted(one.id for one in shown if one.id) == sorted(
            one.id for one in ACTIONS if one.id not in ("help", "palette")
        )
        assert sorted(one.name for one in shown if not one.id) == sorted(word.name for word in WORDS)
        assert [one.here for one in shown] == sorted((one.here for one in shown), reverse=True)
        assert {one.name for one in shown if one.here and not one.id} == {word.name for word in words_of(pane)}

    @pytest.mark.parametrize(
        ("query", "name"),
        [
            ("fork", "branch"), ("diff", "compare"), ("screenshot", "snapshot"), ("grep", "filter"), ("color", "heat"),
            ("save html", "export"), ("ncrtn", "least_likely"), ("next surprising", "surprising"), ("reroll", "branch"),
            ("clipboard", "copy"), ("go to second", "seek"), ("theme", "theme"), ("json", "raw"), ("exit", "quit"),
        ],
    )  # fmt: skip
    def test_actions_are_found(self, query: str, name: str) -> None:
        """By other people's words, by parts of words, by letters in order."""
        assert best(query).id == name

    @pytest.mark.parametrize("word", [word.name for word in WORDS])
    def test_words_are_found(self, word: str) -> None:
        """Every word of the screen is among the first five that its name finds, an explanation with it."""
        assert word in [one.name for one in matching(listed(), KEYS, word)[:5] if not one.id and one.sentence]

    def test_every_action_is_found_by_its_own_words(self) -> None:
        """By its name and its sentence it comes first."""
        for one in listed():
            assert matching(listed(), KEYS, f"{one.sentence} {one.name}")[0].sentence == one.sentence

    def test_nothing(self) -> None:
        """What has no match is a sentence."""
        assert matching(listed(), KEYS, "zzzz") == []
        assert "fewer find more" in rows(ActionList([], "Streams", ">"), 60)[0]

    def test_a_value(self) -> None:
        """A name and a value find that action alone; so do an option and a whole command line."""
        for text in ("heat entropy", "--heat entropy", "--heat=entropy", "lmtool inspect a.jsonl --heat entropy"):
            found = matching(listed(), KEYS, text)
            assert [(one.id, one.value) for one in found] == [("heat", "entropy")]
        assert split_value("--filter p<.1 | err") == ("--filter", "p<.1 | err")
        assert [one.id for one in matching(listed(), KEYS, "pause now")][:1] != ["heat"]

    @pytest.mark.parametrize("columns", [40, 56, 74, 116, 150])
    def test_lines(self, columns: int) -> None:
        """At every width nothing is cut: keys, names, sentences, commands and reasons are there."""
        document = ActionList(listed(), "Streams", ">")
        lines = [document.line(y, columns) for y in range(document.height(columns))]
        assert max(map(length, lines)) <= columns
        whole = " ".join(" ".join(rows(document, columns)).split())
        for one in ACTIONS:
            if one.id not in ("help", "palette"):
                assert one.short in whole
                assert " ".join(one.sentence.split()) in whole
        for part in ("$ lmtool inspect --heat prob", "not now: a file answers nothing", ": filter EXPR"):
            assert part in whole

    def test_the_cursor(self) -> None:
        """It goes over entries, not lines, stays within them, and all of its entry is in sight."""
        document = ActionList(listed(), "Streams", ">")
        document.height(56)
        document.move(1)
        assert document.current is not None
        anchor = document.anchor(56)
        assert anchor is not None
        assert document.line(anchor, 56)[0].target == 1
        document.move(10**6)
        assert document.anchor(56) == document.height(56) - 1
        document.move(-(10**6))
        assert document.anchor(56) == 0
        document.click(3)
        assert document.current == listed()[3]


class TestFuzzy:
    """How well words fit."""

    def test_order(self) -> None:
        """A whole word before a beginning, that before an inside, that before scattered letters; 0 for no match."""
        scores = [fit_score("mark", (text,)) for text in ("a mark", "marked", "bookmarks", "m a r k")]
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) == 4
        assert fit_score("mark x", ("a mark",)) == 0
        assert fit_score("", ("a",)) == 0

    def test_texts_count_less_and_less(self) -> None:
        """The same word in a name counts more than in a sentence; scattered letters count in a name only."""
        assert fit_score("mark", ("mark", "")) > fit_score("mark", ("", "mark"))
        assert fit_score("mrk", ("mark", "")) > fit_score("mrk", ("", "mark")) == 0


class TestScreen:
    """The list on the screen."""

    @pytest.mark.parametrize(
        ("size", "key"),
        [((160, 45), "question_mark"), ((80, 24), "colon"), ((60, 20), "question_mark"), ((40, 10), "ctrl+p")],
    )
    async def test_find_and_run(self, size: tuple[int, int], key: str) -> None:
        """Typing finds an action, enter runs it, at every size; its key stands beside it."""
        async with watching(size=size) as seen:
            await seen.press(key, *"uncert")
            assert any("u Uncertain" in row for row in seen.rows())
            await seen.press("enter")
            assert seen.app.screen is seen.app.main
            assert seen.app.view.token == 2

    async def test_closing(self) -> None:
        """Esc closes it, and so does the key that opened it."""
        async with watching() as seen:
            for keys in (("question_mark", "escape"), ("question_mark", "question_mark"), ("colon", "colon")):
                await seen.press(*keys)
                assert seen.app.screen is seen.app.main

    async def test_moving(self) -> None:
        """Arrows and pages move the cursor; a click runs."""
        async with watching() as seen:
            await seen.press("question_mark", "down", "down", "up", "pagedown", "pageup", "enter")
            assert seen.app.view.stream == 1  # the second entry is a row down
            await seen.press("question_mark", *"follow")
            await seen.pilot.click(seen.app.screen.query_one("#reading-pane"), offset=(6, 0))
            await seen.settle()
            assert seen.app.view.followed_stream is not None

    async def test_a_word(self) -> None:
        """Enter on a word says what it means where messages stand."""
        async with watching() as seen:
            await seen.press("question_mark", *"p99", "enter")
            assert "p99: the gap between frames" in seen.text()

    async def test_a_click_on_a_column_explains_it(self) -> None:
        """The name over a column of the table, at the place where it stands."""
        async with watching() as seen:
            place = seen.rows()[2].index("ppl")
            await seen.pilot.click("#streams", offset=(place, 1))
            await seen.settle()
            assert "ppl: perplexity" in seen.text()
            assert seen.app.view.stream == 0

    async def test_values(self) -> None:
        """`name value` does it with that value; an option and the beginning of a choice are enough."""
        async with watching() as seen:
            for line in ("heat entropy", "--view text", "palette green", "threshold 6", "at 0.5"):
                await seen.press("colon", *[{" ": "space"}.get(c, c) for c in line], "enter")
            view = seen.app.view
            looks = (view.heat, view.mode, view.palette, view.threshold, view.moment)
            assert looks == ("entropy", "text", "green-red", 6.0, 0.5)

    async def test_filter_theme_prompt_and_files(self, tmp_path: Path) -> None:
        """Filters, themes, prompts and names of files are taken as they are typed."""
        async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
            app = seen.app
            app.do_with(app.keys.by_id("filter"), "p<.1")
            assert list(app.view.token_rows()) == [2]
            app.do_with(app.keys.by_id("theme"), "nord")
            assert app.theme == "nord"
            app.do_with(app.keys.by_id("export"), "a.csv")
            app.do_with(app.keys.by_id("snapshot"), "a.svg")
            app.do_with(app.keys.by_id("record"), "a.lmtp.jsonl")
            assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.lmtp.jsonl", "a.svg"]
            app.do_with(app.keys.by_id("prompt"), "Who max_tokens=5")
            await seen.settle()
            assert (seen.source.requests[0].prompt, seen.source.requests[0].sampling.max_tokens) == ("Who", 5)
            app.do_with(app.keys.by_id("score"), "a => b")
            await seen.settle()
            assert len(seen.source.scores) == 1

    async def test_values_that_make_no_sense(self, tmp_path: Path) -> None:
        """Are refused with what is possible; nothing changes."""
        async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
            for name, value, sentence in (
                ("heat", "warm", "'warm' is not known"),
                ("filter", "p<", "p<"),
                ("seek", "soon", "'soon' is no number"),
                ("seek", "-1", "no number from 0"),
                ("seek", "inf", "no number"),
                ("export", "a.doc", "no ending"),
                ("snapshot", "no/a.svg", "cannot write"),
                ("theme", "neon", "possible:"),
                ("mode", "", "is not known"),
                ("faster", "2", "has a speed of its own"),
                ("prompt", "x temperature=-3", "temperature"),
            ):
                seen.app.say("")
                seen.app.do_with(seen.app.keys.by_id(name), value)
                assert seen.app.message is not None
                assert sentence in seen.app.message[0]
                assert seen.app.message[1]
            assert (seen.app.view.moment, seen.app.view.heat, seen.app.view.filter) == (None, "prob", None)
            assert not list(tmp_path.iterdir())
            assert not seen.source.requests

    async def test_go_to(self) -> None:
        """@ asks for a second."""
        async with watching() as seen:
            await seen.press("@", *"x")
            assert "is no number" in seen.text()
            await seen.press("backspace", *"0.5", "enter")
            assert seen.app.view.moment == 0.5


class TestCommandLines:
    """The equivalent command line of an action."""

    @pytest.mark.parametrize("live", [False, True])
    async def test_they_are_command_lines(self, live: bool) -> None:
        """Each that is shown names a command and options that there are, and the source that is watched."""
        if live:
            async with watching(options=InspectorOptions(source_words=("--proxy", ":8081", "--to", ":8080"))) as seen:
                self._check(seen.app, "--proxy :8081 --to :8080", least=10)
            return
        lines = TraceFile(RECORDING)
        app = InspectorApp(lines, None, InspectorOptions(speed=float("inf"), source_words=("it's.jsonl",)))
        async with app.run_test(size=(120, 36)) as pilot:
            seen = Watched(app, pilot, Scripted())
            await seen.wait_for(lambda: lines.is_loaded, "the file to be read")
            await seen.settle()
            self._check(app, shlex.quote("it's.jsonl"), least=12)

    def _check(self, app: InspectorApp, source: str, *, least: int) -> None:
        commands = [line for one in ACTIONS if one.command is not None and (line := one.command(app))]
        assert len(commands) >= least
        group = build_whole()
        for line in commands:
            words = shlex.split(line)
            assert words[0] == "lmtool"
            command, rest = group.commands[words[1]], words[2:]
            while hasattr(command, "commands"):
                command, rest = command.commands[rest[0]], rest[1:]
            options = {form for one in command.params for form in one.opts}
            assert {word for word in rest if word.startswith("--")} <= options
            assert words[1] != "inspect" or line == "lmtool inspect" or source in line

    def test_names_of_values_are_options(self) -> None:
        """A value's name is an option of `lmtool inspect`, or of none at all."""
        names = {one.value.name for one in ACTIONS if one.value is not None}
        options = {form for one in build_whole().commands["inspect"].params for form in one.opts}
        assert {name for name in names if f"--{name}" not in options} == {"branch", "threshold", "score", "uncertain"}

    def test_the_source_without_credentials(self) -> None:
        """Addresses lose their user and password; files keep their names."""
        source = SourceOptions(
            proxy=":8081", to="http://me:secret@host:1/v1?key=x", connect=("ws://me:secret@host:2/",)
        )
        words = _source_words(("ws://me:secret@host:3/", "a@b.jsonl"), source)
        assert words == (
            "ws://host:3/", "a@b.jsonl", "--proxy", ":8081", "--to", "http://host:1/v1?key=***", "--connect", "ws://host:2/",
        )  # fmt: skip


class TestTips:
    """A tip at the start, at most once a day."""

    def test_once_a_day(self, tmp_path: Path) -> None:
        """The next one comes on the next day; after the last one the first again."""
        file, day = tmp_path / "state/lmtool/tip", date(2026, 1, 1)
        given = []
        for _ in range(len(TIPS) + 1):
            given.append(next_tip(KEYS, file, day))
            assert next_tip(KEYS, file, day) == ""
            day += timedelta(days=1)
        assert len(set(given)) == len(TIPS)
        assert given[-1] == given[0] == "n goes to the next surprising token, u to the least likely one"

    def test_keys_are_the_users(self, tmp_path: Path) -> None:
        """A tip about an action without a key is left out."""
        file, day = tmp_path / "tip", date(2026, 1, 1)
        keys: Keymap[ActionContext] = Keymap(ACTIONS, {"surprising": "", "branch": "P"})
        given = [next_tip(keys, file, day + timedelta(days=i)) for i in range(len(TIPS) - 1)]
        assert len(set(given)) == len(TIPS) - 1
        assert any(tip.startswith("P on an alternative") for tip in given)

    @pytest.mark.parametrize("text", ["", "never", "2026-02-31 1", "2026-01-01 99999999999999999999", "\x00\xff"])
    def test_a_file_of_something_else(self, text: str, tmp_path: Path) -> None:
        """Counts as none."""
        file = tmp_path / "tip"
        file.write_text(text)
        assert next_tip(KEYS, file, date(2026, 1, 1))
        assert file.read_text() == "2026-01-01 1\n"

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        """Gives no tip, not the same one every time."""
        (tmp_path / "file").touch()
        assert next_tip(KEYS, tmp_path / "file/tip", date(2026, 1, 1)) == ""

    def test_its_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The platform's for state, below it a folder of our own."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert tips_file().parent.name == "lmtool"
        if os.name == "posix" and os.uname().sysname == "Linux":
            assert tips_file() == tmp_path / "lmtool/inspector-tip"

    async def test_none_without_a_terminal(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pictures and tests have none, and leave the file alone; with a screen it stands where messages do."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        async with watching() as seen:
            assert "tip:" not in seen.text()
            assert not list(tmp_path.iterdir())
            seen.app._give_tip()
            await seen.settle()
            assert "tip: n goes to the next surprising token" in seen.text()
            assert "?: everything else" in seen.text()
            seen.app.message = None
            seen.app._give_tip()
            assert seen.app.message is None
