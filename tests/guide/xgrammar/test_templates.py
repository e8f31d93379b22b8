"""Constraints compiled in processes, over the library's stand-in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from lmtool import constraint
from lmtool.errors import ConstraintError, ConstraintTooComplexError, ResourceError
from lmtool.guide.compiler import MatcherCompiler
from lmtool.guide.config import GuideConfig
from lmtool.guide.xgrammar import templates as module
from lmtool.guide.xgrammar.templates import XgrammarTemplates
from tests.guide.following import EOS, TOKENIZER, VOCAB, WORDS, mask_of
from tests.guide.xgrammar.fakes import FAKE

CONFIG = GuideConfig(threads=1, deadline=2.0)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, in place of the library."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "xgrammar", raising=False)


@pytest.fixture
def compiler(library: None) -> Iterator[MatcherCompiler]:
    """A compiler over it."""
    made = MatcherCompiler(TOKENIZER, VOCAB, EOS, CONFIG, XgrammarTemplates)
    yield made
    made.close()


def grammar(text: str) -> constraint.Constraint:
    return constraint.grammar(f"root ::= {text}")


def test_held_to_a_choice(compiler: MatcherCompiler) -> None:
    """From the first mask to the end, for rows apart; what was compiled is kept."""
    wanted = constraint.choice(["yes", "no"])
    guides = [compiler.compile(wanted).result(60) for _ in range(2)]
    said = ""
    tokenizer = json.loads(TOKENIZER)["model"]["vocab"]
    spelled = {token: text for text, token in tokenizer.items()}
    while not guides[0].ended():
        token = int(mask_of(compiler, guides[0]).nonzero()[0][-1])
        guides[0].advance(token)
        said += spelled[token]
    assert said in {"yes", "no"}
    mask = np.zeros((2, WORDS), np.int32)
    compiler.fill([(guides[0], 1), (guides[1], 0)], mask)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    assert bits[1].nonzero()[0].tolist() == sorted(EOS)
    assert len(bits[0].nonzero()[0]) > 2
    assert compiler.counts.hits == 1
    assert compiler.counts.cached_bytes == 1005


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ('"hang"', ConstraintTooComplexError, "more than 2 s"),
        ('"crash"', ConstraintTooComplexError, "SIGABRT"),
        ('"slow slow"', ConstraintTooComplexError, "50 ms for each of 3 tokens"),
        ('"stuck"', ConstraintError, "no text matches the grammar"),
        ('"refuse"', ConstraintError, "the grammar cannot be held by xgrammar: EBNF error: no such thing"),
    ],
)
def test_failures_stay_alone(compiler: MatcherCompiler, text: str, kind: type[ConstraintError], told: str) -> None:
    """A constraint that hangs, crashes, is slow or wrong fails by itself; the next one is compiled."""
    problem = compiler.compile(grammar(text)).exception(60)
    assert isinstance(problem, kind)
    assert told in str(problem)
    for _ in range(50):  # whoever comes while the process starts again may be told to wait
        if (again := compiler.compile(grammar('"a"'))).exception(60) is None:
            break
    assert again.result().may_end() is False


def test_one_that_cannot_be_held_never_reaches_the_process(compiler: MatcherCompiler) -> None:
    """Refused by name, with the library that takes it."""
    problem = compiler.compile(constraint.json_schema({"type": "array", "uniqueItems": True})).exception(60)
    assert "'uniqueItems'" in str(problem)


def test_a_matcher_that_breaks(compiler: MatcherCompiler) -> None:
    """Ends the streams of its step with an error, and lets eos through alone."""
    guide = compiler.compile(grammar('"a"')).result(60)
    guide.matcher.compiled.word = "raise"  # type: ignore[attr-defined]
    assert sorted(mask_of(compiler, guide).nonzero()[0]) == sorted(EOS)
    assert "could not be filled" in str(guide.error())


def test_what_is_too_large_is_not_read(compiler: MatcherCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing bounds the time of reading but the length."""
    monkeypatch.setattr(module, "MAX_COMPILED_CHARACTERS", 10)
    assert "characters; expected at most 10" in str(compiler.compile(grammar('"a"')).exception(60))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its absence is told with the line that installs it."""
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ResourceError) as refused:
        XgrammarTemplates(TOKENIZER, VOCAB, EOS, CONFIG)
    assert "pip install 'lmtool[xgrammar]'" in refused.value.hints[0]


@pytest.mark.usefixtures("library")
def test_vocabulary() -> None:
    """The bytes of each id are llguidance's; ids that end a text, and ids that none has, have no bytes."""
    library = XgrammarTemplates(TOKENIZER, 1600, EOS, CONFIG)
    vocabulary = library._info.vocabulary
    assert len(vocabulary) == 1600
    assert {vocabulary[token] for token in (*EOS, *range(1536, 1600))} == {b""}
    assert {bytes([byte]) for byte in range(32, 127)} <= set(vocabulary)
    library.close()
