"""Text in lines."""

from __future__ import annotations

import pytest

from lmtool.terminal.tui.documents.document import ListDocument, broken, text_document
from lmtool.terminal.tui.documents.frames import FramesDocument
from lmtool.terminal.tui.documents.streams import StreamsDocument, TimeDocument
from lmtool.terminal.tui.documents.text import Layout, SplitDocument, TextDocument
from lmtool.terminal.tui.documents.tokens import DetailDocument, InterleavedDocument, TableDocument
from lmtool.terminal.tui.runs import Run, flow, length
from lmtool.terminal.tui.styles import ASCII, UNICODE
from lmtool.terminal.tui.view import View
from tests.terminal.tui.scripted import conversation, event, request, tokens
from tests.terminal.tui.states import rows, text, view_of


def lines(layout: Layout) -> list[str]:
    """Text of each line."""
    return ["".join(part.text for part in line) for line in layout.lines]


DOCUMENTS = (
    StreamsDocument, InterleavedDocument, TextDocument, SplitDocument, TableDocument, DetailDocument, FramesDocument,
    TimeDocument,
)  # fmt: skip


class TestLayout:
    """How tokens break into lines."""

    def test_a_token_that_does_not_fit_goes_to_the_next_line_whole(self, view: View) -> None:
        """Unless it is wider than a line."""
        layout = Layout(view.state, view.state.streams[0], 16)
        layout.extend(6)
        assert lines(layout) == ["Hello there│ the", " fox🙂", "."]
        assert layout.line_of == [0, 1, 1, 1, 1, 2]

    def test_a_prompt_breaks_between_words(self) -> None:
        """As tokens do; only a word that is wider than a line is broken."""
        words = {"5": "What is\n\nthe capital", "6": " of Liechtenstein?"}
        view = view_of([event(0, "vocab", 0, words), request(0.1, 1)])
        layout = Layout(view.state, view.state.streams[0], 12)
        assert lines(layout) == ["What is", "", "the capital", "of Liechtens", "tein?│"]

    def test_blanks_as_signs(self, view: View) -> None:
        """Spaces and line feeds can be seen on request."""
        layout = Layout(view.state, view.state.streams[0], 40, blanks=True)
        layout.extend(6)
        assert lines(layout) == ["Hello·there│·the·fox🙂⏎", "."]

    def test_a_very_long_token_is_broken(self) -> None:
        """Ten thousand characters take as many lines as they need, wide ones never cross the edge."""
        words = {"5": "x", "6": "y", "7": "a" * 10_000, "8": "漢" * 30}
        view = view_of([event(0, "vocab", 0, words), request(0.1, 1), tokens(0.2, (1, 7, -0.1), (1, 8, -0.1))])
        layout = Layout(view.state, view.state.streams[0], 41)
        layout.extend(2)
        assert sum(map(len, lines(layout))) == 10_033  # with the wall behind the prompt
        assert max(sum(2 if c == "漢" else 1 for c in line) for line in lines(layout)) <= 41


class TestText:
    """The text of a stream."""

    def test_text(self, view: View) -> None:
        """Prompt, then tokens; a character of two tokens is whole; the cursor's token stands between signs."""
        view.choose_token(2)
        assert rows(TextDocument(view, UNICODE), 40) == ["Hello there│ the▕ fox▏🙂", "."]

    def test_colour_belongs_to_the_last_token_of_a_character(self, view: View) -> None:
        """The emoji has the style and the target of the token that completed it."""
        line = TextDocument(view, UNICODE).line(0, 40)
        emoji = next(run for run in line if "🙂" in run.text)
        assert emoji.target == 5
        assert text([emoji]) == "🙂"

    def test_move_by_lines(self, view: View) -> None:
        """Up from the last line goes to a token of the line above."""
        view.choose_token(7)
        document = TextDocument(view, UNICODE)
        document.height(40)
        document.move(-1)
        assert view.position(view.token) < 5

    def test_a_vocabulary_that_comes_late(self) -> None:
        """What was shown as numbers is laid out again: words and lines are those of the text."""
        view = view_of([request(0.1, 1), tokens(0.2, (1, 7, -0.1), (1, 8, -0.1))])
        document = TextDocument(view, UNICODE)
        assert rows(document, 40) == ["⟨#5⟩⟨#6⟩│⟨#7⟩▕⟨#8⟩▏"]
        view.state.feed([event(0.3, "vocab", 0, {"5": "Oh", "6": ",", "7": " the\n", "8": "fox"})])
        assert rows(document, 40) == ["Oh,│ the", "▕fox▏"]


class TestList:
    """Lists and texts."""

    def test_choosing(self) -> None:
        """The cursor walks over lines that have a target, and stops at the ends."""
        document = ListDocument([[Run("title")], [Run("a", "", 10)], [Run("b", "", 20)]], cursor=">")
        assert rows(document, 20) == ["  title", "> a", "  b"]
        assert document.chosen == 10
        document.move(5)
        assert document.chosen == 20
        assert document.anchor(20) == 2
        document.click(10)
        assert document.chosen == 10

    def test_begins_at_the_marked_line(self) -> None:
        """A line in the style of a cursor is where the cursor begins."""
        assert ListDocument([[Run("a", "", 1)], [Run("b", "cursor", 2)]], cursor=">").chosen == 2

    def test_long_lines_are_broken(self) -> None:
        """Nothing is lost, and nothing is wider than asked, wide characters included."""
        assert [text(part) for part in broken([Run("abcdef"), Run("gh")], 4)] == ["abcd", "efgh"]
        assert [text(part) for part in broken([Run("some words here")], 11)] == ["some words ", "here"]
        assert [text(part) for part in broken([Run("a漢字")], 3)] == ["a漢", "字"]
        assert rows(text_document("a\x1b\nb"), 10) == ["a⟨1b⟩", "b"]


class TestFlow:
    """Phrases in lines."""

    def test_phrases_stay_whole(self) -> None:
        """A phrase that does not fit begins a line; only what is wider than a line is cut, with a sign."""
        phrases = [Run("one two"), Run(""), Run("three"), Run("four and more than fits")]
        assert [text(line) for line in flow(phrases, 14)] == ["one two  three", "four and more…"]


class TestEveryDocument:
    """What every pane relies on, for every document at every width."""

    @pytest.mark.parametrize("columns", [20, 33, 44, 58, 78, 118, 160])
    @pytest.mark.parametrize("kind", DOCUMENTS)
    def test_no_line_is_wider_than_the_pane(self, kind: type, columns: int, view: View) -> None:
        """At any width, with the cursor anywhere, each line fits; the anchor is a line that exists."""
        for row in range(len(view.state.tokens)):
            view.choose_token(row)
            document = kind(view, UNICODE)
            height = document.height(columns)
            anchor = document.anchor(columns)
            assert anchor is None or 0 <= anchor < height
            for y in range(height):
                line = document.line(y, columns)
                assert length(line) <= columns, text(line)

    @pytest.mark.parametrize("kind", DOCUMENTS)
    def test_nothing_yet(self, kind: type) -> None:
        """Before the first event a document says so, or shows nothing, and every move is harmless."""
        view = view_of([])
        document = kind(view, ASCII)
        for steps in (1, -1, 10**9, -(10**9)):
            document.move(steps)
        assert all(length(document.line(y, 60)) <= 60 for y in range(document.height(60)))

    @pytest.mark.parametrize("kind", DOCUMENTS)
    def test_what_a_model_says_steers_nothing(self, kind: type) -> None:
        """Escape sequences in tokens, prompts, errors and names come out as signs."""
        evil = "\x1b[2J\x07\r\u202e"
        view = view_of([
            event(0.0, "vocab", 0, {"5": evil, "6": evil, "7": evil}),
            request(0.1, 1, model=evil),
            tokens(0.2, (1, 7, -0.1)),
            event(0.3, "<", "TOKEN", [{"stream_id": 1, "error": evil}]),
        ])  # fmt: skip
        document = kind(view, UNICODE)
        for y in range(document.height(100)):
            shown = text(document.line(y, 100))
            assert shown.isprintable() or not set(shown) & set("\x1b\x07\r\u202e"), shown

    @pytest.mark.parametrize("kind", DOCUMENTS)
    def test_walking_through_ends_at_the_ends(self, kind: type) -> None:
        """A move further than there is goes to the first or last row, a click to its target."""
        view = view_of(conversation())
        document = kind(view, UNICODE)
        document.height(80)
        for steps in (-(10**9), 1, 1, -1, 10**9, -3):
            document.move(steps)
            document.height(80)
        target = next(
            (run.target for y in range(document.height(80)) for run in document.line(y, 80) if run.target), None
        )
        if target is not None:
            document.click(target)
