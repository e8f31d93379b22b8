"""What an answer must match that calls tools in each form: what its reader reads, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lmtool.core import constraint
from lmtool.core.types import Constraint
from lmtool.inference.guide.answer_check import validate
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tools.definitions import Mode, Tool, ToolUse
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS
from lmtool.protocol.http.tools.parsers import forced_calls, strict_calls, tools_or_schema
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts
from tests.protocol.http.tools.formats.test_transcripts import deepseek
from tests.protocol.http.tools.test_parsers import read

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "New York"]},
        "days": {"type": "integer", "minimum": 1},
        "why": {"type": "string"},
        "at": {"type": "string", "pattern": "^[0-9]+h$"},
        "of": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]},
    },
    "required": ["city"],
    "$defs": {"list": {"type": "array", "items": {"type": "boolean"}}},
}
WEATHER, STOP = Tool("weather", None, PARAMETERS, strict=True), Tool("stop", None, None, strict=True)
ARGUMENTS = '{"city":"Rome","days":2}'
FORMS: Mapping[str, tuple[str, str, str]] = {
    "qwen3_coder": (
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
            "</function>\n</tool_call>"
        ),
        "\n",
        "{}",
    ),
    "glm45": (
        (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>2</arg_value>\n</tool_call>"
        ),
        "\n",
        "{}",
    ),
    "deepseek_v3": (
        deepseek(f"<|tool▁call▁begin|>function<|tool▁sep|>weather\n```json\n{ARGUMENTS}\n```<|tool▁call▁end|>"),
        "\n",
        deepseek("<|tool▁calls▁begin|>{}<|tool▁calls▁end|>"),
    ),
    "deepseek_v31": (
        deepseek(f"<|tool▁call▁begin|>weather<|tool▁sep|>{ARGUMENTS}<|tool▁call▁end|>"),
        "",
        deepseek("<|tool▁calls▁begin|>{}<|tool▁calls▁end|>"),
    ),
    "kimi_k2": (
        f"<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>",
        "",
        "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
    ),
    "granite": (f'{{"name": "weather", "arguments": {ARGUMENTS}}}', ", ", "<|tool_call|>[{}]"),
    "granite-20b-fc": (f'<function_call> {{"name": "weather", "arguments": {ARGUMENTS}}}', "\n", "{}"),
    "pythonic": ('weather(city="Rome", days=2)', ", ", "[{}]"),
}
"""One call, what stands between two of them, and around all."""


@pytest.fixture(scope="module")
def backend() -> Iterator[ConstraintBackend]:
    """For the embedded model's tokenizer."""
    made = ConstraintBackend(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


def uses(mode: Mode, *tools: Tool, parallel: bool = True) -> ToolUse:
    return ToolUse(tools or (WEATHER, STOP), mode, parallel)


def forced(form: str, tools: ToolUse, special: Mapping[str, int] | None = None) -> Constraint:
    made = forced_calls(tools, TOOL_CALL_PARSERS[form], special or {})
    assert made is not None
    return made


def answer(form: str, count: int = 1) -> str:
    one, between, around = FORMS[form]
    return around.replace("{}", between.join([one] * count), 1)


def check(
    backend: ConstraintBackend, template: CompiledConstraint, form: str, *, most: int, text: bool = False
) -> None:
    """Calls match, and are read as what they are; others do not."""
    for count in (1, 2):
        written = answer(form, count)
        assert accepts(backend, template, written) == (count <= most), written
        said, calls = read(TOOL_CALL_PARSERS[form].reader((WEATHER, STOP)), [written])
        assert said.strip() == ""
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [
            ("weather", json.loads(ARGUMENTS))
        ] * count
    for old, new in (("Rome", "Bonn"), ("weather", "wether"), ("2", "0"), ("2", "two")):
        assert not accepts(backend, template, answer(form).replace(old, new)), (form, new)
    assert not accepts(backend, template, answer(form)[:-1]) or form == "granite-20b-fc"
    assert accepts(backend, template, "Hello.") == text


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_must_be(backend: ConstraintBackend, form: str) -> None:
    """`required` is held in the model's own form, with as many calls as are allowed; a named tool is called once."""
    check(backend, backend.compile(forced(form, uses("required"))), form, most=2)
    check(backend, backend.compile(forced(form, uses("required", parallel=False))), form, most=1)
    check(backend, backend.compile(forced(form, uses("named", WEATHER))), form, most=1)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "pythonic"])
def test_calls_of_strict_tools_beside_text(backend: ConstraintBackend, form: str) -> None:
    """Text is free until the mark; behind it the tools' schemas hold."""
    made = strict_calls(uses("auto"), TOOL_CALL_PARSERS[form], {})
    assert made is not None
    template = backend.compile(made)
    for text in ("Hello.", "a < b [1] {}", answer(form), f"Let me look.\n{answer(form)}"):
        assert accepts(backend, template, text), text
    assert not accepts(backend, template, answer(form).replace("Rome", "Bonn"))
    loose = Tool("weather", None, PARAMETERS)
    assert strict_calls(uses("auto", loose), TOOL_CALL_PARSERS[form], {}) is None


@pytest.mark.parametrize("form", FORMS)
def test_a_form_or_calls(backend: ConstraintBackend, form: str) -> None:
    """Beside a form for the answer, it is in that form, or it is calls."""
    template = backend.compile(tools_or_schema(constraint.choice(["yes"]), uses("auto"), TOOL_CALL_PARSERS[form], {}))
    assert accepts(backend, template, "yes")
    assert accepts(backend, template, answer(form))
    assert not accepts(backend, template, "no")


@pytest.mark.parametrize("form", FORMS)
def test_marks_that_are_special_tokens(backend: ConstraintBackend, form: str) -> None:
    """A mark that is a special token is that token, forced and beside text; the answer's check raises no alarm."""
    marks = dict.fromkeys(TOOL_CALL_PARSERS[form].marks, 1)
    made = forced(form, uses("required"), marks)
    assert not accepts(backend, backend.compile(made), answer(form)) or form == "pythonic"
    shown = answer(form)
    for mark in marks:
        shown = shown.replace(mark, "")
    assert validate(made, shown, 1000).error is None
    beside = strict_calls(uses("auto"), TOOL_CALL_PARSERS[form], marks)
    if beside is None:
        assert form == "pythonic"
        return
    template = backend.compile(beside)
    assert accepts(backend, template, "Hello.")
    guide = template.guide()
    for token in backend.tokenizer.tokenize_str("So: "):
        guide.advance(token)
    guide.advance(1)
    assert guide.check() is None
    assert not guide.may_end()


XML = {
    "qwen3_coder": "<tool_call>\n<function=weather>\n{}</function>\n</tool_call>",
    "glm45": "<tool_call>weather\n{}</tool_call>",
}
ONE = {
    "qwen3_coder": "<parameter={}>\n{}\n</parameter>\n",
    "glm45": "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
}


@pytest.mark.parametrize("form", XML)
def test_values_as_plain_text(backend: ConstraintBackend, form: str) -> None:
    """Each value is held to its type, and is read as that: strings as they are, other types as JSON."""
    template = backend.compile(forced(form, uses("required")))

    def call(**values: str) -> str:
        return XML[form].replace("{}", "".join(ONE[form].format(*one) for one in values.items()))

    good = call(city="New York", why='it\'s "<b>"\n\n& so </p> on', at="12h", of="[true,false]")
    assert accepts(backend, template, good)
    expected = {"city": "New York", "why": 'it\'s "<b>"\n\n& so </p> on', "at": "12h", "of": [True, False]}
    said, calls = read(TOOL_CALL_PARSERS[form].reader((WEATHER,)), list(good))
    assert (said, [(name, json.loads(arguments)) for name, arguments in calls]) == ("", [("weather", expected)])
    assert accepts(backend, template, call(city="Rome", of="null"))
    for bad in (
        call(),
        call(days="1"),
        call(city="Rome", at="noon"),
        call(city="Rome", at="12h or so"),
        call(city="Rome", of="[1]"),
        call(city="Rome", who="me"),
        call(days="1", city="Rome"),
    ):
        assert not accepts(backend, template, bad), bad


def test_lengths_and_formats_of_plain_text(backend: ConstraintBackend) -> None:
    """A text's length, format and pattern hold, found anywhere where the pattern is not anchored."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"minLength": 2, "maxLength": 4, "type": "string"},
            "b": {"type": "string", "format": "date"},
        }
        | {"c": {"type": "string", "pattern": "x|^y$"}, "d": {"type": "boolean"}, "e": {"type": ["integer", "string"]}},
    }
    template = backend.compile(forced("qwen3_coder", uses("named", Tool("weather", None, schema, strict=True))))

    def accepted(name: str, value: str) -> bool:
        return accepts(backend, template, XML["qwen3_coder"].replace("{}", ONE["qwen3_coder"].format(name, value)))

    assert [accepted("a", value) for value in ("x", "xy", "x\nyz", "xyzxy")] == [False, True, True, False]
    assert [accepted("b", value) for value in ("2026-02-29", "2026-2-1", "today")] == [True, False, False]
    assert [accepted("c", value) for value in ("axb", "y", "ay")] == [True, True, False]
    assert [accepted("d", value) for value in ("true", "True", "yes")] == [True, True, False]
    assert [accepted("e", value) for value in ("1", "one", "")] == [True, True, True]


@pytest.mark.parametrize("form", ["qwen3_coder", "glm45", "pythonic"])
def test_what_cannot_be_held_is_named(form: str) -> None:
    """A strict tool whose arguments depend on each other is refused by keyword and name; one that is not is taken."""
    schema = {**PARAMETERS, "minProperties": 2}
    with pytest.raises(ApiError, match="'weather' have 'minProperties' beside their properties"):
        forced(form, uses("required", Tool("weather", None, schema, strict=True)))
    forced(form, uses("required", Tool("weather", None, schema)))


@pytest.mark.parametrize("form", FORMS)
def test_a_tool_without_a_schema(backend: ConstraintBackend, form: str) -> None:
    """A tool that takes anything, and one that takes nothing, are called in each form."""
    free = Tool("weather", None, {"type": "object"})
    template = backend.compile(forced(form, uses("required", free, STOP)))
    assert accepts(backend, template, answer(form))
    empty = {
        "qwen3_coder": "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
        "glm45": "<tool_call>stop\n</tool_call>",
        "pythonic": "[stop()]",
    }
    stop = empty.get(form) or answer(form).replace("weather", "stop").replace(ARGUMENTS, "{}")
    assert accepts(backend, template, stop)
    assert read(TOOL_CALL_PARSERS[form].reader((free, STOP)), [stop]) == ("", [("stop", "{}")])


def test_a_schema_that_must_be_rewritten(backend: ConstraintBackend) -> None:
    """A strict tool's schema in a tag is rewritten where the library cannot hold it as it is."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}, "required": ["a"]}
    template = backend.compile(forced("deepseek_v31", uses("named", Tool("weather", None, schema, strict=True))))
    written = answer("deepseek_v31").replace(ARGUMENTS, '{"a":NUMBER}')
    assert accepts(backend, template, written.replace("NUMBER", "4"))
    assert not accepts(backend, template, written.replace("NUMBER", "3"))
