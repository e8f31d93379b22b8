"""JSON that a schema allows."""

from __future__ import annotations

import json

import jsonschema
import pytest
from llguidance import LLMatcher

from lmtool import constraint
from lmtool.errors import ConstraintError, LmtoolError
from lmtool.guide.json_grammar import json_grammars
from tests.guide.following import accepts, compact, compiled, schema_template, walk

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3, "uniqueItems": True},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "dependentRequired": {"tags": ["age"]},
}
SHAPE = {
    "oneOf": [
        {"type": "object", "properties": {"r": {"type": "integer"}}, "required": ["r"], "additionalProperties": False},
        {"type": "object", "properties": {"r": {"const": 1}, "h": {"type": "boolean"}}, "required": ["h"]},
        {"type": "array", "items": {"type": "null"}, "maxItems": 4},
    ]
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schema", [PERSON, SHAPE, {"type": "string", "not": {"enum": ["", "x"]}, "maxLength": 5}])
def test_random_walks_are_valid(compiler, templates, schema, seed):
    """Whatever is drawn from the masks is valid once it has ended."""
    guide = compiled(compiler, constraint.json_schema(schema))
    text, ended = walk(compiler, templates, guide, seed)
    if ended:
        jsonschema.validate(json.loads(text), schema)


def test_compact_unless_asked(templates):
    """JSON has no blanks between its parts, unless the constraint allows them."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    compactly = templates.make(constraint.json_schema(schema))
    freely = templates.make(constraint.json_schema(schema, any_whitespace=True))
    for text, is_compact in (('{"a":1}', True), ('{ "a": 1 }', False), ('{\n  "a": 1\n}', False)):
        assert accepts(templates, compactly, text) == is_compact
        assert accepts(templates, freely, text)


def test_boolean_schemas(templates):
    """`true` allows all JSON, `false` nothing."""
    assert accepts(templates, templates.make(constraint.json_schema(True)), '[1,{"a":null}]')
    with pytest.raises(ConstraintError, match="false"):
        next(json_grammars(constraint.json_schema(False)))


UNHELD = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def test_strict_refuses_by_name(templates):
    """What cannot be held is refused, with the keyword and the way around."""
    problem = schema_template(templates, UNHELD)
    assert isinstance(problem, ConstraintError)
    assert "'uniqueItems'" in problem.message
    assert "strict" in problem.hints[0]


def test_lenient_says_what_it_ignores(templates):
    """Not strict, the same is left out, and said to be."""
    template = schema_template(templates, UNHELD, strict=False)
    assert not isinstance(template, LmtoolError)
    assert any("uniqueItems" in warning for warning in template.warnings)
    assert accepts(templates, template, compact([1, 1]))
    assert not accepts(templates, template, compact(["x"]))


def test_lenient_is_exact_where_it_can_be(templates):
    """Not strict, a schema is still rewritten before anything is left out."""
    template = schema_template(templates, {"type": "string", "not": {"const": "x"}}, strict=False)
    assert not isinstance(template, LmtoolError)
    assert template.warnings == ()
    assert not accepts(templates, template, '"x"')


def test_objects_that_need_more_names_than_there_are(templates):
    """A part that no object matches, since names come once, is left out; where nothing is left, that is said."""
    two = {"minProperties": 2, "patternProperties": {"^a$": {"const": 1}}, "additionalProperties": False}
    problem = schema_template(templates, {"type": "object", **two})
    assert isinstance(problem, ConstraintError)
    assert "no text matches" in problem.message
    assert "'minProperties' is 2" in problem.hints[0]
    template = schema_template(templates, {"anyOf": [{"type": "object", **two}, {"type": "null"}]})
    assert not isinstance(template, LmtoolError)
    assert accepts(templates, template, "null")
    assert not accepts(templates, template, '{"a":1,"a":1}')


def test_options_in_a_schema_have_no_effect(templates):
    """A schema cannot switch the library's own options: what is strict stays so."""
    problem = schema_template(templates, {"x-guidance": {"lenient": True}, **UNHELD})
    assert isinstance(problem, ConstraintError)


@pytest.mark.parametrize(
    "schema", [True, {}, PERSON, {"title": 'é \\ "', "x-guidance": {"lenient": True}, "enum": [1]}]
)
def test_the_librarys_own_form(schema):
    """The first way to write a schema is what the library makes of it."""
    plain = {} if schema is True else {name: part for name, part in schema.items() if name != "x-guidance"}
    options = {"whitespace_flexible": False, "coerce_one_of": False, "lenient": False}
    expected = json.loads(LLMatcher.grammar_from_json_schema(json.dumps(plain), overrides=options))
    text, warnings, _ = next(json_grammars(constraint.json_schema(schema)))
    assert json.loads(text.removeprefix("start: %json ")) == expected["grammars"][0]["json_schema"]
    assert warnings == ()
