"""One stream's way over a matcher of xgrammar's kind."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from lmtool.errors import ServerError
from lmtool.guide.xgrammar.guide import XgrammarGuide
from tests.guide.xgrammar.fakes import EOS, FAKE, VOCABULARY

YES = 128


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., XgrammarGuide]:
    """What begins a guide of some texts."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "xgrammar", raising=False)
    import xgrammar

    info = xgrammar.TokenizerInfo(VOCABULARY, xgrammar.VocabType.RAW, stop_token_ids=EOS)

    def begun(*texts: str, word: str = "") -> XgrammarGuide:
        matcher = xgrammar.GrammarMatcher(xgrammar.CompiledGrammar(list(texts), info, word))
        return XgrammarGuide(matcher, len(VOCABULARY), frozenset(EOS), ("told",))

    return begun


def test_to_its_end(begin: Callable[..., XgrammarGuide]) -> None:
    """A text may end where it is whole, and has ended where nothing goes on from it; forced tokens are not told."""
    guide = begin("yes", "yes!")
    assert (guide.may_end(), guide.ended(), guide.forced(), guide.warnings) == (False, False, [], ("told",))
    guide.advance(YES)
    assert (guide.may_end(), guide.ended()) == (True, False)
    assert guide.known is not None
    guide.advance(ord("!"))
    assert guide.known is None
    assert (guide.may_end(), guide.ended()) == (True, True)
    allowed = np.unpackbits(guide.known.view(np.uint8), bitorder="little").nonzero()[0]
    assert allowed.tolist() == EOS
    guide.advance(EOS[1])
    assert guide.ended()
    assert guide.error() is None


def test_wrong_tokens(begin: Callable[..., XgrammarGuide]) -> None:
    """A token that is not allowed is an error, and so is whatever the library raises; a fork goes on."""
    guide = begin("yes")
    other = guide.fork()
    guide.advance(ord("n"))
    assert isinstance(guide.error(), ServerError)
    other.advance(YES)
    assert other.may_end()
    broken = begin("yes", word="raise")
    broken.advance(YES)
    assert "broke" in str(broken.error())


def test_drafts(begin: Callable[..., XgrammarGuide]) -> None:
    """Tokens of a draft are tried on a copy."""
    guide = begin("yes")
    assert [guide.accepts(draft) for draft in ([YES], [*b"yes"], [*b"yo"], [YES, EOS[0]], [ord("y"), EOS[0]])] == [
        1,
        3,
        1,
        2,
        1,
    ]
    assert not guide.may_end()
