"""What is said of a token: alternatives from its frame, rank, entropy, gap, and the style of a heat mode."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import FileError
from lmtool.core.logprobs.heat import MODES
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.documents.text import SplitDocument, TextDocument
from lmtool.terminal.tui.documents.tokens import InterleavedDocument, TableDocument
from lmtool.terminal.tui.event_store import EventStore, NoLines
from lmtool.terminal.tui.measures import Measures, Selection, StreamFacts, TokenFacts, TokenFilter, load_selection
from lmtool.terminal.tui.runs import length
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.answers import Answers
from lmtool.trace.codec import Header
from lmtool.trace.events import Event, Frame, JsonText, Piece, Vocab
from lmtool.trace.filter import parse
from lmtool.trace.stream_events import stream_of
from lmtool.trace.writer import TraceWriter
from tests.terminal.tui.states import asked, chunk, measures, rows, sse
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


EVENTS: tuple[Event, ...] = (
    Vocab(0.0, 0, {11: " the", 12: "x"}),
    generate(0.0),
    tokens(0.1, token(11, logprob=-0.1, top_logprobs={"11": -0.1, "12": -3.0})),
    tokens(0.2, token(12, logprob=-3.0, top_logprobs={"11": -0.1, "12": -3.0})),
    tokens(0.9, token(11, logprob=-0.1), token(13) | {"finish_reason": "stop"}),
    generate(1.0, 2, connection=2),
    tokens(1.05, token(11, 2), connection=2),
    Frame(1.1, "<", 2, JsonText("TOKEN", [{"stream_id": 2, "error": "no"}], "py")),
    generate(1.2, 3, connection=2),
    Frame(1.3, ">", 2, JsonText("MODEL_INFO", {"stream_id": 4}, "py")),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trace of these events."""
    writer = TraceWriter(tmp_path / "a.lmtp.jsonl", Header())
    for event in EVENTS:
        writer.write(event)
    writer.close(2.0)
    return writer.path


MADE = measures(
    generate(0.0, model="gpt2"),
    tokens(0.1, token(5, text="He")),
    tokens(
        0.2, token(12, logprob=-1.0, top_logprobs={"11": -0.5, "12": -1.0}, text="llo"), {"stream_id": 1, "error": "no"}
    ),
)


class TestTokenFilter:
    """Tokens that a filter lets through, found while more come."""

    @given(
        st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=6),
        st.sampled_from(["tok:1", "!tok:2", "gap>0ms", "err"]),
    )
    def test_the_same_as_asking_each_token(self, frames: list[list[int]], expression: str) -> None:
        """While tokens come, exactly those are found that the filter lets through."""
        spool = EventStore()
        spool.feed([generate(0.0)])
        made = Measures(spool.state, spool)
        sieve = TokenFilter(parse(expression), made)
        for i, ids in enumerate(frames):
            spool.feed([tokens(i / 10, *[token(one, 1 + one % 2) for one in ids])])
            wanted = [row for row in range(len(spool.state.tokens)) if parse(expression).token(TokenFacts(made, row))]
            assert sieve.rows(len(spool.state.tokens)).tolist() == wanted
            assert sieve.rows(2).tolist() == [row for row in wanted if row < 2]

    def test_one_stream_only(self) -> None:
        """Tokens of other streams do not pass."""
        spool = EventStore()
        spool.feed([generate(0.0), generate(0.0, 2), tokens(0.1, token(1), token(1, 2), token(1))])
        made = Measures(spool.state, spool)
        assert TokenFilter(parse("tok:1"), made).rows(3, 0).tolist() == [0, 2]
        assert TokenFilter(parse("tok:1"), made).rows(3, 1).tolist() == [1]
        assert TokenFilter(parse("tok:1"), made).rows(2, 0).tolist() == [0]

    def test_a_stream_that_fails_later(self) -> None:
        """Where the filter asks how a stream ends, tokens seen before the end are found after it."""
        spool = EventStore()
        spool.feed([generate(0.0), tokens(0.1, token(1))])
        sieve = TokenFilter(parse("err"), Measures(spool.state, spool))
        assert sieve.rows(1).tolist() == []
        spool.feed([tokens(0.2, {"stream_id": 1, "error": "no"})])
        assert sieve.rows(1).tolist() == [0]

    @pytest.mark.parametrize(("expression", "step"), [("tok:1", 20_000), ("rank>1", 2_000)])
    def test_bit_by_bit(self, expression: str, step: int) -> None:
        """Many tokens are not looked at in one go: drawing does not wait for them."""
        spool = EventStore()
        spool.feed([generate(0.0)])
        spool.feed([tokens(i / 100, *[token(1)] * 100) for i in range(410)])
        sieve = TokenFilter(parse(expression), Measures(spool.state, spool))
        assert len(sieve.rows(41_000)) == 0
        rounds = 1
        while sieve.filter_more():
            rounds += 1
        assert rounds == -(-41_000 // step)
        assert len(sieve.rows(41_000)) == (41_000 if expression == "tok:1" else 0)

    @pytest.mark.parametrize(
        ("expression", "times"),
        [
            ("p<.1", [0.2]),
            ("rank>1", [0.2]),
            ("gap>500ms", [0.9]),
            ("tok:11", [0.1, 0.9, 1.05]),
            ('"the"', [0.1, 0.9, 1.05]),
            ('"13"', []),
            ("conn:2", [1.0, 1.05, 1.1, 1.2, 1.3]),
            ("sid:1/1", [0.0, 0.1, 0.2, 0.9, 0.9]),
            ("err", [1.0, 1.05, 1.1]),
            ("state:stop", [0.0, 0.1, 0.2, 0.9, 0.9]),
            ("state:waiting", [1.2, 1.3]),
            ("bits>4 !tok:11", [0.2]),
            ("kind:gen model:m", [0.0, 0.1, 0.2, 0.9, 0.9, 1.0, 1.05, 1.1, 1.2]),
        ],
    )
    def test_steps_of_a_file(self, path: Path, expression: str, times: list[float]) -> None:
        """Each term tests what it names; how a stream ends holds for all of it; tokens' facts hold for no request."""
        answers = Answers(stream_of)
        with load_selection(path, parse(expression)) as selection:
            assert selection is not None
            found = [step.time for event in EVENTS for step in answers.follow(event) if selection.passes(step)]
        assert found == times

    def test_no_filter_reads_nothing(self, path: Path) -> None:
        """Without a filter there is no selection."""
        with load_selection(path, None) as selection:
            assert selection is None

    def test_a_file_that_breaks(self, path: Path) -> None:
        """Nothing is selected from a file that cannot be read to its end: how its streams end is not known."""
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]) + "[]\n[]\n")
        with pytest.raises(FileError, match="line 12"), load_selection(path, parse("tok:12")):
            pass

    def test_any_token_of_a_stream(self) -> None:
        """A stream is wanted where the filter holds for it or for one of its tokens."""
        spool = EventStore()
        spool.feed(EVENTS)
        made = Measures(spool.state, spool)
        wanted = {
            one: [Selection(parse(one), made).passes_any(i) for i in range(3)]
            for one in ("p<.1", "err", "state:waiting")
        }
        assert list(wanted.values()) == [[True, False, False], [False, True, False], [False, False, True]]


class TestFacts:
    """Facts of streams and tokens, as a filter asks for them."""

    def test_a_token(self) -> None:
        """Everything that is known of a token and its stream."""
        facts = TokenFacts(MADE, 1)
        assert (facts.sid, facts.conn, facts.model, facts.kind, facts.tok, facts.text) == (
            "1/1",
            1,
            "gpt2",
            "gen",
            12,
            "llo",
        )
        assert facts.p == pytest.approx(0.368, abs=1e-3)
        assert facts.bits == pytest.approx(1.443, abs=1e-3)
        assert facts.gap == pytest.approx(100)
        assert str(facts.rank) == "2"

    def test_the_state_is_the_last_one(self) -> None:
        """A token of a stream that failed later is a token of a failed stream."""
        assert TokenFacts(MADE, 0).state == "error"
        assert parse("err").token(TokenFacts(MADE, 0))

    def test_what_is_not_known(self) -> None:
        """Without a logprob there is no probability."""
        facts = TokenFacts(measures(generate(0.0), tokens(0.1, token(5) | {"logprob": None})), 0)
        assert (facts.p, facts.bits, facts.rank, facts.gap) == (None, None, None, None)

    def test_a_stream(self) -> None:
        """A stream has no facts of tokens: it may have such tokens."""
        facts = StreamFacts(MADE.state.streams[0], "running")
        assert (facts.sid, facts.conn, facts.model, facts.kind, facts.state) == ("1/1", 1, "gpt2", "gen", "running")
        assert parse("p<.1 run").stream(facts)
        assert not parse("p<.1 err").stream(facts)


class TestEveryView:
    """A filter acts in every view of tokens."""

    @pytest.mark.parametrize("kind", [SplitDocument, InterleavedDocument, TextDocument, TableDocument])
    def test_other_tokens_are_not_shown(self, kind: type[ViewDocument], view: View) -> None:
        """What does not pass is left out of lists; in a text dots keep its place. The cursor's token is always read."""
        document = kind(view, UNICODE)
        before = "\n".join(rows(document, 100))
        view.choose_token(view.state.streams[0].rows[-1])
        view.set_filter(parse('"fox"'))
        after = "\n".join(rows(document, 100))
        assert "fox" in before
        assert " the" in before
        assert "fox" in after
        assert " the" not in after.replace(" there", "")
        assert ("····" in after) is (kind in (SplitDocument, TextDocument))
        view.set_filter(None)
        view.end()
        assert "\n".join(rows(document, 100)) == before

    def test_a_text_keeps_its_lines(self, view: View) -> None:
        """With and without a filter each token stands in the same place; signs of the cursor aside."""
        document = TextDocument(view, UNICODE)
        before = [length(document.line(y, 16)) for y in range(document.height(16))]
        view.set_filter(parse("p<0"))
        assert [length(document.line(y, 16)) for y in range(document.height(16))] == before

    def test_the_cursor_goes_where_there_is_something(self, view: View) -> None:
        """A stream that the filter does not let through is left for the first that it does."""
        view.set_filter(parse("sid:1/2"))
        view.keep_to_filter()
        assert view.stream == 1
        view.set_filter(parse("sid:none"))
        view.keep_to_filter()
        assert view.stream == 1

    def test_a_followed_stream(self, view: View) -> None:
        """Following one stream, the filter goes on in it alone."""
        view.set_filter(parse("p<2"))
        every = len(view.token_rows())
        view.follow_stream()
        assert len(view.token_rows()) == len(view.rows_of(view.state.streams[0])) < every
        view.follow_stream()
        assert len(view.token_rows()) == every
