"""Tool-call formats: reading calls, and constraints that combine calls with a schema."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core import constraint
from lmtool.core.types import Constraint
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.inference.text.tokenizer import TOOL_CALL_MARKS
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tools.definitions import Tool, ToolUse
from lmtool.protocol.http.tools.feed import NamedToolReader, Reader
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS, call_list_reader
from lmtool.protocol.http.tools.parsers import tools_or_schema
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts

Told = tuple[str, list[tuple[str, str]]]

HERMES = [
    ("Hello.", ("Hello.", [])),
    ("A < b <tool> c\n", ("A < b <tool> c\n", [])),
    ('<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>', ("", [("f", '{"a": "}"}')])),
    (
        (
            'Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n'
            '<tool_call>{"arguments": {"x": 1}, "name": "g"}</tool_call>\n'
        ),
        ("Let me see.", [("f", "{}"), ("g", '{"x": 1}')]),
    ),
    ("<tool_call>\nnot json\n</tool_call>", ("<tool_call>\nnot json\n</tool_call>", [])),
    ('<tool_call>{"name": "f", "arguments": {"a', ("", [("f", '{"a')])),
    ('<tool_call>{"na', ('<tool_call>{"na', [])),
    ("so <tool_c", ("so <tool_c", [])),
    ('<tool_call>{"name": "f", "arguments": {}}</tool and more', ("</tool and more", [("f", "{}")])),
]
LLAMA = [
    ("Hello {you}", ("Hello {you}", [])),
    ('{"name": "f", "parameters": {"a": 1}}', ("", [("f", '{"a": 1}')])),
    (
        ' <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        ("", [("f", "{}"), ("g", "{}")]),
    ),
    ('{"color": "red"}', ('{"color": "red"}', [])),
    ("<|python", ("<|python", [])),
]  # fmt: skip
MISTRAL = [
    ("Hello [TOOL", ("Hello [TOOL", [])),
    (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        ("", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    ('Well. [TOOL_CALLS]f[ARGS]{"a": {"b": 1}}[TOOL_CALLS]g{}', ("Well.", [("f", '{"a": {"b": 1}}'), ("g", "{}")])),
    ('[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}', ("", [("f", "{}")])),
    ("Well. [TOOL_CALLS] ", ("Well.[TOOL_CALLS]", [])),
]  # fmt: skip
LISTED = [
    ('[{"name":"f","parameters":{"a":[1,2]}},{"name":"g","parameters":{}}]', ("", [("f", '{"a":[1,2]}'), ("g", "{}")])),
    ('[{"name":"f","parameters":{"a', ("", [("f", '{"a')])),
]
CASES = [
    ("none", "<tool_call>{}", ("<tool_call>{}", [])),
    *[("hermes", *case) for case in HERMES],
    *[("llama3_json", *case) for case in LLAMA],
    *[("mistral", *case) for case in MISTRAL],
    *[("required", *case) for case in LISTED],
]


def made(form: str) -> Reader:
    return call_list_reader() if form == "required" else TOOL_CALL_PARSERS[form].reader()


def read(reader: Reader, pieces: list[str]) -> Told:
    """All text, and all calls: name and arguments; each call is begun once and in order."""
    deltas = [delta for piece in pieces for delta in reader.push(piece)] + list(reader.finish())
    calls: list[list[str]] = []
    for delta in deltas:
        if delta.name is not None:
            assert delta.call == len(calls)
            calls.append([delta.name, ""])
        if delta.call is not None:
            calls[delta.call][1] += delta.arguments
    return "".join(delta.text for delta in deltas), [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize(("form", "text", "told"), CASES)
def test_text_and_calls(form: str, text: str, told: Told) -> None:
    """Calls are calls; what only looks like one is text; the same token by token."""
    assert read(made(form), [text]) == told
    assert read(made(form), list(text)) == told


@given(st.sampled_from(CASES), st.lists(st.integers(0, 120), max_size=6))
def test_cutting_changes_nothing(case: tuple[str, str, Told], cuts: list[int]) -> None:
    """However an answer is cut into pieces, it reads the same."""
    form, text, told = case
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    assert read(made(form), [text[a:b] for a, b in itertools.pairwise(places)]) == told


@given(st.sampled_from(sorted(TOOL_CALL_PARSERS)), st.text(alphabet='<tool_ca>{}[]",:; \nTOLCAS|ARGS/', max_size=60))
def test_nothing_breaks_a_reader(form: str, text: str) -> None:
    """Whatever a model writes, the reader ends with text or calls."""
    read(TOOL_CALL_PARSERS[form].reader(), list(text))


def test_text_is_not_held_back() -> None:
    """What cannot become a mark is told at once; a blank at the end waits for what follows."""
    reader = TOOL_CALL_PARSERS["hermes"].reader()
    assert [delta.text for delta in reader.push("Hello there ")] == ["Hello there"]
    assert [delta.text for delta in reader.push("you <")] == [" you"]


def test_a_named_tool() -> None:
    """All of the answer is its arguments."""
    assert read(NamedToolReader("f"), ['{"a"', ":1}"]) == ("", [("f", '{"a":1}')])


def test_marks_are_known_where_special_tokens_are() -> None:
    """A mark that the tokenizer does not look for would never be seen where it is a special token."""
    assert {mark for form in TOOL_CALL_PARSERS.values() for mark in form.marks} == {*TOOL_CALL_MARKS}


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
