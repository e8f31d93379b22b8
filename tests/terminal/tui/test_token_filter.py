"""Filters over the tokens of a state and the steps of a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import FileError
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.documents.split import SplitDocument
from lmtool.terminal.tui.documents.text import TextDocument
from lmtool.terminal.tui.documents.tokens import InterleavedDocument, TableDocument
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.measures import Measures
from lmtool.terminal.tui.runs import length
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.token_filter import Selection, StreamFacts, TokenFacts, TokenFilter, load_selection
from lmtool.terminal.tui.view import View
from lmtool.trace.answers import Answers
from lmtool.trace.codec import Header
from lmtool.trace.events import Event, Frame, JsonText, Vocab
from lmtool.trace.filter import parse
from lmtool.trace.stream_events import stream_of
from lmtool.trace.writer import TraceWriter
from tests.terminal.tui.states import measures, rows
from tests.trace.conftest import generate, token, tokens

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
