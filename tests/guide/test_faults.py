"""Where a constraint is badly written: in the words of its author."""

from __future__ import annotations

import pytest

from lmtool import constraint
from lmtool.errors import ConstraintError
from lmtool.guide.compiler import MatcherCompiler
from lmtool.text.tokenizer import load_tokenizer
from lmtool.tiny.path import MODEL_DIR
from lmtool.types import Constraint


@pytest.fixture(scope="module")
def compiler() -> MatcherCompiler:
    tokenizer = load_tokenizer(str(MODEL_DIR))
    return MatcherCompiler(tokenizer.to_json(), tokenizer.vocab_size, (2,))


def refusal(compiler: MatcherCompiler, one: Constraint) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(one).result(30)
    return caught.value


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("a(b", '"a(b" is no regular expression: unclosed group, at character 2'),
        ("*a", '"*a" is no regular expression: repetition operator missing expression, at character 1'),
        ("[z-a]", '"[z-a]" is no regular expression: invalid character class range, the start must be <= the end, '),
    ],
)
def test_regular_expressions(compiler: MatcherCompiler, pattern: str, sentence: str) -> None:
    """The fault and its character, without places in texts of ours."""
    error = refusal(compiler, constraint.regex(pattern))
    assert error.message.startswith(sentence)
    assert "1(8)" not in error.sentence


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "strin"}, 'the type "strin" at #/type is none; did you mean string?'),
        ({"properties": {"a/b": {"type": ["null", "intger"]}}}, 'the type "intger" at #/properties/a~1b/type is none'),
        ({"properties": 5}, "at #/properties: properties must be an object"),
        ({"items": {"type": "string", "minLength": "x"}}, "at #/items/minLength: Expected"),
        ({"anyOf": [{"$ref": "#/nope"}, {}]}, "what #/anyOf/0/$ref refers to does not exist: #/nope"),
        ({"type": "string", "enum": 5}, "at #/enum: enum must be an array"),
    ],
)
def test_schemas(compiler: MatcherCompiler, schema: dict[str, object], part: str) -> None:
    """The member that is wrong, and what it should be; nothing is said of leaving out what is a slip."""
    error = refusal(compiler, constraint.json_schema(schema))
    assert part in error.message
    assert error.hints == ()


def test_grammars(compiler: MatcherCompiler) -> None:
    """No place in what stands around the grammar is named."""
    assert refusal(compiler, constraint.grammar('start: "a" foo')).message.endswith('held: unknown name: "foo"')
