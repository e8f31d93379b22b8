"""Interleaved streams on one column of lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmtool.cli.talking.cells import width
from lmtool.cli.talking.lanes import Lanes, Piece


def text_of(pieces: list[Piece]) -> str:
    """Join what was written."""
    return "".join(text for text, _ in pieces)


def test_alone_a_lane_flows() -> None:
    """A single stream is written as it comes, without a label."""
    lanes = Lanes()
    lanes.open(1, "1")
    lanes.push(1, "Hel")
    assert lanes.drain() == [("Hel", "")]
    lanes.push(1, "lo\nthere", "31")
    assert text_of(lanes.drain()) == "lo\nthere"
    lanes.close(1)
    assert text_of(lanes.drain()) == "\n"
    assert lanes.column == 0


def test_a_line_belongs_to_one_lane() -> None:
    """While one stream's line is open, another's text waits; then it gets a line of its own, labelled."""
    lanes = Lanes()
    lanes.open("a", "1")
    lanes.open("b", "2")
    lanes.push("a", "one")
    lanes.push("b", "two")
    assert text_of(lanes.drain()) == "1│ one"
    lanes.push("b", " more\nand")
    assert lanes.drain() == []
    lanes.push("a", " end\nnext")
    assert text_of(lanes.drain()) == " end\n2│ two more\n1│ next"
    lanes.close("a", ("stopped", "2"))
    assert text_of(lanes.drain()) == "\n1│ stopped\n2│ and"
    lanes.close("b")
    assert text_of(lanes.drain()) == "\n"


def test_full_lines_change_hands() -> None:
    """On a terminal a full line ends at a word, and the lane that waited longest goes on."""
    lanes = Lanes(columns=12)
    for name in "ab":
        lanes.open(name, name)
    lanes.push("a", "aaa aaa aaa aaa")
    lanes.push("b", "bbb bbb bbb bbb")
    lanes.close("a")
    lanes.close("b")
    assert text_of(lanes.drain()) == "a│ aaa aaa \nb│ bbb bbb \na│ aaa aaa\nb│ bbb bbb\n"


def test_words_in_pieces_are_not_cut() -> None:
    """Near the end of a line a word waits until its end has come, and goes to the next line whole."""
    lanes = Lanes(columns=24)
    lanes.open(1, "1")
    lanes.push(1, "some text before befo")
    assert text_of(lanes.drain()) == "some text before "
    lanes.push(1, "rehand", "1")
    assert lanes.drain() == []
    lanes.push(1, " it")
    assert lanes.drain() == [("\n", ""), ("befo", ""), ("rehand", "1"), (" ", "")]
    lanes.close(1)
    assert text_of(lanes.drain()) == "it\n"


def test_an_empty_answer_has_its_tail() -> None:
    """A stream that ends without text still says why."""
    lanes = Lanes()
    lanes.open(1, "1")
    lanes.close(1, ("✗ failed", "31"))
    assert text_of(lanes.drain()) == "✗ failed\n"


def test_words_longer_than_the_line_are_cut() -> None:
    """A word that fits on no line is cut; a wide character is not."""
    lanes = Lanes(columns=5)
    lanes.open(1, "1")
    lanes.push(1, "abcdefghijk 日本語")
    lanes.close(1)
    assert text_of(lanes.drain()) == "abcde\nfghij\nk 日\n本語\n"


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.text(alphabet="ab \n日é", max_size=12), st.booleans()),
        max_size=30,
    ),
    st.one_of(st.none(), st.integers(6, 30)),
)
def test_nothing_is_lost_and_nothing_is_mixed(steps: list[tuple[int, str, bool]], columns: int | None) -> None:
    """Each lane's lines, put together, are its text but for spaces at breaks; no line is too wide."""
    lanes = Lanes(columns=columns, always_label=True)
    sent = ["", "", ""]
    for i in range(3):
        lanes.open(i, str(i))
    out = ""
    for lane, text, drain in steps:
        lanes.push(lane, text)
        sent[lane] += text
        if drain:
            out += text_of(lanes.drain())
    for i in range(3):
        lanes.close(i)
    out += text_of(lanes.drain())
    got = ["", "", ""]
    for line in out.removesuffix("\n").split("\n") if out else []:
        assert columns is None or width(line) <= columns
        got[int(line[0])] += line[3:]
    squeezed = [text.replace(" ", "").replace("\n", "") for text in sent]
    assert [text.replace(" ", "") for text in got] == squeezed
