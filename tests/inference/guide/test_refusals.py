"""What is refused for how it is written: in the words of its author, with the place."""

from __future__ import annotations

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError
from lmtool.core.types import Constraint
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR


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
        ("a(b", "the regular expression is malformed: unclosed group, at character 2: (b"),
        ("*a", "the regular expression is malformed: repetition operator missing expression, at character 1: *a"),
        ("[z-a]", "the regular expression is malformed: invalid character class range, the start must be <= the end, "),
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
        ({"type": "strin"}, 'malformed at #/type: "strin" stands there; expected one of array, '),
        ({"properties": {"a/b": {"type": ["null", "intger"]}}}, '#/properties/a~1b/type: ["null", "intger"] stands'),
        ({"properties": 5}, "at #/properties: 5 stands there; expected an object of schemas"),
        ({"items": {"type": "string", "minLength": "x"}}, 'at #/items/minLength: "x" stands there; expected a whole'),
        ({"anyOf": [{"$ref": "#/nope"}, {}]}, 'at #/anyOf/0/$ref: "#/nope" is not within the schema'),
        ({"type": "string", "enum": 5}, "at #/enum: 5 stands there; expected a list of values"),
    ],
)
def test_schemas(compiler: MatcherCompiler, schema: dict[str, object], part: str) -> None:
    """The member that is wrong, and what it should be; nothing is said of leaving out what is a slip."""
    error = refusal(compiler, constraint.json_schema(schema))
    assert part in error.message
    assert not any("strict" in hint for hint in error.hints)


def test_a_type_that_is_misspelt(compiler: MatcherCompiler) -> None:
    """The nearest one is named."""
    assert refusal(compiler, constraint.json_schema({"type": ["null", "intger"]})).hints == ("did you mean integer?",)


def test_grammars(compiler: MatcherCompiler) -> None:
    """No place in what stands around the grammar is named."""
    assert refusal(compiler, constraint.grammar('start: "a" foo')).message.endswith('enforced: unknown name: "foo"')
