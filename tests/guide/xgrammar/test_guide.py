"""One stream's way over a matcher of xgrammar's kind."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from lmtool.errors import ServerError
from lmtool.guide.schema.open_names import OpenNames
from lmtool.guide.unique_names import NameTokens
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
        names = NameTokens(Spelled(), len(VOCABULARY)).unique(OpenNames(any=True, may_run_out=True), (b"",))  # type: ignore[arg-type]
        return XgrammarGuide(matcher, len(VOCABULARY), frozenset(EOS), ("told",), names)

    return begun


class Spelled:
    """What is asked of a tokenizer."""

    def is_special_token(self, token: int) -> bool:
        return token in EOS

    def decode_bytes(self, tokens: list[int]) -> bytes:
        return VOCABULARY[tokens[0]]


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


def allowed(guide: XgrammarGuide) -> str:
    row = np.frombuffer(guide._lookahead().compute_bitmask(), np.uint32).copy()
    guide.forbid_repeats(row)
    return "".join(VOCABULARY[at].decode() for at in np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0])


def test_names_come_once(begin: Callable[..., XgrammarGuide]) -> None:
    """What would write a name twice is forbidden, and what only leads there; a fork remembers its own."""
    guide = begin('{"a":1,"a":1}', '{"a":1,"b":1}', '{"c":1,"c":1}', '{"c":1}')
    for byte in b'{"a":1,"':
        guide.advance(byte)
    assert allowed(guide) == "b"
    assert guide.accepts([*b'a":']) == 0
    other = guide.fork()
    other.advance(ord("b"))
    other.advance(ord('"'))
    assert other.error() is None
    for byte in b'a"':
        guide.advance(byte)
    assert "for the second time" in str(guide.error())
    ended = begin('{"c":1,"c":1}', '{"c":1}')
    for byte in b'{"c":1':
        ended.advance(byte)
    assert allowed(ended) == "}"


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
