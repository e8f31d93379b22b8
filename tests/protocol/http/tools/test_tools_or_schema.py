"""Answers in a form of the client's, or calls of tools."""

from __future__ import annotations

import json

import pytest

from lmtool.core import constraint
from lmtool.core.types import Constraint
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tools.definitions import Tool, ToolUse
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS
from lmtool.protocol.http.tools.parsers import tools_or_schema
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = (Tool("weather", None, CITY, strict=True), Tool("stop", None, None, strict=False))
FORM = constraint.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
ANSWER = '{"a":1}'
WEATHER = '{"name": "weather", "KEY": {"city":"Rome"}}'
SPECIAL = 1
"""The id of a special token of the embedded model, in the place of a mark."""


@pytest.fixture(scope="module")
def backend() -> ConstraintBackend:
    """For the embedded model's tokenizer."""
    return ConstraintBackend(TOKENIZER, VOCAB, EOS)


def held(backend: ConstraintBackend, form: Constraint, calls: str, *, parallel: bool = True) -> CompiledConstraint:
    return backend.compile(tools_or_schema(form, ToolUse(TOOLS, "auto", parallel), TOOL_CALL_PARSERS[calls], {}))


@pytest.mark.parametrize(
    ("calls", "one", "between", "around"),
    [
        ("hermes", "<tool_call>\n{}\n</tool_call>".replace("{}", WEATHER.replace("KEY", "arguments")), "\n", "{}"),
        ("mistral", WEATHER.replace("KEY", "arguments"), ", ", "[TOOL_CALLS][{}]"),
    ],
)
def test_one_or_the_other(backend: ConstraintBackend, calls: str, one: str, between: str, around: str) -> None:
    """The form, or calls as the model writes them, which its reader reads; never both, nor anything else."""
    template = held(backend, FORM, calls)
    written = {count: around.replace("{}", between.join([one] * count)) for count in (1, 2)}
    assert accepts(backend, template, ANSWER)
    for count, text in written.items():
        assert accepts(backend, template, text), text
        reader = TOOL_CALL_PARSERS[calls].reader()
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
        assert not accepts(backend, template, bad), bad
    alone = held(backend, FORM, calls, parallel=False)
    assert accepts(backend, alone, written[1])
    assert not accepts(backend, alone, written[2])


def test_where_both_are_objects(backend: ConstraintBackend) -> None:
    """One brace begins either: then it is one call, or the form, of which a part may be named anywhere in it."""
    tree = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "of": {"$ref": "#"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    template = held(backend, constraint.json_schema(tree), "llama3_json")
    call = '{"name":"weather","parameters":{"city":"Rome"}}'
    for good in ('{"n":1}', '{"n":1,"of":{"n":2}}', call, '{"name":"stop","parameters":{}}'):
        assert accepts(backend, template, good), good
    reader = TOOL_CALL_PARSERS["llama3_json"].reader()
    assert [delta.name for delta in [*reader.push(call), *reader.finish()] if delta.name] == ["weather"]
    for bad in ('{"n":1,"of":1}', call.replace("Rome", "Bonn"), call + call, "Hello", '{"name":"weather"}'):
        assert not accepts(backend, template, bad), bad


def test_calls_that_are_objects_beside_text(backend: ConstraintBackend) -> None:
    """A form without a brace leaves room for several of them."""
    template = held(backend, constraint.choice(["yes", "no"]), "llama3_json")
    call = WEATHER.replace("KEY", "parameters")
    assert accepts(backend, template, "yes")
    assert accepts(backend, template, f"{call}; {call}")
    assert not accepts(backend, template, "Hello")


@pytest.mark.parametrize("arguments", ["{}", '{"why":[1,2]}'])
def test_a_tool_that_is_not_strict(backend: ConstraintBackend, arguments: str) -> None:
    """It may get anything that is an object."""
    template = held(backend, FORM, "hermes")
    text = f'<tool_call>\n{{"name": "stop", "arguments": {arguments}}}\n</tool_call>'
    assert accepts(backend, template, text)
    assert not accepts(backend, template, text.replace(arguments, "[]"))


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (constraint.regex("[a-z]{2,3}!"), "abc!", "abcd!"),
        (constraint.choice(["yes/no", "a|b (c)", "Ünï"]), "a|b (c)", "a"),
        (constraint.structural_tag({"format": {"type": "const_string", "value": "so"}}), "so", "what"),
        (constraint.json_schema({"type": "array", "uniqueItems": True}, strict=False), "[1,1]", "1"),
    ],
)
def test_other_forms(backend: ConstraintBackend, form: Constraint, good: str, bad: str) -> None:
    """A form of another kind is held as well."""
    template = held(backend, form, "hermes")
    assert accepts(backend, template, good)
    assert not accepts(backend, template, bad)
    assert bool(template.warnings) == (not form.strict)


def test_marks_that_are_special_tokens(backend: ConstraintBackend) -> None:
    """They are taken as what they are: no text stands for them."""
    use = ToolUse(TOOLS, "auto", parallel=False)
    template = backend.compile(tools_or_schema(FORM, use, TOOL_CALL_PARSERS["mistral"], {"[TOOL_CALLS]": SPECIAL}))
    text = f"[{WEATHER.replace('KEY', 'arguments')}]"
    tokens = [SPECIAL, *backend.tokenizer.tokenize_str(text)]
    matcher = template.matcher.deep_copy()
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()
    assert not accepts(backend, template, "[TOOL_CALLS]" + text)


def test_models_without_calls() -> None:
    """A model that no template tells of tools answers in the form alone."""
    assert tools_or_schema(FORM, ToolUse(TOOLS, "auto"), TOOL_CALL_PARSERS["none"], {}) is FORM


@pytest.mark.parametrize(
    "form",
    [
        constraint.grammar('start: "a"'),
        constraint.structural_tag({"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]}),
    ],
)
def test_what_cannot_be_said_as_one(form: Constraint) -> None:
    """It is refused, with a way out."""
    with pytest.raises(ApiError, match="cannot be enforced beside tools") as refused:
        tools_or_schema(form, ToolUse(TOOLS, "auto"), TOOL_CALL_PARSERS["hermes"], {})
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
        tools_or_schema(form, ToolUse(TOOLS, "auto"), TOOL_CALL_PARSERS["hermes"], {})
