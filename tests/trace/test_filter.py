"""The filter's grammar: terms, and, or, not, parentheses; what is wrong is named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.trace.filter import LONGEST, parse


@dataclass(frozen=True)
class Facts:
    """A token of stream 3 of connection 1."""

    sid: str = "1/3"
    conn: int = 1
    model: str | None = "gpt2"
    kind: str = "gen"
    state: str = "running"
    p: float | None = 0.05
    bits: float | None = 4.3
    rank: int | None = 2
    gap: float | None = 80.0
    tok: int | None = 262
    text: str | None = " The end"


TOKEN = Facts()
STREAM = Facts(p=None, bits=None, rank=None, gap=None, tok=None, text=None)

HOLDS = [
    "", " ", "sid:3", "sid:1/3", "1/3", "conn:1", "model:gpt2", "kind:gen", "kind:GEN", "state:run", "run",
    "state:running", "p<.1", "p<=.05", "p>=0.05", "p=0.05", "p<10%", "p>1e-3", "bits>4", "bits>4b", "rank=2",
    "gap>50ms", "gap>.05s", "gap<81", "tok:262", "tok=262", '"the"', "the", "/^ The/", r"/e[n]d$/", '"the end"',
    "p<.1 rank=2", "err | run", "!err", "!(err | done)", "! sid:4", "(sid:3)", "((p<.1))", "err p<.1 | the",
    "the | err p<.1",
    'sid:3 p<.1 !"cat" (gap>50ms | rank>9)',
]  # fmt: skip
FAILS = [
    "sid:4", "sid:2/3", "2/3", "conn:2", "model:gpt", "kind:score", "err", "done", "state:stop", "p>.1", "p<5%",
    "bits>5", "rank>2", "gap>90ms", "gap>1s", "tok:263", '"cat"', "/^the/", "!run", "p<.1 rank>2", "err | done",
    "!(run | err)", "(err | run) tok:1",
]  # fmt: skip


@pytest.mark.parametrize("expression", HOLDS)
def test_what_holds(expression: str) -> None:
    """The token passes."""
    assert parse(expression).token(TOKEN)
    assert parse(expression).stream(STREAM)


@pytest.mark.parametrize("expression", FAILS)
def test_what_does_not_hold(expression: str) -> None:
    """The token does not pass."""
    assert not parse(expression).token(TOKEN)


@pytest.mark.parametrize("expression", ["p<.1", "!p<.1", '"the"', "!the", "tok:1", "rank>3 | gap>5ms", "/x/"])
def test_a_stream_may_have_such_tokens(expression: str) -> None:
    """A stream is listed where a token of it could pass, and a token without the fact does not pass."""
    assert parse(expression).stream(STREAM)
    assert not parse(expression).token(STREAM)


@pytest.mark.parametrize("expression", ["sid:4", "err", "err p<.1", "!run", "kind:score the"])
def test_a_stream_that_cannot(expression: str) -> None:
    """A stream is not listed where no token of it could pass."""
    assert not parse(expression).stream(STREAM)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("foo:1", "foo:1 is not known"),
        ("p<x", "'x' after p< is not a number (units: %)"),
        ("p<", "no value after p<"),
        ("sid: err", "no value after sid:"),
        ("p <.9", "no name before <.9"),
        ("gap>5min", "'5min' after gap> is not a number (units: ms, s)"),
        ("rank>3ms", "'3ms' after rank> is not a number"),
        ("conn:x", "'x' after conn: is not a whole number"),
        ("state:lost", "'lost' is not a state; expected one of waiting, running"),
        ("kind:image", "'image' is not a kind; expected one of gen, score, chat, text"),
        ("sid<3", "sid<3 is not known"),
        ("(err", "a ) is missing"),
        ("err)", "')' does not fit there"),
        ("err |", "it ends too early"),
        ("| err", "'|' does not fit there"),
        ("!", "it ends too early"),
        ("()", "')' does not fit there"),
        ("/[/", "/[/ is not a valid regular expression"),
        ('"open', "cannot be read"),
        ("!" * 60 + "err", "nested too deeply"),
        ("x" * (LONGEST + 1), "at most 1000"),
    ],
)
def test_what_is_wrong_is_named(expression: str, says: str) -> None:
    """The message says which word it is about; the hint says what is possible."""
    with pytest.raises(UsageError) as caught:
        parse(expression)
    assert says in caught.value.message


def test_what_it_asks() -> None:
    """A filter tells which facts it needs, so that costly ones are looked up only then."""
    assert parse('rank>3 (err | p<.1) !"x"').names == {"rank", "state", "p", "text"}
    assert parse("1/3 /x/").names == {"sid", "text"}
    assert parse("").names == frozenset()


@given(st.text(st.sampled_from(list('pbst idr:<>=.5"/|!()x1 ')), max_size=30))
def test_any_text_is_understood_or_refused(expression: str) -> None:
    """Nothing else than the errors of this program comes out of it."""
    try:
        chosen = parse(expression)
    except LmtoolError:
        return
    assert chosen.token(TOKEN) in (True, False)
    assert chosen.stream(STREAM) in (True, False)


terms = st.sampled_from(["err", "run", "p<.1", "p>.1", "tok:262", "the", "rank>5"])
forms = st.sampled_from(["({} {})", "({} | {})", "!({1})"])
expressions = st.recursive(
    terms, lambda inner: st.builds(lambda a, b, form: form.format(a, b), inner, inner, forms), max_leaves=8
)


@given(expressions, st.sampled_from([TOKEN, STREAM, Facts(state="error", p=0.9)]))
def test_not_not(expression: str, facts: Facts) -> None:
    """Not not is the same; a thing and its opposite never both pass, and only what is unknown passes neither."""
    chosen, negated, twice = parse(expression), parse(f"!({expression})"), parse(f"!!({expression})")
    assert chosen.token(facts) == twice.token(facts)
    assert not (chosen.token(facts) and negated.token(facts))
    if facts is not STREAM:
        assert chosen.token(facts) or negated.token(facts)
