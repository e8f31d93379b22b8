"""Guides by llguidance and the masks that they fill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, ResourceError, ServerError
from lmtool.inference.guide import llguidance as module
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.guide.llguidance import ConstraintBackend, GuideConfig
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, WORDS, accepts, compiled, mask_of
from tests.net.subprocesses import calls

STORIES = Path(__file__).parents[2] / "data/stories260K"


@pytest.mark.parametrize(
    "wanted",
    [constraint.regex(r"[^\s\S]a"), constraint.json_schema({"$ref": "#"}), constraint.grammar("start: a\na: a")],
)
def test_what_matches_nothing_is_refused(backend, wanted):
    """A constraint that compiles and can never be met is refused before anyone gets it."""
    with pytest.raises(ConstraintError, match="no text matches"):
        backend.compile(wanted)


def test_names_are_not_looked_up():
    """A text that is no tokenizer.json is refused: the library would take it for a name on the hub."""
    with pytest.raises(ResourceError):
        ConstraintBackend("bert-base-uncased", 1000, EOS)


def test_wider_logits():
    """Ids that the logits have and the tokenizer lacks are never allowed."""
    backend = ConstraintBackend(TOKENIZER, 1600, EOS)
    mask = backend.compile(constraint.regex(".*")).matcher.deep_copy().compute_bitmask()
    assert len(mask) >= 200
    assert int.from_bytes(mask, "little") >> 1536 == 0


@pytest.mark.parametrize(("folder", "size", "eos"), [(MODEL_DIR, 1536, [0, 2]), (STORIES, 512, [1, 2])])
def test_tokens_are_the_tokenizers_own(folder, size, eos):
    """Followed token by token as our tokenizer splits it, a text of several scripts is what it is."""
    tokenizer = load_tokenizer(str(folder))
    backend = ConstraintBackend(tokenizer.to_json(), size, eos)
    text = '{"name":"Zoë 😀 \\n","ok":true}'
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}}}
    template = backend.compile(constraint.json_schema(schema))
    matcher = template.matcher.deep_copy()
    tokens = tokenizer.encode_continuation(text)
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()
    assert tokenizer.decode(tokens).strip() == text
    assert json.loads(backend.tokenizer.decode_str(tokens)) == json.loads(text)


def test_marks_that_show_are_text(backend):
    """An added token between angle brackets that is not special matches its text, as one token or as several."""
    tokenizer = load_tokenizer(str(MODEL_DIR))
    text = "<tool_call>\n{}\n</tool_call>"
    template = backend.compile(constraint.regex(r"<tool_call>\n\{\}\n</tool_call>"))
    tokens = tokenizer.encode_continuation(text)
    assert tokens[0] == 1534
    for written in (tokens, backend.tokenizer.tokenize_str(text)):
        matcher = template.matcher.deep_copy()
        assert matcher.try_consume_tokens(written) == len(written)
        assert matcher.is_accepting()
    assert backend.tokenizer.is_special_token(EOS[1])


def test_size_grows_with_the_constraint(backend):
    """The estimate of memory counts the constraint's own length."""
    small, large = (backend.compile(constraint.choice([f"w{n}" for n in range(count)])) for count in (2, 2000))
    assert 0 < small.size < large.size
    assert accepts(backend, large, "w1999")


def test_what_is_long_is_written_by_a_helper(monkeypatch):
    """It compiles as ever; a helper that takes too long, or ends, fails its own constraint."""
    many = constraint.choice([f"word {number}" for number in range(3000)])
    backend = ConstraintBackend(TOKENIZER, VOCAB, EOS, GuideConfig(deadline=5.0))
    assert accepts(backend, backend.compile(many), "word 2999")
    with monkeypatch.context() as patched:
        patched.setattr(module, "first_grammar", calls.abort)
        with pytest.raises(ServerError, match="SIGABRT"):
            backend.compile(many)
    assert accepts(backend, backend.compile(many), "word 0")
    backend.close()
    hasty = ConstraintBackend(TOKENIZER, VOCAB, EOS, GuideConfig(deadline=0.0))
    with pytest.raises(ConstraintTooComplexError, match="converting the constraint"):
        hasty.compile(many)
    hasty.close()


def test_rows_are_apart(compiler):
    """Only the rows named are written, each by its own guide."""
    guides = [compiled(compiler, constraint.choice([text])) for text in ("yes", "no")]
    mask = np.full((4, WORDS), 7, np.int32)
    compiler.fill([(guides[0], 3), (guides[1], 1)], mask)
    assert (mask[[0, 2]] == 7).all()
    alone = np.zeros((1, WORDS), np.int32)
    for guide, row in ((guides[0], 3), (guides[1], 1)):
        compiler.fill([(guide, 0)], alone)
        assert (alone[0] == mask[row]).all()
    compiler.fill([], mask)


def test_an_error_is_its_own_row_s(compiler, backend):
    """A guide that is in error allows eos only and says why; the others of the step are filled."""
    bad, good = (compiled(compiler, constraint.choice(["yes", "no"])) for _ in range(2))
    bad.advance(backend.tokenizer.tokenize_str("z")[0])
    mask = np.zeros((2, WORDS), np.int32)
    compiler.fill([(bad, 0), (good, 1)], mask)
    assert isinstance(bad.error(), ServerError)
    assert good.error() is None
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, :VOCAB]
    assert sorted(bits[0].nonzero()[0]) == sorted(EOS)
    assert 2 <= bits[1].sum() <= 4


def test_slow_rows_are_dropped():
    """A row that takes too long three times is ended; it is found also among others."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(step_seconds=0.0, late_seconds=-1.0))
    guides = [compiled(compiler, constraint.regex(r"\w+")) for _ in range(2)]
    mask = np.zeros((2, WORDS), np.int32)
    for step in range(5):
        compiler.fill([(guide, row) for row, guide in enumerate(guides)], mask)
        errors = [guide.error() for guide in guides]
        assert (errors != [None, None]) == (step >= 3), step
    assert all(isinstance(error, ConstraintTooComplexError) for error in errors)
    compiler.close()


def test_who_takes_long_is_known():
    """A guide whose mask took long says so, from the first one on, until one did not; it looks for nothing more."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(late_seconds=0.0))
    guide = compiled(compiler, constraint.choice(["yes"]))
    assert guide.slow
    assert guide.forced() == []
    assert guide.fork().slow
    guide.slow = False
    assert guide.forced()
    mask_of(compiler, guide)
    assert guide.slow
    compiler.close()
    usual = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(late_seconds=10.0))
    guide = compiled(usual, constraint.choice(["yes"]))
    assert not guide.slow
    guide.slow = True
    mask_of(usual, guide)
    assert not guide.slow
    usual.close()


def test_among_others_too():
    """Rows that take long together are looked at one by one afterwards."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(late_seconds=-1.0))
    guides = [compiled(compiler, constraint.regex(r"\w+")) for _ in range(2)]
    mask = np.zeros((2, WORDS), np.int32)
    for guide in guides:
        guide.slow = False
    compiler.fill([(guide, row) for row, guide in enumerate(guides)], mask)
    assert [guide.slow for guide in guides] == [False, False]
    compiler.fill([(guide, row) for row, guide in enumerate(guides)], mask)
    assert [guide.slow for guide in guides] == [True, True]
    compiler.close()


def test_drafts(compiler, backend):
    """Each beginning of a draft gets its row; behind an illegal token everything is allowed; nothing moves."""
    guide = compiled(compiler, constraint.regex("[ax][bx]z"))
    a, b, y = (backend.tokenizer.tokenize_str(letter)[0] for letter in "aby")
    mask = np.zeros((6, WORDS), np.int32)
    compiler.fill_drafts([(guide, 1, [a, b, y, a])], mask)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, :VOCAB]
    assert bits[0].sum() == 0
    assert bits[1][a]
    assert bits[2][b]
    assert not bits[2][a]
    assert not bits[3][y]
    assert bits[4].all()
    assert bits[5].all()
    assert (mask_of(compiler, guide) == bits[1].astype(bool)).all()


@pytest.mark.parametrize("mask", [np.zeros((1, WORDS), np.int64), np.zeros((1, WORDS + 1), np.int32)])
def test_shape(compiler, mask):
    """A mask of another shape or type is a mistake of the caller's."""
    guide = compiled(compiler, constraint.regex("a"))
    with pytest.raises(AssertionError):
        compiler.fill([(guide, 0)], mask)
