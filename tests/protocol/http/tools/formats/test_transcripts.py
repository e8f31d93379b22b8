"""Answers in each form, written after the public descriptions of the formats, and what they say."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.protocol.http.tools.definitions import Tool
from lmtool.protocol.http.tools.feed import Delta
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS
from tests.protocol.http.tools.test_parsers import Told, read

TOOLS = (
    Tool(
        "write_file",
        None,
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "integer"},
                "mode": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "tags": {"$ref": "#/$defs/tags"},
                "force": {"type": "boolean"},
            },
            "$defs": {"tags": {"type": "array", "items": {"type": "string"}}},
        },
    ),
    Tool("stop"),
)
BAR = "\uff5c"


def deepseek(text: str) -> str:
    """With DeepSeek's bars in its marks."""
    return text.replace("<|", f"<{BAR}").replace("|>", f"{BAR}>")


QWEN = [
    (
        (
            "I will write it.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\n/tmp/a b.txt\n</parameter>\n"
            '<parameter=lines>\n12\n</parameter>\n<parameter=tags>\n["x", "y"]\n</parameter>\n'
            "<parameter=force>\nTrue\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=stop>\n</function>\n</tool_call>"
        ),
        (
            "I will write it.",
            [
                ("write_file", '{"path": "/tmp/a b.txt", "lines": 12, "tags": ["x", "y"], "force": true}'),
                ("stop", "{}"),
            ],
        ),
    ),
    (
        (
            '<tool_call><function=write_file><parameter=path>if a < b:\n\treturn "</p>"\n\n</parameter></function>'
            "</tool_call>"
        ),
        ("", [("write_file", '{"path": "if a < b:\\n\\treturn \\"</p>\\"\\n"}')]),
    ),
    (
        (
            "<tool_call>\n<function=write_file>\n<parameter=mode>\nnull\n</parameter>\n<parameter=lines>\nmany\n"
            "</parameter>\n<parameter=tags>\n['x', 'y']\n</parameter>\n<parameter=new>\n[1]\n</parameter>\n"
            "</function>\n</tool_call>"
        ),
        ("", [("write_file", '{"mode": null, "lines": "many", "tags": ["x", "y"], "new": [1]}')]),
    ),
    (
        (
            "<tool_call>\n<function=write_file>\n<parameter=tags>\n('x', 1)\n</parameter>\n<parameter=new>\n(1,)\n"
            "</parameter>\n</function>\n</tool_call>"
        ),
        ("", [("write_file", '{"tags": ["x", 1], "new": [1]}')]),
    ),
    ("<tool_call>\nno function\n</tool_call>", ("<tool_call>\nno function\n</tool_call>", [])),
    ("<tool_call>\n<function=stop>", ("", [("stop", "{}")])),
    ("<tool_call>\n<function=write_file>\n<parameter=path>\nabc", ("", [("write_file", '{"path": "abc"}')])),
    ("<tool_call>\n<func", ("<tool_call>\n<func", [])),
]
GLM = [
    (
        (
            "Good.\n<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a\nb</arg_value>\n<arg_key>lines</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>stop\n</tool_call>"
        ),
        ("Good.", [("write_file", '{"path": "a\\nb", "lines": 3}'), ("stop", "{}")]),
    ),
    (
        (
            "<tool_call>write_file<arg_key>force</arg_key><arg_value>false</arg_value><arg_key>mode</arg_key>"
            "<arg_value>7</arg_value></tool_call><tool_call>stop</tool_call>"
        ),
        ("", [("write_file", '{"force": false, "mode": "7"}'), ("stop", "{}")]),
    ),
    ("<tool_call></tool_call>", ("<tool_call></tool_call>", [])),
]
DEEPSEEK_V3 = [
    (
        deepseek(
            "Let me look.<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>write_file\n```json\n"
            '{"path": "a"}\n```<|tool▁call▁end|>\n<|tool▁call▁begin|>function<|tool▁sep|>stop\n```json\n{}\n```'
            "<|tool▁call▁end|><|tool▁calls▁end|>"
        ),
        ("Let me look.", [("write_file", '{"path": "a"}'), ("stop", "{}")]),
    ),
    (deepseek("<|tool▁calls▁begin|>so"), (deepseek("<|tool▁calls▁begin|>so"), [])),
]
DEEPSEEK_V31 = [
    (
        deepseek(
            '<|tool▁calls▁begin|><|tool▁call▁begin|>write_file<|tool▁sep|>{"path": "}"}<|tool▁call▁end|>'
            "<|tool▁call▁begin|>stop<|tool▁sep|>{}<|tool▁call▁end|><|tool▁calls▁end|>"
        ),
        ("", [("write_file", '{"path": "}"}'), ("stop", "{}")]),
    ),
    (
        deepseek("<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>{}<|tool▁call▁end|><|tool▁calls▁end|>."),
        (".", [("function", "{}")]),
    ),
]
KIMI = [
    (
        (
            "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>"
            '{"path": "a"}<|tool_call_end|><|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{}'
            "<|tool_call_end|><|tool_calls_section_end|>"
        ),
        ("Well.", [("write_file", '{"path": "a"}'), ("stop", "{}")]),
    ),
    (
        (
            "<|tool_calls_section_begin|><|tool_call_begin|> stop <|tool_call_argument_begin|> {} <|tool_call_end|>"
            "<|tool_calls_section_end|>"
        ),
        ("", [("stop", "{}")]),
    ),
]
GRANITE = [
    (
        '<|tool_call|>[{"name": "write_file", "arguments": {"path": "a"}}, {"name": "stop", "arguments": {}}]',
        ("", [("write_file", '{"path": "a"}'), ("stop", "{}")]),
    ),
    ("<|tool_call|> nothing", ("<|tool_call|> nothing", [])),
]
GRANITE_20B = [
    (
        'Yes: <function_call> {"name": "stop", "arguments": {}}\n<function_call> {"name": "stop", "arguments": {}}',
        ("Yes:", [("stop", "{}"), ("stop", "{}")]),
    ),
]
PYTHONIC = [
    (
        "[write_file(path='it\\'s \"a\"', lines=-3, tags=['x', (1, 2)], force=True, mode=None), stop()]",
        (
            "",
            [
                (
                    "write_file",
                    '{"path": "it\'s \\"a\\"", "lines": -3, "tags": ["x", [1, 2]], "force": true, "mode": null}',
                ),
                ("stop", "{}"),
            ],
        ),
    ),
    (
        '<|python_start|>[fs.write_file(path="a, b)", tags=["x"], force=true, mode=fast)]<|python_end|>',
        ("", [("fs.write_file", '{"path": "a, b)", "tags": ["x"], "force": true, "mode": "fast"}')]),
    ),
    ("[1] is a note", ("[1] is a note", [])),
    ("[stop] is a word, stop() too", ("[stop] is a word, stop() too", [])),
    ("Hello [stop()]", ("Hello [stop()]", [])),
    ("[write_file(path=", ("", [("write_file", '{"path": ""}')])),
]  # fmt: skip
GPT_OSS = [
    (
        (
            "<|channel|>analysis<|message|>Need to <call> it.<|end|><|start|>assistant<|channel|>commentary"
            ' to=functions.write_file <|constrain|>json<|message|>{"path": "a"}<|call|>'
        ),
        ("", [("write_file", '{"path": "a"}')]),
    ),
    (
        (
            "<|channel|>commentary<|message|>I write.<|end|><|start|>assistant to=functions.stop<|channel|>commentary "
            "json<|message|>{}<|call|>"
        ),
        ("I write.", [("stop", "{}")]),
    ),
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello a < b.<|return|>",
        ("Hello a < b.", []),
    ),
    ("Hello.", ("Hello.", [])),
    ("<|channel|>analysis<|message|>Hm. Let", ("", [])),
]
CASES = [
    (form, *case)
    for form, cases in (
        ("qwen3_coder", QWEN),
        ("qwen3_xml", QWEN[:1]),
        ("glm45", GLM),
        ("deepseek_v3", DEEPSEEK_V3),
        ("deepseek_v31", DEEPSEEK_V31),
        ("kimi_k2", KIMI),
        ("granite", GRANITE),
        ("granite-20b-fc", GRANITE_20B),
        ("pythonic", PYTHONIC),
        ("openai", GPT_OSS),
    )
    for case in cases
]


@pytest.mark.parametrize(("form", "text", "told"), CASES)
def test_text_and_calls(form: str, text: str, told: Told) -> None:
    """Calls are calls, with arguments of the types that the tool names; the rest is text; the same letter by letter."""
    assert read(TOOL_CALL_PARSERS[form].reader(TOOLS), [text]) == told
    assert read(TOOL_CALL_PARSERS[form].reader(TOOLS), list(text)) == told


@given(st.sampled_from(CASES), st.lists(st.integers(0, 300), max_size=6))
def test_cutting_into_pieces_changes_nothing(case: tuple[str, str, Told], cuts: list[int]) -> None:
    """However an answer is cut into pieces, it reads the same."""
    form, text, told = case
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    assert read(TOOL_CALL_PARSERS[form].reader(TOOLS), pieces) == told


WHOLE = [
    (form, text, told)
    for form, text, told in [
        *[(case[0], *case[1:]) for case in CASES],
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ("", [("f", '{"a": 1}')])),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', ("", [("f", '{"a": 1}')])),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}]', ("", [("f", "{}")])),
    ]
    if told[1] and not any(mark in told[0] for mark in "<[")
]


@pytest.mark.parametrize(("form", "text", "told"), WHOLE)
def test_a_call_that_is_cut_is_no_text(form: str, text: str, told: Told) -> None:
    """Wherever its token limit cuts an answer, its text has nothing of a call, and its calls are beginnings of them."""
    said, calls = told
    for end in range(len(text)):
        reader = TOOL_CALL_PARSERS[form].reader(TOOLS)
        deltas = [*reader.push(text[:end]), *reader.finish(cut=True)]
        assert said.startswith("".join(delta.text for delta in deltas).rstrip()), text[:end]
        cut = whole(deltas)
        assert [name for name, _ in cut] == [name for name, _ in calls][: len(cut)]
        assert all(arguments == calls[at][1] for at, (_, arguments) in enumerate(cut[:-1]))
        if cut and form != "pythonic":  # where a value counts only when it is whole
            assert calls[len(cut) - 1][1].startswith(cut[-1][1].rstrip('"}')) or end < len(text)


def whole(deltas: list[Delta]) -> list[tuple[str, str]]:
    """Names and arguments of the calls."""
    calls: list[list[str]] = []
    for delta in deltas:
        if delta.name is not None:
            calls.append([delta.name, ""])
        if delta.call is not None:
            calls[delta.call][1] += delta.arguments
    return [(name, arguments) for name, arguments in calls]


def test_arguments_come_as_they_form() -> None:
    """A string argument is told letter by letter, others and what may be a mark's beginning when they are whole."""
    reader = TOOL_CALL_PARSERS["qwen3_coder"].reader(TOOLS)
    pieces = [
        "<tool_call>\n<function=write_file>\n<parameter=path>\n",
        "one ",
        'tw"o',
        "\n<",
        "/p>\n",
        "</parameter>\n",
    ]
    told = ["".join(delta.arguments for delta in reader.push(piece)) for piece in pieces]
    assert told == ['{"path": "', "one ", 'tw\\"o', "", "\\n</p>", '"']
    told = [
        "".join(delta.arguments for delta in reader.push(piece))
        for piece in ["<parameter=lines>", "1", "2</parameter>"]
    ]
    assert told == [', "lines": ', "", "12"]


def test_kimi_gives_its_calls_ids() -> None:
    """Its template shows them again."""
    reader = TOOL_CALL_PARSERS["kimi_k2"].reader()
    deltas = reader.push(KIMI[0][0])
    assert [delta.id for delta in deltas if delta.name] == ["functions.write_file:0", "functions.stop:1"]


def test_arguments_are_json() -> None:
    """Whatever the values are, finished calls have JSON for arguments."""
    for form, text, (_, calls) in CASES:
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls), (form, text)


@given(
    st.sampled_from(sorted(TOOL_CALL_PARSERS)),
    st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "<function=",
                "write_file",
                ">",
                "<parameter=",
                "path",
                "\n",
                "</parameter>",
            ]
            + ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[", "(", "=", "'", '"', "\\", ")", "]", ","]
            + ["{", "}", "1", "<|tool_call|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "a:0"]
            + [deepseek(f"<|tool▁{name}|>") for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")]
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_nothing_breaks_a_reader(form: str, pieces: list[str], cut: bool) -> None:
    """Whatever a model writes, a reader ends with text or calls, each begun once and in order."""
    reader = TOOL_CALL_PARSERS[form].reader(TOOLS)
    told = [delta for piece in pieces for delta in reader.push(piece)]
    begun = [delta.call for delta in [*told, *reader.finish(cut=cut)] if delta.name is not None]
    assert begun == list(range(len(begun)))
