"""One stream's way."""

from __future__ import annotations

from lmtool.core import constraint
from lmtool.core.errors import ConstraintTooComplexError, ServerError
from lmtool.inference.guide.llguidance import too_complex
from tests.inference.guide.following import EOS, compiled, mask_of


def ids(backend, text):
    return backend.tokenizer.tokenize_str(text)


def test_forced_tokens(compiler, backend):
    """Tokens that must follow are told and not taken; after them the text is over and only eos is left."""
    guide = compiled(compiler, constraint.regex("a{3}"))
    forced = guide.forced()
    assert backend.tokenizer.decode_str(forced) == "aaa"
    assert guide.forced() == forced
    for token in forced:
        assert not guide.may_end()
        guide.advance(token)
    assert guide.may_end()
    assert guide.ended()
    assert guide.forced() == []
    assert sorted(mask_of(compiler, guide).nonzero()[0]) == sorted(EOS)


def test_looking_for_forced_tokens_must_pay(compiler, monkeypatch):
    """Where it takes too long once, the stream goes on without, and so does its copy."""
    guide = compiled(compiler, constraint.regex("a{3}b?"))
    monkeypatch.setattr("lmtool.inference.guide.llguidance._FORCED_SECONDS", -1.0)
    assert guide.forced()
    assert guide.forced() == guide.fork().forced() == []


def test_eos(compiler, backend):
    """An eos id ends a whole match, and is an error before; nothing follows it."""
    guide = compiled(compiler, constraint.regex("ab?"))
    early = guide.fork()
    early.advance(EOS[0])
    assert isinstance(early.error(), ServerError)
    guide.advance(ids(backend, "a")[0])
    assert guide.may_end()
    assert not guide.ended()
    guide.advance(EOS[1])
    assert guide.ended()
    assert guide.error() is None
    guide.advance(ids(backend, "b")[0])
    assert isinstance(guide.error(), ServerError)


def test_wrong_token(compiler, backend):
    """A token that the mask did not allow is an error of this guide alone, and stays one."""
    guide = compiled(compiler, constraint.choice(["yes", "no"]))
    other = guide.fork()
    guide.advance(ids(backend, "z")[0])
    problem = guide.error()
    assert isinstance(problem, ServerError)
    guide.advance(ids(backend, "y")[0])
    assert guide.error() is problem
    assert (guide.may_end(), guide.ended(), guide.forced(), guide.accepts([5])) == (False, False, [], 0)
    assert other.error() is None


def test_accepts(compiler, backend):
    """Of a draft the legal beginning is counted, eos included; the guide does not move."""
    guide = compiled(compiler, constraint.regex("a[bc]"))
    a, b, z = (ids(backend, letter)[0] for letter in "abz")
    assert guide.accepts([a, b]) == 2
    assert guide.accepts([a, z, b]) == 1
    assert guide.accepts([a, EOS[0]]) == 1
    assert guide.accepts([a, b, EOS[0], EOS[0]]) == 3
    assert guide.accepts([EOS[0]]) == 0
    assert guide.accepts([]) == 0
    assert not guide.may_end()


def test_fork(compiler, backend):
    """A fork goes its own way from the same place."""
    guide = compiled(compiler, constraint.choice(["ab", "ac"]))
    guide.advance(ids(backend, "a")[0])
    other = guide.fork()
    guide.advance(ids(backend, "b")[0])
    assert guide.ended()
    assert not other.ended()
    assert other.accepts(ids(backend, "c")) == 1


def test_first_error_stays(compiler):
    """The first error of a guide is the one that is told; it goes with copies, and ends everything."""
    guide = compiled(compiler, constraint.regex("a"))
    guide.fail(too_complex("first"))
    guide.fail(too_complex("second"))
    assert str(guide.check()) == "first"
    copy = guide.fork()
    assert copy.error() is guide.error()
    assert (copy.may_end(), copy.ended(), copy.forced()) == (False, False, [])


def test_too_complex():
    """Says what to do."""
    problem = too_complex("it is long")
    assert isinstance(problem, ConstraintTooComplexError)
    assert "simpler" in problem.hints[0]
