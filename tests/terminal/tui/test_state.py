"""The fold of events into columns: the same however it is split, and at any moment as if it had stopped there."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.protocol.lmtp.frames import TokenEntry
from lmtool.terminal.tui.columns import NO_ID, TokenLog
from lmtool.terminal.tui.state import State, Texts
from lmtool.trace.codec import Header
from lmtool.trace.events import Blob, Close, Drop, End, Frame, JsonText, Open, Remark, Vocab
from lmtool.trace.reader import TokenLine
from tests.terminal.tui.states import fed
from tests.trace.conftest import generate, token, tokens
from tests.trace.strategies import events as any_event

if TYPE_CHECKING:
    from array import array

    from lmtool.trace.events import Event


def columns(state: State) -> tuple[object, ...]:
    """Everything in a state that two folds of the same events must agree on."""
    tokens_, frames = state.tokens, state.frames
    streams = [
        (s.label, s.kind, s.started_at, s.frame, s.rows.tolist(), s.ended, s.finish_reason, s.error)
        for s in state.streams
    ]
    logs: list[array[int] | array[float]] = [
        tokens_.streams,
        tokens_.ids,
        tokens_.frames,
        frames.times,
        frames.offsets,
        frames.connections,
    ]
    rows = range(len(tokens_))
    return (
        streams,
        [log.tolist() for log in logs],
        [tokens_.logprob(row) for row in rows],
        frames.directions.tolist(),
        frames.first_tokens.tolist(),
        [state.texts.of_row(row) for row in rows],
        [(mark.time, mark.text) for mark in state.marks],
        (state.connections, state.complete, state.model, state.vocab_size),
    )


ids = st.integers(1, 3)
entries = st.builds(
    lambda stream, number, reason, more: token(number, stream) | {"finish_reason": reason} | more,
    ids,
    st.integers(-1, 4),
    st.sampled_from([None, None, None, "stop"]),
    st.sampled_from([{}, {}, {"text": "x"}, {"error": "no"}, {"logprob": None}]),
)
talk = st.lists(
    st.one_of(
        st.builds(lambda stream: generate(0.0, stream), ids),
        st.builds(lambda ones: tokens(0.0, *ones), st.lists(entries, max_size=3)),
        st.builds(lambda ones: tokens(0.0, *ones, connection=2), st.lists(entries, max_size=3)),
        st.builds(
            lambda stream: Frame(0.0, "<", 1, JsonText("MSG", [{"stream_id": stream, "error": "no"}], "py")), ids
        ),
        st.just(Vocab(0.0, 0, {1: "a", 2: b"\xf0\x9f"})),
        st.just(Close(0.0, 1, "client")),
        st.just(Open(0.0, 1)),
        any_event,
    ),
    max_size=15,
).map(lambda events: [_at(event, i / 10) for i, event in enumerate(events)])


def _at(event: Event, moment: float) -> Event:
    return replace(event, time=moment)


@settings(max_examples=60, deadline=None)
@given(talk, st.data())
def test_any_split_gives_the_same(events: list[Event], data: st.DataObject) -> None:
    """It does not matter how many events come at once."""
    split = State()
    rest = list(enumerate(events))
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        part, rest = rest[:count], rest[count:]
        split.feed([event for _, event in part], [offset for offset, _ in part])
    whole = State()
    whole.feed(events, range(len(events)))
    assert columns(whole) == columns(split)


@settings(max_examples=40, deadline=None)
@given(talk, st.data())
def test_a_moment_is_what_was_fed_until_then(events: list[Event], data: st.DataObject) -> None:
    """What is seen at a moment is what a state would hold that was fed up to it: tokens, frames, phases."""
    state = fed(*events)
    moment = data.draw(st.integers(0, 16)) / 10 + 0.05
    then = fed(*[event for event in events if event.time <= moment])
    seen = state.tokens_at(moment)
    assert seen == len(then.tokens)
    assert state.frames.until(moment) == len(then.frames)
    assert state.tokens.ids[:seen] == then.tokens.ids
    for stream in then.streams:
        same = state.streams[stream.index]
        assert same.label == stream.label
        assert same.count(seen) == len(stream.rows)
        assert same.phase(moment, seen) == stream.phase(moment, len(then.tokens))


@settings(max_examples=40, deadline=None)
@given(st.lists(any_event, max_size=6))
def test_nothing_in_a_trace_is_too_odd(events: list[Event]) -> None:
    """Any event can be taken; times that fall count as those before them."""
    state = fed(*events)
    assert state.frames.times.tolist() == sorted(state.frames.times)
    assert sum(len(stream.rows) for stream in state.streams) == len(state.tokens)


def test_streams_of_two_requests() -> None:
    """Each token goes to the request that named its stream; the frame that brought it is known, and the other way."""
    state = fed(
        Open(0.0, 1),
        generate(0.1, 1, max_tokens=5, temperature=0.5),
        generate(0.2, 2),
        tokens(0.3, token(11, 1), token(21, 2)),
        tokens(0.4, token(12, 1) | {"finish_reason": "length"}, token(22, 2)),
    )
    one, two = state.streams
    assert (one.label, one.kind, one.model, one.max_tokens, one.prompt, one.prompt_tokens) == (
        "1/1",
        "GEN",
        "m",
        5,
        (5, 6, 7),
        3,
    )
    assert [state.tokens.ids[row] for row in one.rows] == [11, 12]
    assert [state.tokens.ids[row] for row in two.rows] == [21, 22]
    assert (one.ended, one.finish_reason, two.ended) == (0.4, "length", None)
    assert state.tokens_of_frame(3) == range(2)
    assert state.tokens.frames.tolist() == [3, 3, 4, 4]
    assert state.find("1/2") is two
    assert state.find("9/9") is None


END = {"finish_reason": "stop"}


@pytest.mark.parametrize(
    ("events", "ids"),
    [
        ((generate(0.0), tokens(0.1, token(1) | END), generate(0.2), tokens(0.3, token(2) | END)), [[1], [2]]),
        ((generate(0.0), generate(0.1), tokens(0.2, token(5) | END), tokens(0.3, token(6) | END)), [[5], [6]]),
        (
            (
                *(generate(0.0), generate(0.1), tokens(0.2, token(5) | END, token(6)), generate(0.3)),
                *(tokens(0.4, token(7)), tokens(0.5, token(8) | END, token(9))),
            ),
            [[5], [6, 7, 8], [9]],
        ),
    ],
    ids=["after its end", "queued by the server", "three requests"],
)
def test_an_id_again(events: tuple[Event, ...], ids: list[list[int]]) -> None:
    """Requests of one id are streams of one label, each from the end of the one before it, also within a frame."""
    state = fed(*events)
    assert [[state.tokens.ids[row] for row in stream.rows] for stream in state.streams] == ids
    assert state.find("1/1") is state.streams[-1]


def test_an_id_that_runs() -> None:
    """LMTP, STR-5: the request is refused by a MSG error, and the stream that runs goes on."""
    refusal = Frame(0.2, "<", 1, JsonText("MSG", [{"stream_id": 1, "error": "it runs"}], "py"))
    state = fed(generate(0.0), generate(0.1), refusal, tokens(0.3, token(5)))
    first, second = state.streams
    assert (len(first.rows), first.ended) == (1, None)
    assert (len(second.rows), second.ended, second.error) == (0, 0.2, "it runs")


def test_a_request_that_fails() -> None:
    """LMTP, ERR-6: a MSG error that bears the id of a stream ends it."""
    state = fed(generate(0.0), Frame(0.2, "<", 1, JsonText("MSG", [{"stream_id": 1, "error": "no"}], "py")))
    assert (state.streams[0].ended, state.streams[0].error) == (0.2, "no")


def test_an_error_ends_its_stream() -> None:
    """LMTP, ERR-1: an error in a TOKEN ends the stream; only the first ending counts."""
    state = fed(generate(0.0), tokens(0.1, {"stream_id": 1, "error": "out of memory"}), Close(0.5, 1, "client"))
    stream = state.streams[0]
    assert (stream.ended, stream.error, stream.phase(1.0, 0), stream.phase(0.05, 0)) == (
        0.1, "out of memory", "error", "waiting",
    )  # fmt: skip


@pytest.mark.parametrize("end", [Close(0.5, 1, "client"), Drop(0.5, 1)])
def test_a_connection_that_ends(end: Event) -> None:
    """Its streams end with it, those of other connections go on."""
    state = fed(generate(0.0), generate(0.0, connection=2), tokens(0.1, token(5)), end)
    one, other = state.streams
    assert one.ended == 0.5
    assert "connection ended" in str(one.error)
    assert other.ended is None


def test_tokens_of_no_request() -> None:
    """A recording may begin in the middle: tokens that nobody asked for get a stream."""
    state = fed(tokens(0.1, token(5, 7), token(6, 7)))
    assert [(s.label, s.kind, len(s.rows), s.started_at) for s in state.streams] == [("1/7", "GEN", 2, 0.1)]


def test_tokens_after_the_end() -> None:
    """They stay with their stream, whose ending stays where it was."""
    state = fed(generate(0.0), tokens(0.1, token(5) | {"finish_reason": "stop"}), tokens(0.2, token(6)))
    assert [(len(s.rows), s.ended) for s in state.streams] == [(2, 0.1)]


def test_a_score() -> None:
    """The tokens of a SCORE are those of the given text; their number is known from the request."""
    payload = {"model": "m", "prompt": [5, 6], "scored": [7, 8, 9], "stream_id": 1}
    state = fed(Frame(0.0, ">", 1, JsonText("SCORE", payload, "py")), tokens(0.1, token(7), token(8)))
    stream = state.streams[0]
    assert (stream.kind, stream.prompt, stream.max_tokens, len(stream.rows)) == ("SCORE", (5, 6), 3, 2)


def test_requests_spelled_otherwise() -> None:
    """A client may write JSON as no style of a trace does: the frame is kept as text, and understood."""
    text = 'GENERATE  {"model":"m",   "prompt":[5], "stream_id":1, "temperature":1e-0}'.replace("  {", " {")
    state = fed(Frame(0.0, ">", 1, text), tokens(0.1, token(7)))
    assert [(s.kind, s.model, s.prompt, len(s.rows)) for s in state.streams] == [("GEN", "m", (5,), 1)]


def test_text_mode() -> None:
    """Text that a server sends is shown where no vocabulary knows the id; a rest without a token is one of its own."""
    state = fed(
        generate(0.0),
        tokens(0.1, token(5, text="He"), token(6, text="llo")),
        tokens(0.2, {"stream_id": 1, "text": "!", "finish_reason": "stop"}),
    )
    assert state.text(state.streams[0]) == "Hello!"
    assert [state.tokens.ids[row] >= 0 for row in state.streams[0].rows] == [True, True, False]


def test_characters_split_over_tokens() -> None:
    """A character belongs to its last token; an open end becomes U+FFFD when the stream is over."""
    vocab = Vocab(0.0, 0, {1: b"\xf0\x9f", 2: b"\x99\x82", 3: "日"})
    state = fed(vocab, generate(0.0), tokens(0.1, token(3), token(1), token(2), token(1)))
    stream = state.streams[0]
    assert [state.texts.text_at(stream, i) for i in range(4)] == ["日", "", "🙂", ""]
    assert [state.texts.of_row(i) for i in range(2)] == ["日", "⟨f0 9f⟩"]
    state.feed([tokens(0.2, {"stream_id": 1, "finish_reason": "stop"})])
    assert state.text(stream) == "日🙂\ufffd"


def test_what_the_model_is() -> None:
    """Header, MODEL_INFO and requests tell the model's name, the first two the size of its vocabulary."""
    assert State(Header(model={"name": "gpt2", "vocab_size": 50257})).vocab_size == 50257
    state = fed(
        Frame(0.0, "<", 1, JsonText("MSG", [{"stream_id": 1, "model_info": {"model": "x", "vocab_size": 9}}], "py"))
    )
    assert (state.model, state.vocab_size) == ("x", 9)
    assert fed(generate(0.0)).model == "m"


def test_marks_and_the_end() -> None:
    """Marks can be gone to; the end record says that nothing is missing."""
    state = fed(Remark(0.2, "mark", 1, "here"), End(0.5, 1, 0, ""))
    assert [(mark.time, mark.text) for mark in state.marks] == [(0.2, "here")]
    assert state.complete
    assert not fed().complete


def test_a_bias_kept_as_a_blob() -> None:
    """Of a large bias the numbers of its ids and of those ruled out are known, also where it is a reference."""
    bias = {"1": -100, "2": -100.0, "3": 5}
    state = fed(Blob(0.0, 0, "ab", bias), generate(0.1, logit_bias={"$blob": "ab"}), generate(0.1, 2, logit_bias=bias))
    assert [(s.biased, s.ruled_out) for s in state.streams] == [(3, 2), (3, 2)]


def test_speed() -> None:
    """50,000 tokens a second over 64 streams: below 4 us of CPU a token, here with a margin for a busy machine."""
    state = State()
    state.feed([generate(0.0, i) for i in range(64)])
    frames = [
        tokens(i / 100, *[token(i % 50, s, top_logprobs={"1": -1.0, "2": -2.0}) for s in range(64)]) for i in range(100)
    ]
    began = time.process_time()
    state.feed(frames)
    assert (time.process_time() - began) / 6400 < 20e-6
    assert len(state.tokens) == 6400


def test_memory() -> None:
    """A token takes 24 bytes of columns, and a frame 29."""
    state = State()
    lines = [TokenLine(i / 1000, "<", 1, "TOKEN", [TokenEntry(s, 5, -1.0) for s in range(8)]) for i in range(500)]
    state.add_tokens(range(500), lines)
    size = sum(
        len(getattr(state.tokens, name)) * getattr(state.tokens, name).itemsize for name in state.tokens.__slots__
    )
    size += sum(len(stream.rows) * stream.rows.itemsize for stream in state.streams)
    assert size / len(state.tokens) == 24
    frames = sum(getattr(state.frames, name).itemsize for name in state.frames.__slots__)
    assert frames == 29


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
