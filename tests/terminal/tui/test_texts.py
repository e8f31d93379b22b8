"""Texts of tokens and streams: whole characters, given texts, vocabularies that come late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmtool.terminal.tui.columns import NO_ID, TokenLog
from lmtool.terminal.tui.state import State
from lmtool.terminal.tui.texts import Texts
from lmtool.trace.events import Vocab
from tests.trace.conftest import generate, token, tokens


@given(st.text(st.sampled_from(list("aé日🙂\n")), max_size=8), st.lists(st.integers(1, 3), max_size=30))
def test_any_cut_of_a_text_gives_the_text(text: str, sizes: list[int]) -> None:
    """However the bytes of a text are cut into tokens, the stream's text is the text."""
    data = text.encode()
    pieces = []
    for size in [*sizes, *[1] * len(data)]:
        if data:
            pieces.append(data[:size])
            data = data[size:]
    state = State()
    state.feed([Vocab(0.0, 0, dict(enumerate(pieces))), generate(0.0)])
    state.feed([tokens(0.1, token(i)) for i in range(len(pieces))])
    stream = state.streams[0]
    assert state.text(stream) == text
    assert state.text(stream, 0) == ""


@given(st.lists(st.binary(max_size=3), max_size=8))
def test_bytes_that_are_no_text(pieces: list[bytes]) -> None:
    """Bytes that are no UTF-8 become U+FFFD, as Python's own decoder has it."""
    state = State()
    state.feed([Vocab(0.0, 0, dict(enumerate(pieces))), generate(0.0)])
    state.feed([tokens(0.1, token(i)) for i in range(len(pieces))])
    state.feed([tokens(0.2, {"stream_id": 1, "finish_reason": "stop"})])
    shown = state.text(state.streams[0])
    whole = b"".join(pieces).decode(errors="replace")
    assert shown.rstrip("\ufffd") == whole.rstrip("\ufffd")
    assert shown.endswith("\ufffd") == whole.endswith("\ufffd")


def test_tokens_without_text() -> None:
    """On its own such a token, as eos is, is told by its id; in the text of a stream it is nothing."""
    state = State()
    state.feed([Vocab(0.0, 0, {1: "a", 2: "", 3: b""}), generate(0.0), tokens(0.1, token(1), token(2), token(3))])
    assert [state.texts.of_row(row) for row in range(3)] == ["a", "⟨#2⟩", "⟨#3⟩"]
    state.feed([tokens(0.2, token(9, text=""))])
    assert state.texts.of_row(3) == "⟨#9⟩"
    assert state.text(state.streams[0]) == "a"


def test_a_vocabulary_that_comes_late() -> None:
    """What was shown as a number is told again, with whole characters, once the vocabulary is known."""
    state = State()
    state.feed([generate(0.0), tokens(0.1, token(1), token(2), token(3))])
    stream = state.streams[0]
    assert state.text(stream) == "⟨#1⟩⟨#2⟩⟨#3⟩"
    state.feed([Vocab(0.2, 0, {1: "a", 2: b"\xf0\x9f"})])
    assert state.texts.corrections == 1
    assert state.text(stream) == "a\ufffd⟨#3⟩"
    state.feed([Vocab(0.3, 0, {3: b"\x99\x82"})])
    assert state.text(stream) == "a🙂"
    assert state.texts.corrections == 2
    state.feed([Vocab(0.4, 0, {9: "x"})])
    assert state.texts.corrections == 2


def test_texts_without_ids() -> None:
    """Each text has one number below `NO_ID`, and the number leads back to it."""
    texts = Texts(TokenLog())
    numbers = [texts.intern(text) for text in ("a", "b", "a", "")]
    assert numbers[0] == numbers[2] != numbers[1]
    assert all(number < NO_ID for number in numbers)
    assert [texts.piece(number) for number in numbers] == ["a", "b", "a", ""]


def test_given_texts() -> None:
    """What a server sent counts where no vocabulary knows the id."""
    state = State()
    state.feed([Vocab(0.0, 0, {1: "one"}), generate(0.0), tokens(0.1, token(1, text="ONE"), token(2, text="TWO"))])
    assert state.text(state.streams[0]) == "oneTWO"
    assert [state.texts.of_row(row) for row in range(2)] == ["one", "TWO"]
    assert state.texts.of_id(2) == "⟨#2⟩"
