"""The main view: streams side by side, prompts in turns, frames in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.inference.text.prompts import PromptTurn, split_turns
from lmtool.terminal.tui.documents.frames import plain
from lmtool.terminal.tui.documents.text import (
    LOWEST,
    NARROWEST,
    OWN_STYLE,
    WINDOW,
    Layout,
    SplitDocument,
    TextDocument,
    grid,
    prompt_parts,
)
from lmtool.terminal.tui.runs import length
from lmtool.terminal.tui.styles import ASCII, UNICODE
from lmtool.terminal.tui.view import View
from tests.terminal.tui.scripted import event, request, tokens, watching
from tests.terminal.tui.states import rows, text, view_of

GEMMA = "".join(
    f"<start_of_turn>{role}\n{words}"
    for role, words in (("system", "Be kind.<end_of_turn>\n"), ("user", "Hi<end_of_turn>\n"), ("assistant", ""))
)
LLAMA = "".join(
    f"<|start_header_id|>{role}<|end_header_id|>\n\n{words}"
    for role, words in (("system", "Be kind.<|eot_id|>"), ("user", "Hi<|eot_id|>"), ("assistant", ""))
)


class TestGrid:
    """How streams are placed."""

    def test_shapes(self) -> None:
        """As many streams as possible, few empty cells, columns in which text is read well."""
        shapes = {(n, columns, high): grid(n, columns, high) for n, columns, high in (
            (1, 104, 24), (2, 104, 24), (3, 104, 24), (4, 104, 24), (4, 104, 10), (64, 104, 24), (4, 58, 11),
            (9, 20, 3),
        )}  # fmt: skip
        assert list(shapes.values()) == [(1, 1), (2, 1), (3, 1), (2, 2), (4, 1), (4, 4), (2, 1), (1, 1)]

    @given(st.integers(0, 200), st.integers(1, 300), st.integers(1, 100))
    def test_every_cell_has_room(self, streams: int, columns: int, high: int) -> None:
        """No column is narrower and no row lower than text needs, unless there is but one."""
        across, down = grid(streams, columns, high)
        assert across == 1 or columns // across >= NARROWEST
        assert down == 1 or high // down >= LOWEST
        assert (across - 1) * down < max(1, streams)


class TestSplit:
    """Streams side by side."""

    def test_headings_and_texts(self, view: View) -> None:
        """Each stream under its heading, the one under the cursor marked, its text below."""
        document = SplitDocument(view, UNICODE, rows=5)
        shown = rows(document, 80)
        assert shown[0].startswith("▸1/1 6 tokens · stop ─")
        assert "│ 1/2 3 tokens · running ─" in shown[0]
        assert shown[1].startswith("Hello there│ the fox🙂")
        assert shown[2].startswith("▕.▏")
        assert "│Hello there│ the.▕ dog▏" not in shown[1]
        assert "│Hello there│ the. dog" in shown[1]
        assert len(document.streams(30)) == 1

    @pytest.mark.parametrize("size", [(160, 26), (104, 24), (78, 11), (58, 7), (40, 4), (26, 2)])
    @pytest.mark.parametrize("streams", [1, 2, 3, 5, 64])
    def test_every_row_fits(self, size: tuple[int, int], streams: int) -> None:
        """At every size lines are as wide as the pane at most, and all streams that are shown have their heading."""
        columns, high = size
        asked = [request(0.1, i) for i in range(1, streams + 1)]
        came = [tokens(0.2 + i / 10, *((s, 7 + i % 7, -0.5) for s in range(1, streams + 1))) for i in range(40)]
        words = event(
            0.0, "vocab", 0, {"5": "Hi", "7": " the", "8": "漢字", "9": ".", "10": "\n", "12": " long", "13": "x"}
        )
        document = SplitDocument(view_of([words, *asked, *came]), UNICODE, rows=high)
        assert document.height(columns) == high
        lines = [document.line(y, columns) for y in range(high)]
        assert max(map(length, lines)) <= columns
        whole = "\n".join(map(text, lines))
        for stream in document.streams(columns):
            assert f"{stream.label} "[: columns - 1] in whole

    def test_the_filter_and_the_followed_stream(self, view: View) -> None:
        """A followed stream has the pane for itself."""
        view.choose_stream(1)
        view.follow_stream()
        assert [stream.label for stream in SplitDocument(view, UNICODE).streams(100)] == ["1/2"]

    def test_text_rows(self, view: View) -> None:
        """What all texts take, a heading each, at most what there is."""
        document = SplitDocument(view, UNICODE)
        assert document.text_rows(80, 30) == 3
        assert document.text_rows(80, 2) == 2
        assert SplitDocument(view_of([]), UNICODE).text_rows(80, 30) == 1

    def test_the_token_that_a_branch_begins_with(self) -> None:
        """Split and text view mark the token at the end of a branch's prompt, also one that was drawn before."""
        words = event(0.0, "vocab", 0, {"5": "Hi", "7": " the", "8": " fox", "9": "."})
        view = view_of([words, request(0.1, 1, prompt=[5, 7, 8]), tokens(0.2, (1, 9, -0.5))])
        for document in (SplitDocument(view, UNICODE, rows=5), TextDocument(view, UNICODE)):
            for own in ("", " fox", " dog"):
                view.branch_tokens["1/1"] = own
                document.height(80)
                drawn = [run for y in range(3) for run in document.line(y, 80)]
                marked = [run.text for run in drawn if run.style == OWN_STYLE]
                assert marked == ([" fox"] if own == " fox" else [])
                assert "Hi the fox" in "".join(run.text for run in drawn)

    def test_a_click_is_its_token(self, view: View) -> None:
        """Targets are rows of tokens, in every column."""
        document = SplitDocument(view, UNICODE, rows=5)
        document.height(80)
        targets = {run.target: run.text for run in document.line(1, 80) if run.target is not None}
        assert targets[2] == " fox"
        assert targets[3] == "."


@pytest.fixture(scope="module")
def long() -> View:
    """A stream of many tokens."""
    words = event(0.0, "vocab", 0, {"5": "Hi", "7": " the", "8": " fox", "9": ".", "12": "\n"})
    came = [tokens(0.2 + i / 100, *((1, (7, 8, 7, 9, 12)[k % 5], -0.5) for k in range(100))) for i in range(60)]
    return view_of([words, request(0.1, 1), *came])


class TestWindow:
    """Long streams, of which only what is in sight is laid out."""

    @pytest.mark.parametrize("place", [0, 1, 700, 1500, 3000, 5990, None])
    def test_the_same_lines(self, long: View, place: int | None) -> None:
        """Around the cursor, or at the end, they are those of the whole text."""
        long.row = None if place is None else long.state.streams[0].rows[place]
        stream = long.state.streams[0]
        whole, part = TextDocument(long, UNICODE), TextDocument(long, UNICODE, whole=False)
        ours, theirs = part.anchor_of(stream, 40), whole.anchor_of(stream, 40)
        for y in range(-8, 8):
            if ours + y >= 0 and theirs + y < whole.lines(stream, 40) and (place is None or place > 20 or y >= 0):
                assert text(part.line_of(stream, ours + y, 40)) == text(whole.line_of(stream, theirs + y, 40))
        long.row = None

    def test_not_all_is_laid_out(self, long: View) -> None:
        """At the end of a long stream only the end; a jump to the beginning begins anew."""
        stream = long.state.streams[0]
        document = TextDocument(long, UNICODE, whole=False)
        document.anchor_of(stream, 40)
        layout = document._layouts[stream.index]
        assert layout.start >= 6000 - 2 * WINDOW
        long.row = stream.rows[3]
        document.anchor_of(stream, 40)
        layout = document._layouts[stream.index]
        assert layout.start == 0
        assert layout.count <= 2 * WINDOW
        long.row = None

    def test_places(self, view: View) -> None:
        """Lines of tokens before, in and behind what is laid out."""
        layout = Layout(view.state, view.state.streams[0], 16, start=1)
        layout.extend(6)
        assert [layout.line(position) for position in (0, 1, 5, 9)] == [0, 0, 1, 1]
        assert layout.first_at(1) == 5
        assert layout.count == 6


class TestPrompts:
    """Turns of a prompt."""

    @pytest.mark.parametrize(
        "prompt",
        [
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
            GEMMA,
            LLAMA,
            "<|system|>\nBe kind.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n",
            "\x00<|bos|>\x00system\nBe kind.\x00⟨#2⟩\x00\n\x00⟨#1⟩\x00user\nHi\x00⟨#2⟩\x00\n\x00⟨#1⟩\x00assistant\n",
        ],
    )
    def test_templates(self, prompt: str) -> None:
        """The common ones: roles apart from texts, no marks, the assistant's turn empty."""
        assert split_turns(prompt) == [("system", "Be kind."), ("user", "Hi"), ("assistant", "")]

    def test_texts(self) -> None:
        """A text without turns is one part, none is none; what stands before the first turn has no role."""
        assert split_turns("Once upon a time") == [("", "Once upon a time")]
        assert split_turns("") == []
        assert split_turns("x<|user|>\nHi")[0] == PromptTurn("", "x")
        assert split_turns("the user\nsaid") == [("", "the user\nsaid")]
        assert split_turns("a\x00<|eos|>\x00b") == [("", "a<|eos|>b")]

    def test_special_tokens_by_name(self) -> None:
        """What MODEL_INFO calls begin and end has these names, in texts, frames and alternatives."""
        info = event(0.1, "<", "MSG", [{"model_info": {"model": "m", "bos_token_id": 1, "eos_token_ids": [2]}}])
        words = event(0.0, "vocab", 0, {"1": "", "2": "", "5": "user", "6": "\n", "7": "Hi", "3": ""})
        sent = [
            info,
            words,
            request(0.2, 1, prompt=[1, 5, 6, 7, 3, 6, 1, 5, 6, 7]),
            tokens(0.3, (1, 7, -0.1), (1, 2, -0.1)),
        ]
        view = view_of(sent)
        assert prompt_parts(view.state, view.state.streams[0]) == [("user", "Hi"), ("user", "Hi")]
        assert rows(TextDocument(view, UNICODE), 20) == [
            "─ user ───────────", "Hi", "─ user ───────────", "Hi", "─ continued ──────", "Hi▕<|eos|>▏",
        ]  # fmt: skip
        assert view.measures.quote(2) == "<|eos|>"
        assert view.measures.quote(3) == "⟨#3⟩"

    def test_no_special_token_can_be_typed(self) -> None:
        """A NUL of a text is no mark of ours."""
        view = view_of([request(0.1, 1, prompt="\x00x\x00user\nHi")])
        assert [part.role for part in prompt_parts(view.state, view.state.streams[0])] == [""]


class TestFrames:
    """Frames in words."""

    @pytest.mark.parametrize(
        ("frame", "words"),
        [
            ('MSG [{"stream_id": 1, "ok": true, "x": null}]', "MSG stream_id 1 · ok yes · x none"),
            ('MODEL_INFO {"a": {"b": [1, 2, 3, 4, 5, 6]}, "c": 0.5}', "MODEL_INFO a (b 1 2 3 4 +2) · c 0.5"),
            ('data: {"choices": []}', "data: choices none"),
            ('{"error": "x"}', "error x"),
            ("[1, 2]", "1 2"),
            ("data: [DONE]", "data: [DONE]"),
            ("PING 1", "PING 1"),
            ('X [{"a": 1}, {"a": 2}]', "X (a 1) (a 2)"),
            ('X {"a": {"b": {"c": {"d": {"e": 1}}}}}', "X a (b (c (d (...))))"),
        ],
    )
    def test_plain(self, frame: str, words: str) -> None:
        """Members by name, without JSON's signs; what is no JSON, or no object, as it is."""
        assert plain(frame) == words

    def test_large_frames_are_not_read_for_a_line(self) -> None:
        """A mask over a vocabulary stays as it is."""
        large = 'GENERATE {"logit_bias": {' + ",".join(f'"{i}": 1' for i in range(5000)) + "}}"
        assert plain(large) is large

    async def test_ascii(self, view: View) -> None:
        """In ASCII rules and walls are ASCII."""
        async with watching(size=(120, 36)) as seen:
            assert "│" in seen.text()
        assert all(text(SplitDocument(view, ASCII, rows=5).line(0, 80)).isascii() for _ in range(1))


class TestLayout:
    """How the panes share the screen."""

    async def test_short_texts_leave_room(self) -> None:
        """Frames and times get what the texts do not need, and give it back as the texts grow."""
        async with watching(size=(160, 45)) as seen:
            before = seen.app.main.panes["frames"].size.height
            assert before > 10
            seen.source.push([tokens(2.0, *((2, 12, -0.5) for _ in range(40)))])
            for _ in range(200):
                if seen.app.main.panes["frames"].size.height < before:
                    break
                seen.app.changed()
                await seen.pilot.pause(0.02)
            assert seen.app.main.panes["frames"].size.height == 8

    async def test_narrow(self) -> None:
        """In a narrow window the texts stand below the table, side by side."""
        async with watching(size=(80, 24)) as seen:
            assert any("1/1 6 tokens" in row and "1/2 3 tokens" in row for row in seen.rows())
