"""What is said of a token: alternatives from its frame, rank, entropy, gap, and the style of a heat mode."""

from __future__ import annotations

import math

import pytest

from lmtool.core.logprobs.heat import MODES
from lmtool.terminal.tui.event_store import NoLines
from lmtool.terminal.tui.measures import Measures
from lmtool.trace.events import Frame, JsonText, Piece, Vocab
from tests.terminal.tui.states import asked, chunk, measures, sse
from tests.trace.conftest import generate, token, tokens

TOP = {"11": math.log(0.5), "12": math.log(0.25), "13": math.log(0.125)}


def test_alternatives_of_a_frame_with_several_tokens() -> None:
    """Each token has its own alternatives, also beside entries that bring none."""
    made = measures(
        generate(0.0),
        tokens(
            0.1,
            {"stream_id": 2, "error": "no"},
            token(11, top_logprobs=TOP),
            token(9),
            token(12, top_logprobs={"12": -1}),
        ),
    )
    assert [[i for i, _ in made.alternatives(row)] for row in range(3)] == [[11, 12, 13], [], [12]]


@pytest.mark.parametrize(
    ("asked", "chosen", "logprob", "rank"),
    [
        (3, 11, 0.5, "1"),
        (3, 12, 0.25, "2"),
        (3, 99, 0.01, ">3"),
        (3, 99, 0.2, "3"),
        (3, 13, 0.125, "3"),
        (2, 13, 0.125, ">2"),
    ],
)
def test_rank(asked: int, chosen: int, logprob: float, rank: str) -> None:
    """What the request asked for tells whether the last of the alternatives is one of the likeliest."""
    answer = tokens(0.1, token(chosen, logprob=math.log(logprob), top_logprobs=TOP))
    assert str(measures(generate(0.0, top_logprobs=asked), answer).rank(0)) == rank


def test_a_stream_that_nobody_announced() -> None:
    """Nobody knows what it asked for: the last of its alternatives may be the chosen one behind the best."""
    made = measures(tokens(0.1, token(13, logprob=math.log(0.125), top_logprobs=TOP)))
    assert (str(made.rank(0)), made.state.streams[0].logprobs_mode) == (">2", None)


def test_ties_share_a_rank() -> None:
    """Of two tokens with the same logprob neither is behind the other."""
    tie = {"1": -0.7, "2": -0.7}
    made = measures(
        generate(0.0), tokens(0.1, token(1, logprob=-0.7, top_logprobs=tie), token(2, logprob=-0.7, top_logprobs=tie))
    )
    assert [str(made.rank(0)), str(made.rank(1))] == ["1", "1"]


def test_what_is_not_known() -> None:
    """Without alternatives there is no entropy, and below a half no rank. There is no style to show then."""
    made = measures(generate(0.0), tokens(0.1, token(1, logprob=-0.8), token(11, top_logprobs=TOP) | {"logprob": None}))
    assert [made.rank(0), str(made.rank(1)), made.entropy(0)] == [None, "1", None]
    assert [made.style(0, "rank"), made.style(0, "entropy"), made.style(1, "prob")] == ["", "", ""]
    assert made.style(0, "gap") == ""


def test_frames_that_cannot_be_read() -> None:
    """A token stays when its frame is gone; it has no alternatives then."""
    made = measures(generate(0.0), tokens(0.1, token(11, top_logprobs=TOP)))
    assert Measures(made.state, NoLines()).alternatives(0) == ()


def test_entropy_is_two_bounds() -> None:
    """A quarter of the mass is not seen: its entropy has a least and a largest value."""
    bounds = measures(generate(0.0), tokens(0.1, token(11, top_logprobs=TOP))).entropy(0)
    assert bounds is not None
    assert 1.5 < bounds[0] < bounds[1]


def test_gaps_are_between_frames() -> None:
    """Tokens of one frame arrived together; the first token of a stream has no gap."""
    made = measures(generate(0.0), tokens(0.1, token(1), token(1, 2)), tokens(0.15, token(2), token(3)))
    assert [made.gap(row) for row in range(2)] == [None, None]
    assert made.gap(2) == pytest.approx(50)
    assert made.gap(3) == 0


def test_heat_modes() -> None:
    """Each mode has its own unit."""
    made = measures(
        generate(0.0), tokens(0.1, token(5)), tokens(0.2, token(12, logprob=math.log(0.26), top_logprobs=TOP))
    )
    told = {mode: made.heat(1, mode) for mode in MODES}
    assert told["prob"] == pytest.approx(0.26)
    assert told["surprisal"] == pytest.approx(1.943, abs=1e-3)
    assert told["rank"] == 2
    assert told["gap"] == pytest.approx(100)
    assert told["entropy"] == (made.entropy(1) or (0, 0))[1]
    assert told["stream"] is None
    assert [made.style(1, mode) for mode in ("prob", "surprisal", "stream")] == ["heat4", "heat1", "stream0"]


def test_tokens_without_ids() -> None:
    """Where there are no ids, tokens and alternatives are told by their texts."""
    logprobs = {"tokens": [" b"], "token_logprobs": [-2.0], "top_logprobs": [{" a": -0.5, " b": -2.0}]}
    made = measures(asked(0.0), sse(0.1, chunk(" b", logprobs=logprobs)))
    assert (made.name(0), str(made.rank(0)), made.alternatives(0)) == (" b", ">1", ((" a", -0.5), (" b", -2.0)))


@pytest.mark.parametrize(("prompt", "known"), [([], False), ("", False), ([5], True), ("a", True)])
def test_a_scored_token_with_nothing_before_it(prompt: object, known: bool) -> None:
    """The 0 that a server sends for it stands for nothing (LMTP, SCO-2): no logprob, no rank, no part of perplexity."""
    payload = {"model": "m", "prompt": prompt, "scored": [1, 2], "stream_id": 1, "top_logprobs": 2}
    ask = Frame(0.0, ">", 1, JsonText("SCORE", payload, "py"))
    answer = tokens(0.1, token(1, logprob=0.0, top_logprobs={"1": 0.0}), token(2, logprob=-2.0, top_logprobs=TOP))
    made = measures(ask, answer)
    assert [made.state.tokens.logprob(row) is not None for row in (0, 1)] == [known, True]
    assert (made.rank(0) is not None, made.alternatives(0) != ()) == (known, known)
    assert made.state.streams[0].perplexity(2) == pytest.approx(math.e ** (1 if known else 2))
    assert made.state.streams[0].perplexity(1) == (1.0 if known else None)


@pytest.mark.parametrize(
    ("info", "temperature", "scaled"),
    [
        ({"model": "m"}, 0.5, True),
        ({"model": "m"}, 1, False),
        ({"model": "m"}, 0, False),
        ({"model": "m", "lmtp": 1}, 0.5, False),
        ("<unavailable>", 2, True),
    ],
)
def test_a_server_that_divides_by_the_temperature(info: object, temperature: float, scaled: bool) -> None:
    """LMQL's server does: what it sends then is no distribution, though it may look like one; the order is true."""
    told = Frame(0.0, "<", 1, JsonText("MSG", [{"stream_id": 9, "model_info": info}], "py"))
    answer = tokens(0.1, token(12, logprob=math.log(0.25), top_logprobs=TOP))
    made = measures(told, generate(0.0, temperature=temperature, top_logprobs=3), answer)
    found, stream = made.distribution(0), made.state.streams[0]
    assert (found.is_normalised, stream.logprobs_mode) == ((False, None) if scaled else (True, "raw"))
    assert (made.entropy(0), stream.perplexity(1)) == ((None, None) if scaled else (made.entropy(0), pytest.approx(4)))
    assert str(made.rank(0)) == "2"


def test_texts_between_quotes() -> None:
    """A text is quoted; what is no text, such as a part of a character or an id that nobody spells, is not."""
    made = measures(
        Vocab(0.0, 0, {1: "a\n", 2: b"\xf0\x9f", 3: ""}),
        generate(0.0),
        tokens(0.1, *[token(i) for i in range(1, 5)], token(5, text="b")),
    )
    assert [made.quote_token(row) for row in range(5)] == ["'a\\n'", "⟨f0 9f⟩", "⟨#3⟩", "⟨#4⟩", "'b'"]
    assert [made.quote(one) for one in (1, 4, "x\x1b")] == ["'a\\n'", "⟨#4⟩", "'x\\x1b'"]
    spelling = made.state.texts.spelling
    assert [spelling(token) for token in range(1, 6)] == [b"a\n", b"\xf0\x9f", b"", None, None]


def named(text: str, index: int, other: str) -> dict[str, object]:
    """A choice of a chat chunk with one token and an alternative."""
    entry = {"token": text, "logprob": -0.5, "top_logprobs": [{"token": other, "logprob": -1.5}]}
    return {"index": index, "delta": {"content": text}, "logprobs": {"content": [entry]}}


def test_alternatives_beside_pieces_of_text() -> None:
    """Text of unknown tokens has none; tokens that come with it in one event have their own."""
    piece = {"index": 0, "delta": {"content": "x"}}
    both = sse(0.1, {"choices": [piece, named("a", 1, "b"), named("c", 2, "d")]})
    made = measures(asked(0.0, "/v1/chat/completions", n=3), both)
    assert [made.alternatives(row) for row in range(3)] == [(), (("a", -0.5), ("b", -1.5)), (("c", -0.5), ("d", -1.5))]


def test_alternatives_of_an_event_in_parts() -> None:
    """A large event, or a large answer, is kept in several parts: those before the last one are read with it."""
    whole = sse(0.1, {"choices": [named("a", 0, "b")]}).wire()
    parts = [Piece(0.1 + i / 10, "sse", 1, whole[i * 40 : (i + 1) * 40]) for i in range(-(-len(whole) // 40))]
    other = sse(0.15, {"choices": [named("z", 0, "y")]}, connection=2)
    made = measures(asked(0.0, "/v1/chat/completions"), parts[0], other, *parts[1:])
    assert made.state.tokens.frames.tolist() == [len(parts) + 1]
    assert made.alternatives(0) == (("a", -0.5), ("b", -1.5))
