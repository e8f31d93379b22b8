"""Alternatives of the tokens of an event, beside the tokens that the state takes from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.events import Event, Frame, Parsed, Remark
from lmtool.tui.answers import Alternative, alternatives, tops
from lmtool.tui.state import State
from tests.trace.conftest import token, tokens


def _all(event: Event) -> list[tuple[Alternative, ...]]:
    return [alternatives(top) for top in tops(event)]


def test_best_first() -> None:
    """Alternatives come in order of their logprobs, whatever order the server sent."""
    event = tokens(0.0, token(1, top_logprobs={"3": -2, "1": -0.5, "2": -1.0}), token(2), token(3, top_logprobs={}))
    assert _all(event) == [((1, -0.5), (2, -1.0), (3, -2.0)), (), ()]


def test_what_is_no_alternative() -> None:
    """Names that are no ids, and values that are no finite numbers, are passed over."""
    top = {"x": -1.0, "-1": -1.0, "99999999999": -1.0, "4": None, "5": "a", "6": -1, "٣": -1.0}
    assert _all(tokens(0.0, token(1, top_logprobs=top))) == [((6, -1.0),)]
    assert _all(tokens(0.0, token(1, top_logprobs=[5]))) == [()]


def test_minus_infinity() -> None:
    """LMQL's server writes -Infinity for ids that were cut: they are no alternatives."""
    text = 'TOKEN [{"token": 3, "stream_id": 1, "logprob": -0.1, "top_logprobs": {"3": -0.1, "4": -Infinity}}]'
    assert _all(Frame(0.0, "<", 1, text)) == [((3, -0.1),)]


@pytest.mark.parametrize("event", [Remark(0.0, "mark", 1, "x"), Frame(0.0, ">", 1, Parsed("TOKEN", [token(1)], "py"))])
def test_other_events(event: Event) -> None:
    """Events that bring no token have none."""
    assert _all(event) == []


entry = st.fixed_dictionaries(
    {"stream_id": st.integers(0, 2), "token": st.sampled_from([1, 2, -1, None, 2**40])},
    optional={"text": st.text(max_size=2), "error": st.just("x"), "top_logprobs": st.just({"1": -1.0})},
)


@given(st.lists(entry, max_size=6))
def test_as_many_as_tokens(entries: list[dict[str, object]]) -> None:
    """There is one list for each row that the state makes of the event, in the same order."""
    event = tokens(0.0, *entries)
    state = State()
    state.add(event, 0)
    found = _all(event)
    assert len(found) == len(state.tokens)
    kept = [one for one in entries if one["token"] in (1, 2) or one.get("text")]
    assert [bool(top) for top in found] == ["top_logprobs" in one for one in kept]
