"""Facts of streams and tokens, as a filter asks for them."""

from __future__ import annotations

import pytest

from lmtool.trace.filter import parse
from lmtool.tui.facts import StreamFacts, TokenFacts
from tests.trace.conftest import generate, token, tokens
from tests.tui.folding import measures

MADE = measures(
    generate(0.0, model="gpt2"),
    tokens(0.1, token(5, text="He")),
    tokens(
        0.2, token(12, logprob=-1.0, top_logprobs={"11": -0.5, "12": -1.0}, text="llo"), {"stream_id": 1, "error": "no"}
    ),
)


def test_a_token() -> None:
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


def test_the_state_is_the_last_one() -> None:
    """A token of a stream that failed later is a token of a failed stream."""
    assert TokenFacts(MADE, 0).state == "error"
    assert parse("err").token(TokenFacts(MADE, 0))


def test_what_is_not_known() -> None:
    """Without a logprob there is no probability."""
    facts = TokenFacts(measures(generate(0.0), tokens(0.1, token(5) | {"logprob": None})), 0)
    assert (facts.p, facts.bits, facts.rank, facts.gap) == (None, None, None, None)


def test_a_stream() -> None:
    """A stream has no facts of tokens: it may have such tokens."""
    facts = StreamFacts(MADE.state.streams[0], "running")
    assert (facts.sid, facts.conn, facts.model, facts.kind, facts.state) == ("1/1", 1, "gpt2", "gen", "running")
    assert parse("p<.1 run").stream(facts)
    assert not parse("p<.1 err").stream(facts)
