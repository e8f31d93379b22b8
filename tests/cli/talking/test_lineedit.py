"""Keys on a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.cli.talking.cells import width
from lmtool.cli.talking.lineedit import LineEditor, Submit


@pytest.mark.parametrize(
    ("keys", "text", "cursor"),
    [
        ("abc", "abc", 3),
        ("abc\x7f", "ab", 2),
        ("\x7f", "", 0),
        ("abc\x1b[D\x1b[DX", "aXbc", 2),
        ("abc\x01X\x05Y", "XabcY", 5),
        ("abc\x1b[HX\x1b[FY", "XabcY", 5),
        ("abc\x1bOHX\x1bOFY", "XabcY", 5),
        ("abc\x01\x1b[3~", "bc", 0),
        ("abc\x02\x04", "ab", 2),
        ("one two\x17", "one ", 4),
        ("one two  \x17", "one ", 4),
        ("one two\x1b[1;5DX", "one Xtwo", 5),
        ("one two\x01\x1b[1;5CX", "oneX two", 4),
        ("one two\x1bb\x1bd", "one ", 4),
        ("abc\x02\x0b", "ab", 2),
        ("abc\x02\x15", "c", 0),
        ("abc\x15x\x19", "xabc", 4),
        ("a\x00\x1b[99~\x1b[5;5Rb", "ab", 2),
        ("\x1b[200~two\rlines\r\n\x1b[201~!", "two\nlines!", 10),
        ("日本\x1b[DX", "日X本", 2),
    ],
)
def test_editing(keys: str, text: str, cursor: int) -> None:
    """Keys edit as in a shell; unknown ones do nothing; a paste comes in as it is."""
    editor = LineEditor()
    assert editor.feed(keys) == []
    assert (editor.text, editor.cursor) == (text, cursor)


@given(st.data())
def test_portions_do_not_matter(data: st.DataObject) -> None:
    """Keys may arrive in any portions, also in the middle of a sequence."""
    parts = ["ab", "\x1b[D", "x\x1b[1;5Dy", "\x1b[200~p\rq\x1b[201~", "z", "\r", "\x1b[A", "\x7f", "\x1bb", "\x17"]
    keys = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=12)))
    whole, split = LineEditor(), LineEditor()
    events = whole.feed(keys)
    again = []
    while keys:
        size = data.draw(st.integers(1, len(keys)))
        again += split.feed(keys[:size])
        keys = keys[size:]
    assert (split.text, split.cursor, again) == (whole.text, whole.cursor, events)


@given(st.text(alphabet=st.sampled_from("ab 日\x1b[O3~;\x01\x04\x05\x08\x0b\x10\x0e\x15\x17\x19\r\x00Z")))
def test_no_keys_break_it(keys: str) -> None:
    """Whatever is typed, the cursor stays within the text."""
    editor = LineEditor()
    for key in keys:
        editor.feed(key)
        assert 0 <= editor.cursor <= len(editor.text)


def test_events() -> None:
    """Enter submits, Ctrl-C interrupts, Ctrl-D ends on an empty line only, Ctrl-L clears."""
    editor = LineEditor()
    assert editor.feed("Hi\rthere\x03\x0c") == [Submit("Hi"), "interrupt", "clear"]
    assert editor.feed("\x04") == []
    editor.clear()
    assert editor.feed("\x04") == ["end"]


def test_history() -> None:
    """Up and down walk the lines of the session; the line being typed is kept."""
    editor = LineEditor()
    editor.feed("one\rtwo\rtwo\r\r")
    assert editor.history == ["one", "two"]
    editor.feed("dra\x1b[A")
    assert editor.text == "two"
    editor.feed("\x1b[A\x1b[A")
    assert editor.text == "one"
    editor.feed("\x1b[B\x1b[B")
    assert editor.text == "dra"
    editor.feed("\x1b[B")
    assert editor.text == "dra"


@given(st.text(max_size=60), st.integers(10, 40), st.integers(0, 60))
def test_view_is_one_row(text: str, columns: int, lefts: int) -> None:
    """The row is never wider than the terminal, and the cursor is on it."""
    editor = LineEditor(text, max(0, len(text) - lefts))
    row, cursor = editor.view("> ", columns)
    assert width(row) < columns
    assert 2 <= cursor < columns
    assert row.startswith("> ")


def test_view_shows_pasted_line_feeds() -> None:
    """Line feeds within the text are shown as a sign."""
    assert LineEditor("a\nb", 3).view("> ", 20) == ("> a⏎b", 5)
