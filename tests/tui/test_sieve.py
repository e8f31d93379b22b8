"""Tokens that a filter lets through, found while more come."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.errors import FileError
from lmtool.trace.answers import Answers
from lmtool.trace.events import Event, Frame, Parsed, Vocab
from lmtool.trace.filter import parse
from lmtool.trace.header import Header
from lmtool.trace.stream_events import stream_of
from lmtool.trace.writer import TraceWriter
from lmtool.tui.facts import TokenFacts
from lmtool.tui.lines import Spool
from lmtool.tui.measures import Measures
from lmtool.tui.sieve import Selection, Sieve, load_selection
from tests.trace.conftest import generate, token, tokens


@given(
    st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=6),
    st.sampled_from(["tok:1", "!tok:2", "gap>0ms", "err"]),
)
def test_the_same_as_asking_each_token(frames: list[list[int]], expression: str) -> None:
    """While tokens come, exactly those are found that the filter lets through."""
    spool = Spool()
    spool.feed([generate(0.0)])
    made = Measures(spool.state, spool)
    sieve = Sieve(parse(expression), None, made)
    for i, ids in enumerate(frames):
        spool.feed([tokens(i / 10, *[token(one, 1 + one % 2) for one in ids])])
        wanted = [row for row in range(len(spool.state.tokens)) if parse(expression).token(TokenFacts(made, row))]
        assert sieve.rows(len(spool.state.tokens)).tolist() == wanted
        assert sieve.rows(2).tolist() == [row for row in wanted if row < 2]


def test_one_stream_only() -> None:
    """Tokens of other streams do not pass."""
    spool = Spool()
    spool.feed([generate(0.0), generate(0.0, 2), tokens(0.1, token(1), token(1, 2), token(1))])
    made = Measures(spool.state, spool)
    assert Sieve(parse("tok:1"), 0, made).rows(3).tolist() == [0, 2]
    assert Sieve(parse("tok:1"), 1, made).rows(3).tolist() == [1]


def test_a_stream_that_fails_later() -> None:
    """Where the filter asks how a stream ends, tokens seen before the end are found after it."""
    spool = Spool()
    spool.feed([generate(0.0), tokens(0.1, token(1))])
    sieve = Sieve(parse("err"), None, Measures(spool.state, spool))
    assert sieve.rows(1).tolist() == []
    spool.feed([tokens(0.2, {"stream_id": 1, "error": "no"})])
    assert sieve.rows(1).tolist() == [0]


@pytest.mark.parametrize(("expression", "step"), [("tok:1", 20_000), ("rank>1", 2_000)])
def test_bit_by_bit(expression: str, step: int) -> None:
    """Many tokens are not looked at in one go: drawing does not wait for them."""
    spool = Spool()
    spool.feed([generate(0.0)])
    spool.feed([tokens(i / 100, *[token(1)] * 100) for i in range(410)])
    sieve = Sieve(parse(expression), None, Measures(spool.state, spool))
    assert len(sieve.rows(41_000)) == 0
    rounds = 1
    while sieve.go_on():
        rounds += 1
    assert rounds == -(-41_000 // step)
    assert len(sieve.rows(41_000)) == (41_000 if expression == "tok:1" else 0)


EVENTS: tuple[Event, ...] = (
    Vocab(0.0, 0, {11: " the", 12: "x"}),
    generate(0.0),
    tokens(0.1, token(11, logprob=-0.1, top_logprobs={"11": -0.1, "12": -3.0})),
    tokens(0.2, token(12, logprob=-3.0, top_logprobs={"11": -0.1, "12": -3.0})),
    tokens(0.9, token(11, logprob=-0.1), token(13) | {"finish_reason": "stop"}),
    generate(1.0, 2, connection=2),
    tokens(1.05, token(11, 2), connection=2),
    Frame(1.1, "<", 2, Parsed("TOKEN", [{"stream_id": 2, "error": "no"}], "py")),
    generate(1.2, 3, connection=2),
    Frame(1.3, ">", 2, Parsed("MODEL_INFO", {"stream_id": 4}, "py")),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trace of these events."""
    writer = TraceWriter(tmp_path / "a.lmtp.jsonl", Header())
    for event in EVENTS:
        writer.write(event)
    writer.close(2.0)
    return writer.path


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
def test_steps_of_a_file(path: Path, expression: str, times: list[float]) -> None:
    """Each term looks at what it names; how a stream ends holds for all of it; tokens' facts hold for no request."""
    answers = Answers(stream_of)
    with load_selection(path, parse(expression)) as selection:
        assert selection is not None
        found = [step.time for event in EVENTS for step in answers.follow(event) if selection.wants(step)]
    assert found == times


def test_no_filter_reads_nothing(path: Path) -> None:
    """Without a filter there is no selection."""
    with load_selection(path, None) as selection:
        assert selection is None


def test_a_file_that_breaks(path: Path) -> None:
    """Nothing is selected from a file that cannot be read to its end: how its streams end is not known."""
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]) + "[]\n[]\n")
    with pytest.raises(FileError, match="line 12"), load_selection(path, parse("tok:12")):
        pass


def test_any_token_of_a_stream() -> None:
    """A stream is wanted where the filter holds for it or for one of its tokens."""
    spool = Spool()
    spool.feed(EVENTS)
    made = Measures(spool.state, spool)
    wanted = {
        one: [Selection(parse(one), made).wants_any(i) for i in range(3)] for one in ("p<.1", "err", "state:waiting")
    }
    assert list(wanted.values()) == [[True, False, False], [False, True, False], [False, False, True]]
