"""What guides of every library have in common."""

from __future__ import annotations

from lmtool.errors import ConstraintTooComplexError, ServerError
from lmtool.guide.held_guide import too_complex
from tests.guide.test_library import EOS, CountingGuide


def test_eos_ends_a_whole_text_alone() -> None:
    """Before it is an error, and so is whatever comes behind it."""
    guide = CountingGuide([5])
    early = guide.fork()
    early.advance(EOS[0])
    assert isinstance(early.error(), ServerError)
    guide.advance(5)
    guide.advance(EOS[0])
    assert guide.ended()
    guide.advance(5)
    assert "behind the end" in str(guide.error())


def test_drafts() -> None:
    """Legal tokens count from the start, and an eos id behind a whole text; nothing moves."""
    guide = CountingGuide([5, 6])
    assert [guide.accepts(draft) for draft in ([], [5], [5, 7], [5, 6], [5, 6, EOS[0]], [5, EOS[0]])] == [
        0,
        1,
        1,
        2,
        3,
        1,
    ]
    assert guide.at == 0
    guide.advance(9)
    assert guide.accepts([5]) == 0


def test_errors() -> None:
    """The first error stays, goes with copies, and ends everything."""
    guide = CountingGuide([5])
    guide.fail(too_complex("first"))
    guide.fail(too_complex("later"))
    assert "first" in str(guide.check())
    copy = guide.fork()
    assert copy.error() is guide.error()
    assert (copy.may_end(), copy.ended(), copy.forced(), copy.warnings) == (False, False, [], ("only counted",))


def test_too_complex() -> None:
    """Says what to do."""
    problem = too_complex("it is long")
    assert isinstance(problem, ConstraintTooComplexError)
    assert "simpler" in problem.hints[0]
