"""A stream's tokens as a line to edit."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.tui.runs import visible
from lmtool.tui.scored_text import EditableText, editable_text
from tests.trace.conftest import generate
from tests.tui.sequences import plain, score, side

WORDS = {1: "There", 2: " was", 3: "\n", 4: b"\xf0\x9f", 5: b"\x99\x82", 6: "→", 7: "", 8: "\t"}


def own(*ids: int) -> EditableText:
    """What a stream of these tokens has."""
    made = side(*plain(*ids), words=WORDS)
    return editable_text(made.view, made.stream)


def test_unedited() -> None:
    """All ids as they are, after the stream's own prompt; nothing is left to be tokenized."""
    made = own(1, 2, 3, 4, 5, 7)
    assert made.line == "There was⏎🙂"
    given = made.after_edit(made.line)
    assert (given.prompt, given.before, given.text, given.after) == ((5, 6, 7), (1, 2, 3, 4, 5, 7), "", ())
    assert given.model == "m"


@pytest.mark.parametrize(
    ("line", "before", "text", "after"),
    [
        ("There was cat", (1, 2), " cat", ()),  # the ending without a text stood behind what is gone
        ("There was⏎🙂!", (1, 2, 3, 4, 5), "!", ()),
        ("There were⏎🙂", (1,), " were", (3, 4, 5, 7)),
        ("There was🙂", (1, 2), "", (4, 5, 7)),
        ("There was⏎⏎🙂", (1, 2, 3), "\n", (4, 5, 7)),
        ("Where was⏎🙂", (), "Where", (2, 3, 4, 5, 7)),
        ("There was⏎🚀", (1, 2, 3), "🚀", ()),
        ("", (), "", ()),
    ],
)
def test_edited(line: str, before: tuple[int, ...], text: str, after: tuple[int, ...]) -> None:
    """Only what differs is left to be tokenized; tokens that make a character together stay together."""
    given = own(1, 2, 3, 4, 5, 7).after_edit(line)
    assert (given.before, given.text, given.after) == (before, text, after)


def test_signs_stay_what_they_stand_for() -> None:
    """A tab is shown as the arrow that a model may have written: what was not touched is what it was."""
    made = own(6, 8, 1)
    assert made.line == "→→There"
    assert made.after_edit("→→Then").text == "Then"
    assert made.after_edit("→→→There").whole == "→\t→There"
    assert own(8, 8).after_edit("→x→").whole == "\tx\t"


def test_a_stream_without_tokens() -> None:
    """All that is typed continues its prompt."""
    given = own().after_edit("Hello⏎")
    assert (given.before, given.text, given.after) == ((), "Hello\n", ())


def test_a_score() -> None:
    """What was scored can be scored again; it has no bos of its own making."""
    made = side(*plain(1, 2), words=WORDS, ask=score([9, 8], [1, 2]))
    assert editable_text(made.view, made.stream).after_edit("There was").prompt == (9, 8)


def test_only_what_is_seen() -> None:
    """A paused view offers what had come by then."""
    made = side(*plain(1, 2), words=WORDS)
    made.view.moment = 0.05
    assert editable_text(made.view, made.stream).ids == ()


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
    st.text("aT→⏎ é🙂", max_size=3),
)
def test_the_parts_make_the_line(ids: list[int], begin: int, length: int, typed: str) -> None:
    """Whatever is edited: kept tokens, text and kept tokens spell the edited line, and keep all they can."""
    made = own(*ids)
    line = made.line[:begin] + typed + made.line[begin + length :]
    given = made.after_edit(line)
    assert "".join(map(visible, given.whole)) == line or "�" in line
    assert made.ids[: len(given.before)] == given.before
    assert given.after == made.ids[len(made.ids) - len(given.after) :]
    assert len(given.before) + len(given.after) <= len(made.ids)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for one in given.before:
        piece = WORDS[one]
        decoder.decode(piece if isinstance(piece, bytes) else piece.encode())
    assert not decoder.getstate()[0] or line == made.line


def test_what_a_request_forgot() -> None:
    """A stream that cannot be asked again says so."""
    made = side(*plain(1), ask=generate(0.0, prompt={"$redacted": "prompt", "n": 3}))
    with pytest.raises(Exception, match="cannot be sent again"):
        editable_text(made.view, made.stream)
