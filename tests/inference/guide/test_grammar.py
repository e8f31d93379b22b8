"""What each kind of constraint is written as, and how a refusal reads."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError, LmtoolError
from lmtool.inference.guide.grammar import NOUNS, grammars, refusal
from tests.inference.guide.following import accepts, compact, compiled, compiled_schema, walk

PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", r"\d", ".", r"\.", "é", " ", r"\w", '"', r"\\"]),
    lambda inner: st.one_of(
        st.builds("({}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{})*".format, inner),
        st.builds("(?:{})?".format, inner),
        st.builds("(?:{}){{1,3}}".format, inner),
    ),
    max_leaves=6,
)
TEXTS = st.text(st.sampled_from('ab1.é "\\\n/'), max_size=5)


@given(PATTERNS, st.lists(TEXTS, max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_regex_like_re(backend, pattern, texts):
    """A text is a whole match exactly where Python's `re.fullmatch` finds one, by ASCII."""
    found = backend.compile(constraint.regex(pattern))
    for text in texts:
        assert accepts(backend, found, text) == (re.fullmatch(pattern, text, re.ASCII) is not None), text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "pattern", [r"\d{3}-\d{4}", r"(?:[A-Z][a-z]{1,8} ){2,4}[.!]", r"a*b|c+", r"^[ab]{5}\Z", r"x{0,40}"]
)
def test_random_walks_match(compiler, backend, pattern, seed):
    """Whatever is drawn from the masks matches once it has ended."""
    text, ended = walk(compiler, backend, compiled(compiler, constraint.regex(pattern)), seed)
    assert ended
    assert re.fullmatch(pattern, text)


@given(st.lists(st.text(max_size=6), min_size=1, max_size=8), TEXTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_choice(backend, texts, other):
    """Exactly the texts of a choice are allowed, whatever characters they have; beginnings of one another too."""
    found = backend.compile(constraint.choice(texts))
    assert all(accepts(backend, found, text) for text in texts)
    assert accepts(backend, found, other) == (other in texts)


@pytest.mark.parametrize(
    "source",
    ['start: "a" b+\nb: "x" | "y"', 'root ::= "a" b+\nb ::= "x" | "y"', "start: A\nA: /a[xy]+/"],
)
def test_grammars(backend, source):
    """Lark and GBNF are told apart and mean what they say."""
    found = backend.compile(constraint.grammar(source))
    assert accepts(backend, found, "axyx")
    assert not accepts(backend, found, "a")
    assert not accepts(backend, found, "axz")


TAG = {
    "structures": [
        {
            "begin": "<f=add>",
            "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            "end": "</f>",
        },
        {"begin": "<f=stop>", "schema": {"type": "null"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("no tag", True),
        ('Hm. <f=add>{"n":1}</f> and <f=stop>null</f>.', True),
        ('<f=add>{"n":"1"}</f>', False),
        ("<f=other>", False),
        ('<f=add>{"n":1}', False),
    ],
)
def test_structural_tag(backend, text, allowed):
    """Text is free until a trigger; from there the tag, its schema and its end must follow."""
    assert accepts(backend, backend.compile(constraint.structural_tag(TAG)), text) == allowed


@pytest.mark.parametrize(
    "tag",
    [
        {},
        {"structures": [], "triggers": ["<"]},
        {"structures": [{"begin": "<f>"}], "triggers": ["<"]},
        {"structures": [{"begin": "f", "schema": {}, "end": ""}], "triggers": ["<"]},
        {"structures": [{"begin": "<f>", "schema": 1, "end": ""}], "triggers": ["<"]},
        {"structures": [{"begin": "<f>", "schema": {}, "end": 1}], "triggers": ["<"]},
    ],
)
def test_bad_structural_tags(backend, tag):
    """A tag that is not one is refused by its part."""
    with pytest.raises(ConstraintError, match=r"structur|triggers"):
        backend.compile(constraint.structural_tag(tag))


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)b", "look-ahead"),
        (r"(a)\1", "back-references"),
        (r"a\bb", "supported at the ends only"),
        ("(a", "unclosed group"),
        ("a{2,1}", "repetition"),
    ],
)
def test_refusals_say_why(backend, pattern, why):
    """A regular expression that cannot be enforced is refused in words, without the library's pictures."""
    with pytest.raises(ConstraintError, match=why) as caught:
        backend.compile(constraint.regex(pattern))
    assert "\n" not in caught.value.message


def test_refusal_of_a_schema_hints_at_lenience():
    """Only a strict schema can be had more leniently."""
    strict, lenient = (constraint.json_schema({}, strict=strict) for strict in (True, False))
    assert "false" in refusal(strict, "no").hints[0]
    assert refusal(lenient, "no").hints == ()
    assert NOUNS[strict.kind] == "JSON Schema"


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
def test_random_walks_are_valid(compiler, backend, schema, seed):
    """Whatever is drawn from the masks is valid once it has ended."""
    guide = compiled(compiler, constraint.json_schema(schema))
    text, ended = walk(compiler, backend, guide, seed)
    if ended:
        jsonschema.validate(json.loads(text), schema)


def test_compact_unless_asked(backend):
    """JSON has no blanks between its parts, unless the constraint allows them."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    compactly = backend.compile(constraint.json_schema(schema))
    freely = backend.compile(constraint.json_schema(schema, any_whitespace=True))
    for text, is_compact in (('{"a":1}', True), ('{ "a": 1 }', False), ('{\n  "a": 1\n}', False)):
        assert accepts(backend, compactly, text) == is_compact
        assert accepts(backend, freely, text)


def test_boolean_schemas(backend):
    """`true` allows all JSON, `false` nothing."""
    assert accepts(backend, backend.compile(constraint.json_schema(True)), '[1,{"a":null}]')
    with pytest.raises(ConstraintError, match="false"):
        next(grammars(constraint.json_schema(False)))


UNSUPPORTED = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def test_strict_refuses_by_name(backend):
    """What cannot be enforced is refused, with the keyword and the way around."""
    problem = compiled_schema(backend, UNSUPPORTED)
    assert isinstance(problem, ConstraintError)
    assert "'uniqueItems'" in problem.message
    assert "strict" in problem.hints[0]


def test_lenient_says_what_it_ignores(backend):
    """Not strict, the same is left out, and said to be."""
    found = compiled_schema(backend, UNSUPPORTED, strict=False)
    assert not isinstance(found, LmtoolError)
    assert any("uniqueItems" in warning for warning in found.warnings)
    assert accepts(backend, found, compact([1, 1]))
    assert not accepts(backend, found, compact(["x"]))


def test_lenient_is_exact_where_it_can_be(backend):
    """Not strict, a schema is still rewritten before anything is left out."""
    found = compiled_schema(backend, {"type": "string", "not": {"const": "x"}}, strict=False)
    assert not isinstance(found, LmtoolError)
    assert found.warnings == ()
    assert not accepts(backend, found, '"x"')


@pytest.mark.parametrize(
    ("schema", "value", "bad"),
    [
        ({"properties": {"a": {"type": "integer"}}, "minProperties": 2}, {"a": 1, "b": 2}, {"a": 1}),
        ({"type": "number", "not": {"type": "integer"}}, 2.5, 2),
        ({"propertyNames": {"maxLength": 3}, "const": {"f": 1}}, {"f": 1}, {"four": 1}),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}], "const": 2.5}, 2.5, 3),
    ],
)
def test_what_is_not_impossible(backend, schema, value, bad):
    """That no text matches is said only where it is proven."""
    found = compiled_schema(backend, schema)
    assert not isinstance(found, LmtoolError)
    assert accepts(backend, found, compact(value))
    assert not accepts(backend, found, compact(bad))


def test_what_may_be_possible_is_not_called_impossible(backend):
    """Where ways were left out, and none is left, that is said; lenient mode goes on without the keyword."""
    schema = {"type": "number", "maximum": -100, "not": {"type": "integer"}}
    problem = compiled_schema(backend, schema)
    assert isinstance(problem, ConstraintError)
    assert "no text matches" not in problem.message
    assert "a number that must not be an integer lies between" in problem.message
    found = compiled_schema(backend, schema, strict=False)
    assert not isinstance(found, LmtoolError)
    assert accepts(backend, found, "-100.5")


@pytest.mark.parametrize(
    ("schema", "good", "bad", "warning"),
    [
        ({"type": "string", "pattern": "(?=x)"}, "y", 5, "#/pattern is ignored"),
        ({"properties": {"a": {"type": "string", "pattern": "a$b"}}}, {"a": "y"}, {"a": 5}, "#/properties/a/pattern"),
    ],
)
def test_lenient_falls_through_to_a_wider_form(backend, schema, good, bad, warning):
    """What no grammar can hold is left out with a warning; what is malformed, or matches nothing, is not."""
    found = compiled_schema(backend, schema, strict=False)
    assert not isinstance(found, LmtoolError)
    assert any(warning in sentence for sentence in found.warnings)
    assert accepts(backend, found, compact(good))
    assert not accepts(backend, found, compact(bad))
    for wrong in ({"type": "strin"}, {"pattern": "(["}, {"type": "string", "minLength": 3, "maxLength": 1}):
        assert isinstance(compiled_schema(backend, wrong, strict=False), ConstraintError)


def test_objects_that_need_more_names_than_there_are(backend):
    """A part that no object matches, since names come once, is left out; where nothing is left, that is said."""
    two = {"minProperties": 2, "patternProperties": {"^a$": {"const": 1}}, "additionalProperties": False}
    problem = compiled_schema(backend, {"type": "object", **two})
    assert isinstance(problem, ConstraintError)
    assert "no text matches" in problem.message
    assert "'minProperties' is 2" in problem.hints[0]
    found = compiled_schema(backend, {"anyOf": [{"type": "object", **two}, {"type": "null"}]})
    assert not isinstance(found, LmtoolError)
    assert accepts(backend, found, "null")
    assert not accepts(backend, found, '{"a":1,"a":1}')


def test_options_in_a_schema_have_no_effect(backend):
    """A schema cannot switch the library's own options: what is strict stays so."""
    problem = compiled_schema(backend, {"x-guidance": {"lenient": True}, **UNSUPPORTED})
    assert isinstance(problem, ConstraintError)


@pytest.mark.parametrize(
    "schema", [True, {}, PERSON, {"title": 'é \\ "', "x-guidance": {"lenient": True}, "enum": [1]}]
)
def test_the_librarys_own_form(schema):
    """The first way to write a schema is what the library makes of it."""
    plain = {} if schema is True else {name: part for name, part in schema.items() if name != "x-guidance"}
    options = {"whitespace_flexible": False, "coerce_one_of": False, "lenient": False}
    expected = json.loads(LLMatcher.grammar_from_json_schema(json.dumps(plain), overrides=options))
    grammar = next(grammars(constraint.json_schema(schema)))
    assert json.loads(grammar.text.removeprefix("start: %json ")) == expected["grammars"][0]["json_schema"]
    assert grammar.warnings == ()
