"""The forms in which models write calls."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.inference.text.tokenizer import TOOL_CALL_MARKS
from lmtool.protocol.http.tools.feed import NamedToolReader, Reader
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS, call_list_reader

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
