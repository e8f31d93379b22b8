"""Answers in a form of the client's, or calls of tools."""

from __future__ import annotations

import json

import pytest

from lmtool import constraint
from lmtool.guide.templates import Template, Templates
from lmtool.http_api.errors import ApiError
from lmtool.http_api.tools.definitions import Tool, ToolUse
from lmtool.http_api.tools.either import either
from lmtool.http_api.tools.parsers import FORMS
from lmtool.types import Constraint
from tests.guide.following import EOS, TOKENIZER, VOCAB, accepts

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = (Tool("weather", None, CITY, strict=True), Tool("stop", None, None, strict=False))
FORM = constraint.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
ANSWER = '{"a":1}'
WEATHER = '{"name": "weather", "KEY": {"city":"Rome"}}'
SPECIAL = 1
"""The id of a special token of the embedded model, in the place of a mark."""


@pytest.fixture(scope="module")
def templates() -> Templates:
    """For the embedded model's tokenizer."""
    return Templates(TOKENIZER, VOCAB, EOS)


def held(templates: Templates, form: Constraint, calls: str, *, parallel: bool = True) -> Template:
    return templates.make(either(form, ToolUse(TOOLS, "auto", parallel), FORMS[calls], {}))


@pytest.mark.parametrize(
    ("calls", "one", "between", "around"),
    [
        ("hermes", "<tool_call>\n{}\n</tool_call>".replace("{}", WEATHER.replace("KEY", "arguments")), "\n", "{}"),
        ("mistral", WEATHER.replace("KEY", "arguments"), ", ", "[TOOL_CALLS][{}]"),
    ],
)
def test_one_or_the_other(templates: Templates, calls: str, one: str, between: str, around: str) -> None:
    """The form, or calls as the model writes them, which its reader reads; never both, nor anything else."""
    template = held(templates, FORM, calls)
    written = {count: around.replace("{}", between.join([one] * count)) for count in (1, 2)}
    assert accepts(templates, template, ANSWER)
    for count, text in written.items():
        assert accepts(templates, template, text), text
        reader = FORMS[calls].reader()
        deltas = [*reader.push(text), *reader.finish()]
        assert [delta.name for delta in deltas if delta.name is not None] == ["weather"] * count
        assert "".join(delta.text for delta in deltas).strip() == ""
    for bad in (
        "Hello",
        "",
        ANSWER + written[1],
        written[1].replace("Rome", "Bonn"),
        written[1].replace("weather", "w"),
    ):
        assert not accepts(templates, template, bad), bad
    alone = held(templates, FORM, calls, parallel=False)
    assert accepts(templates, alone, written[1])
    assert not accepts(templates, alone, written[2])


def test_where_both_are_objects(templates: Templates) -> None:
    """One brace begins either: then it is one call, or the form, of which a part may be named anywhere in it."""
    tree = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "of": {"$ref": "#"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    template = held(templates, constraint.json_schema(tree), "llama3_json")
    call = '{"name":"weather","parameters":{"city":"Rome"}}'
    for good in ('{"n":1}', '{"n":1,"of":{"n":2}}', call, '{"name":"stop","parameters":{}}'):
        assert accepts(templates, template, good), good
    reader = FORMS["llama3_json"].reader()
    assert [delta.name for delta in [*reader.push(call), *reader.finish()] if delta.name] == ["weather"]
    for bad in ('{"n":1,"of":1}', call.replace("Rome", "Bonn"), call + call, "Hello", '{"name":"weather"}'):
        assert not accepts(templates, template, bad), bad


def test_calls_that_are_objects_beside_text(templates: Templates) -> None:
    """A form without a brace leaves room for several of them."""
    template = held(templates, constraint.choice(["yes", "no"]), "llama3_json")
    call = WEATHER.replace("KEY", "parameters")
    assert accepts(templates, template, "yes")
    assert accepts(templates, template, f"{call}; {call}")
    assert not accepts(templates, template, "Hello")


@pytest.mark.parametrize("arguments", ["{}", '{"why":[1,2]}'])
def test_a_tool_that_is_not_strict(templates: Templates, arguments: str) -> None:
    """It may get anything that is an object."""
    template = held(templates, FORM, "hermes")
    text = f'<tool_call>\n{{"name": "stop", "arguments": {arguments}}}\n</tool_call>'
    assert accepts(templates, template, text)
    assert not accepts(templates, template, text.replace(arguments, "[]"))


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (constraint.regex("[a-z]{2,3}!"), "abc!", "abcd!"),
        (constraint.choice(["yes/no", "a|b (c)", "Ünï"]), "a|b (c)", "a"),
        (constraint.structural_tag({"format": {"type": "const_string", "value": "so"}}), "so", "what"),
        (constraint.json_schema({"type": "array", "uniqueItems": True}, strict=False), "[1,1]", "1"),
    ],
)
def test_other_forms(templates: Templates, form: Constraint, good: str, bad: str) -> None:
    """A form of another kind is held as well."""
    template = held(templates, form, "hermes")
    assert accepts(templates, template, good)
    assert not accepts(templates, template, bad)
    assert bool(template.warnings) == (not form.strict)


def test_marks_that_are_special_tokens(templates: Templates) -> None:
    """They are taken as what they are: no text stands for them."""
    use = ToolUse(TOOLS, "auto", parallel=False)
    template = templates.make(either(FORM, use, FORMS["mistral"], {"[TOOL_CALLS]": SPECIAL}))
    text = f"[{WEATHER.replace('KEY', 'arguments')}]"
    tokens = [SPECIAL, *templates.tokenizer.tokenize_str(text)]
    matcher = template.matcher.deep_copy()
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()
    assert not accepts(templates, template, "[TOOL_CALLS]" + text)


def test_models_without_calls() -> None:
    """A model that no template tells of tools answers in the form alone."""
    assert either(FORM, ToolUse(TOOLS, "auto"), FORMS["none"], {}) is FORM


@pytest.mark.parametrize(
    "form",
    [
        constraint.grammar('start: "a"'),
        constraint.structural_tag({"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]}),
    ],
)
def test_what_cannot_be_said_as_one(form: Constraint) -> None:
    """It is refused, with a way out."""
    with pytest.raises(ApiError, match="cannot be held beside tools") as refused:
        either(form, ToolUse(TOOLS, "auto"), FORMS["hermes"], {})
    assert refused.value.param == "tools"
    assert "tool_choice" in refused.value.message


def test_too_deep_a_form() -> None:
    """The limits of constraints hold for both together."""
    deep: dict[str, object] = {}
    for _ in range(62):
        deep = {"not": deep}
    form = constraint.json_schema(deep)
    assert json.loads(form.text) == deep
    with pytest.raises(ApiError, match="nested more than"):
        either(form, ToolUse(TOOLS, "auto"), FORMS["hermes"], {})
