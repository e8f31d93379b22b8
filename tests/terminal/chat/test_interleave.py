"""Interleaved streams on one column of lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from lmtool.terminal.chat.interleave import Interleaver, Piece


def text_of(pieces: list[Piece]) -> str:
    """Join what was written."""
    return "".join(text for text, _ in pieces)


def test_alone_a_lane_flows() -> None:
    """A single stream is written as it comes, without a label."""
    interleaver = Interleaver()
    interleaver.open(1, "1")
    interleaver.push(1, "Hel")
    assert interleaver.drain() == [("Hel", "")]
    interleaver.push(1, "lo\nthere", "31")
    assert text_of(interleaver.drain()) == "lo\nthere"
    interleaver.close(1)
    assert text_of(interleaver.drain()) == "\n"
    assert interleaver.column == 0


def test_a_line_belongs_to_one_lane() -> None:
    """While one stream's line is open, another's text waits; then it gets a line of its own, labelled."""
    interleaver = Interleaver()
    interleaver.open("a", "1")
    interleaver.open("b", "2")
    interleaver.push("a", "one")
    interleaver.push("b", "two")
    assert text_of(interleaver.drain()) == "1│ one"
    interleaver.push("b", " more\nand")
    assert interleaver.drain() == []
    interleaver.push("a", " end\nnext")
    assert text_of(interleaver.drain()) == " end\n2│ two more\n1│ next"
    interleaver.close("a", ("stopped", "2"))
    assert text_of(interleaver.drain()) == "\n1│ stopped\n2│ and"
    interleaver.close("b")
    assert text_of(interleaver.drain()) == "\n"


def test_full_lines_change_hands() -> None:
    """On a terminal a full line ends at a word, and the lane that waited longest goes on."""
    interleaver = Interleaver(columns=12)
    for name in "ab":
        interleaver.open(name, name)
    interleaver.push("a", "aaa aaa aaa aaa")
    interleaver.push("b", "bbb bbb bbb bbb")
    interleaver.close("a")
    interleaver.close("b")
    assert text_of(interleaver.drain()) == "a│ aaa aaa \nb│ bbb bbb \na│ aaa aaa\nb│ bbb bbb\n"


def test_words_in_pieces_are_not_cut() -> None:
    """Near the end of a line a word waits until its end has come, and goes to the next line whole."""
    interleaver = Interleaver(columns=24)
    interleaver.open(1, "1")
    interleaver.push(1, "some text before befo")
    assert text_of(interleaver.drain()) == "some text before "
    interleaver.push(1, "rehand", "1")
    assert interleaver.drain() == []
    interleaver.push(1, " it")
    assert interleaver.drain() == [("\n", ""), ("befo", ""), ("rehand", "1"), (" ", "")]
    interleaver.close(1)
    assert text_of(interleaver.drain()) == "it\n"


def test_an_empty_answer_has_its_tail() -> None:
    """A stream that ends without text still says why."""
    interleaver = Interleaver()
    interleaver.open(1, "1")
    interleaver.close(1, ("✗ failed", "31"))
    assert text_of(interleaver.drain()) == "✗ failed\n"


def test_words_longer_than_the_line_are_cut() -> None:
    """A word that fits on no line is cut; a wide character is not."""
    interleaver = Interleaver(columns=5)
    interleaver.open(1, "1")
    interleaver.push(1, "abcdefghijk 日本語")
    interleaver.close(1)
    assert text_of(interleaver.drain()) == "abcde\nfghij\nk 日\n本語\n"


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.text(alphabet="ab \n日é", max_size=12), st.booleans()),
        max_size=30,
    ),
    st.one_of(st.none(), st.integers(6, 30)),
)
def test_nothing_is_lost_and_nothing_is_mixed(steps: list[tuple[int, str, bool]], columns: int | None) -> None:
    """Each lane's lines, put together, are its text but for spaces at breaks; no line is too wide."""
    interleaver = Interleaver(columns=columns, always_label=True)
    sent = ["", "", ""]
    for i in range(3):
        interleaver.open(i, str(i))
    out = ""
    for lane, text, drain in steps:
        interleaver.push(lane, text)
        sent[lane] += text
        if drain:
            out += text_of(interleaver.drain())
    for i in range(3):
        interleaver.close(i)
    out += text_of(interleaver.drain())
    got = ["", "", ""]
    for line in out.removesuffix("\n").split("\n") if out else []:
        assert columns is None or cell_len(line) <= columns
        got[int(line[0])] += line[3:]
    squeezed = [text.replace(" ", "").replace("\n", "") for text in sent]
    assert [text.replace(" ", "") for text in got] == squeezed
