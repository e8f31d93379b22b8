"""Compiled constraints, tried once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, ResourceError, ServerError
from lmtool.inference.guide import llguidance as module
from lmtool.inference.guide.config import GuideConfig
from lmtool.inference.guide.llguidance import ConstraintBackend
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts
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
    with pytest.raises(ConstraintTooComplexError, match="writing the constraint"):
        hasty.compile(many)
    hasty.close()
