"""Tool-call formats of model families: a reader and a grammar each, and the table of parsers by name."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

from lmtool.inference.text import harmony
from lmtool.protocol.http.tools.argument_types import ALL_TYPES, call_arguments, literal_json
from lmtool.protocol.http.tools.call_grammar import ArgumentTags, CallGrammar, const, json_call, sequence, text_call
from lmtool.protocol.http.tools.definitions import alone
from lmtool.protocol.http.tools.feed import BLANKS, ScriptedReader, ValueEnd
from lmtool.protocol.http.tools.parsers import ToolCallParser

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lmtool.protocol.http.tools.argument_types import ArgumentTypes
    from lmtool.protocol.http.tools.call_grammar import CallContext, Part
    from lmtool.protocol.http.tools.definitions import Tool
    from lmtool.protocol.http.tools.feed import Feed, Reader, Reading

# A JSON array of calls, `[{"name": ..., "parameters": {...}}, ...]`: what a constraint produces for forced calls.


def call_list_reader() -> Reader:
    """A reader for an answer that is a JSON array of calls and nothing else."""
    return ScriptedReader(_read_call_list)


def _read_call_list(feed: Feed) -> Reading:
    """Read calls; brackets and commas between them are skipped."""
    while True:
        yield from feed.skip(BLANKS + "[],")
        feed.begin_head()
        yield from feed.json_call()


# Hermes, Qwen: text with calls between two marks, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
"""Marks around a call in the formats of Hermes, Qwen and GLM."""
_HERMES = CallGrammar(json_call("arguments", "\n", "\n"), before=TOOL_CALL, after=TOOL_CALL_END, separator="\n")


def _read_hermes(feed: Feed) -> Reading:
    while True:
        yield from feed.text_before(TOOL_CALL)
        if (yield from feed.json_call()):
            yield from feed.option(TOOL_CALL_END)


# Llama 3: the whole answer is a call, `{"name": ..., "parameters": {}}`, or several with `;` between them, or text.

_PYTHON_TAG = "<|python_tag|>"
_LLAMA3 = CallGrammar(json_call("parameters"), separator="; ")


def _read_llama3(feed: Feed) -> Reading:
    feed.begin_head()
    marked = yield from feed.option(_PYTHON_TAG)
    if not (yield from feed.ahead("{")):
        feed.give_back()
        yield from feed.rest()
    while (yield from feed.json_call(marked=bool(marked))):
        yield from feed.skip(BLANKS + ";")
        feed.begin_head()
    yield from feed.rest()


# Mistral: text, then a mark and only calls, `[TOOL_CALLS][{...}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`.

_TOOL_CALLS = "[TOOL_CALLS]"
_MISTRAL = CallGrammar(json_call("arguments"), opening=_TOOL_CALLS, lead="[", separator=", ", tail="]")


def _read_mistral(feed: Feed) -> Reading:
    yield from feed.text_before(_TOOL_CALLS)
    if (yield from feed.ahead("[", "{")):
        yield from _read_call_list(feed)
    while True:
        head, _ = yield from feed.word("{", keep=True)
        feed.begin_call(head.removeprefix(_TOOL_CALLS).partition("[")[0].strip())
        yield from feed.json_arguments()
        feed.end_call()
        yield from feed.skip()
        feed.begin_head()


# Granite 3: text, then a mark and calls, `<|tool_call|>[{...}, ...]`; 20B marks each call, `<function_call> {...}`.

_GRANITE_CALL, _FUNCTION_CALL = "<|tool_call|>", "<function_call>"
_GRANITE = CallGrammar(json_call("arguments"), opening=_GRANITE_CALL, lead="[", separator=", ", tail="]")
_GRANITE_20B = CallGrammar(json_call("arguments", " "), before=_FUNCTION_CALL, separator="\n")


def _read_granite(feed: Feed) -> Reading:
    yield from feed.text_before(_GRANITE_CALL)
    yield from _read_call_list(feed)


def _read_granite_20b(feed: Feed) -> Reading:
    while True:
        yield from feed.text_before(_FUNCTION_CALL)
        yield from feed.json_call()


# Qwen3-Coder: text with calls, `<tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>`.
# Each tag and each value, which is plain text, has a line of its own.

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_QWEN3_CODER = CallGrammar(
    text_call(
        "\n<function={name}>\n",
        ArgumentTags((_PARAMETER,), (">\n",), ("\n", _PARAMETER_END), "\n"),
        f"{_FUNCTION_END}\n",
    ),
    before=TOOL_CALL,
    after=TOOL_CALL_END,
    separator="\n",
)


def _read_qwen3_coder(feed: Feed, types: ArgumentTypes) -> Reading:
    while True:
        yield from feed.text_before(TOOL_CALL)
        if not (yield from feed.option(_FUNCTION)):
            feed.give_back()
            continue
        tool, _ = yield from feed.word(">")
        feed.begin_call(tool)
        with call_arguments(feed) as writer:
            while (yield from feed.option(_PARAMETER)):
                name, _ = yield from feed.word(">")
                writer.begin(name, types.of(tool, name))
                yield from feed.option("\n", skip="")
                yield from feed.until(f"\n{_PARAMETER_END}", _PARAMETER_END, emit=writer.push)
                writer.end()
        yield from feed.option(_FUNCTION_END)
        feed.end_call()
        yield from feed.option(TOOL_CALL_END)


# GLM 4.5 to 4.7: text with calls, `<tool_call>NAME<arg_key>NAME</arg_key><arg_value>VALUE</arg_value></tool_call>`.
# Values are plain text, or JSON if they are not strings; up to 4.6 each tag has a line of its own.

_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_GLM = CallGrammar(
    text_call("{name}\n", ArgumentTags((_KEY,), (_KEY_END, "\n", _VALUE), (_VALUE_END,), "\n")),
    before=TOOL_CALL,
    after=TOOL_CALL_END,
    separator="\n",
)


def _read_glm(feed: Feed, types: ArgumentTypes) -> Reading:
    while True:
        yield from feed.text_before(TOOL_CALL)
        yield from feed.skip()
        tool, _ = yield from feed.word("\n", _KEY, TOOL_CALL_END, keep=True)
        if not tool:
            feed.give_back()
            continue
        feed.begin_call(tool)
        with call_arguments(feed) as writer:
            while (yield from feed.option(_KEY)):
                name, _ = yield from feed.word(_KEY_END)
                yield from feed.option(_VALUE)
                writer.begin(name, types.of(tool, name))
                yield from feed.until(_VALUE_END, emit=writer.push)
                writer.end()
        feed.end_call()
        yield from feed.option(TOOL_CALL_END)


# DeepSeek V3, V3.1 and Kimi K2: text, then a mark and only calls, each between marks of its own.


def _read_section(
    feed: Feed,
    grammar: CallGrammar,
    head: Callable[[Feed], Generator[None, None, tuple[str, str | None]]],
    block_end: str = "",
) -> Reading:
    """Read one answer.

    grammar: gives the marks around all calls and around each call. head: reads what follows the mark of a call up to
    its arguments; returns the tool's name, and the id that the model gave the call. block_end: optional text after the
    arguments.
    """
    yield from feed.text_before(grammar.opening)
    while True:
        if not (yield from feed.option(grammar.before)):
            feed.give_back()
            yield from feed.rest()
        feed.begin_call(*(yield from head(feed)))
        yield from feed.json_arguments()
        feed.end_call()
        if block_end:
            yield from feed.option(block_end)
        yield from feed.option(grammar.after)
        if (yield from feed.option(grammar.closing)):
            yield from feed.text_before(grammar.opening)
        feed.begin_head()


# DeepSeek V3 writes a kind and the name, then JSON in a Markdown block; V3.1 writes the name and JSON.

_DEEPSEEK_MARKS = tuple(
    f"<\uff5ctool▁{name}\uff5c>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR = _DEEPSEEK_MARKS


def _v3_call(tool: Tool, context: CallContext) -> Part:
    begin, end = const(f"{tool.name}\n```json\n"), const("\n```")
    return sequence(const("function"), context.mark(_SEPARATOR), begin, context.json(tool), end)


def _v31_call(tool: Tool, context: CallContext) -> Part:
    return sequence(const(tool.name), context.mark(_SEPARATOR), context.json(tool))


_DEEPSEEK_V3 = CallGrammar(_v3_call, _CALL, _CALL_END, separator="\n", opening=_CALLS, closing=_CALLS_END)
_DEEPSEEK_V31 = CallGrammar(_v31_call, _CALL, _CALL_END, opening=_CALLS, closing=_CALLS_END)


def _read_deepseek(feed: Feed) -> Reading:
    """Read one answer of V3 or V3.1."""
    return _read_section(feed, _DEEPSEEK_V3, _deepseek_name, "```")


def _deepseek_name(feed: Feed) -> Generator[None, None, tuple[str, None]]:
    name, _ = yield from feed.word(_SEPARATOR)
    if name == "function" and (yield from feed.ahead("{")) == "":
        name, _ = yield from feed.word("\n")
        yield from feed.option("```json", "```")
    return name, None


# Kimi K2: each call has an id, `functions.NAME:NUMBER`. Its templates show the ids again, so calls keep them.

_KIMI_MARKS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>")
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"


def _kimi_call(tool: Tool, context: CallContext) -> Part:
    number = {"type": "regex", "pattern": "0|[1-9][0-9]{0,3}"}
    return sequence(const(f"functions.{tool.name}:"), number, context.mark(_KIMI_ARGUMENTS), context.json(tool))


_KIMI_K2 = CallGrammar(_kimi_call, *_KIMI_MARKS[2:], opening=_KIMI_MARKS[0], closing=_KIMI_MARKS[1])


def _read_kimi_k2(feed: Feed) -> Reading:
    return _read_section(feed, _KIMI_K2, _kimi_name)


def _kimi_name(feed: Feed) -> Generator[None, None, tuple[str, str]]:
    call_id, _ = yield from feed.word(_KIMI_ARGUMENTS)
    return call_id.removeprefix("functions.").rpartition(":")[0] or call_id, call_id


# GPT-OSS (harmony): messages on channels; a message to a function is a call.
#
#     <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
#
# Source: OpenAI, "OpenAI Harmony response format". Text on `analysis` is a thought, not part of the answer.

_RECIPIENT = " to=functions."
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


def _read_harmony(feed: Feed) -> Reading:
    """Read one answer, with its special tokens as text. A text without a header is a message to the user."""
    while True:
        mark = yield from feed.text_before(harmony.START, harmony.CHANNEL, _RECIPIENT, harmony.END, harmony.RETURN)
        if mark in {harmony.END, harmony.RETURN}:
            continue
        header, _ = yield from feed.word(harmony.MESSAGE)
        called = _CALLED.search(mark + header)
        if called is not None:
            feed.begin_call(called[1])
            yield from feed.json_arguments()
            feed.end_call()
            yield from feed.skip(BLANKS)
            yield from feed.option(harmony.CALL, harmony.END)
        elif "analysis" in mark + header:
            feed.leave_out()
            yield from feed.until(harmony.END, emit=lambda _: None)


# Pythonic (Llama 4): the answer is a list of Python calls, `[NAME(NAME=VALUE), ...]`, or text.

_PYTHON_START, _PYTHON_END = "<|python_start|>", "<|python_end|>"
_NAME_CHARACTERS = string.ascii_letters + string.digits + "_.-"


def _pythonic_call(tool: Tool, context: CallContext) -> Part:
    """Values are JSON, which differs from Python in three words only. Required arguments come first."""
    properties, required = context.parameters(tool)
    if properties is None:
        one = _argument({"type": "regex", "pattern": "[A-Za-z_][A-Za-z0-9_]{0,63}"}, {}, tool)
        several = {"type": "tags_with_separator", "tags": [one], "separator": ", ", "at_least_one": False}
        return sequence(const(f"{tool.name}("), several, const(")"))
    names = sorted(properties, key=lambda name: name not in required)
    root = context.schema(tool)
    arguments = [_argument(const(name), alone(properties[name], root), tool) for name in names]
    count = len(required & properties.keys())
    return sequence(const(f"{tool.name}("), *_separated(arguments, count), const(")"))


def _argument(name: Part, schema: object, tool: Tool) -> Part:
    value: Part = {"type": "json_schema", "json_schema": schema, **({} if tool.strict else {"strict": False})}
    return sequence(name, const("="), value)


def _separated(arguments: Sequence[Part], required: int) -> list[Part]:
    """The arguments with commas between them; those after the required ones are optional."""
    comma = const(", ")
    if not arguments:
        return []
    if required:
        head = [arguments[0], *(sequence(comma, one) for one in arguments[1:required])]
        return [*head, *(_optional(sequence(comma, one)) for one in arguments[required:])]
    starts = [
        sequence(one, *(_optional(sequence(comma, other)) for other in arguments[at + 1 :]))
        for at, one in enumerate(arguments)
    ]
    return [_optional({"type": "or", "elements": starts})]


def _optional(part: Part) -> Part:
    return {"type": "optional", "content": part}


_PYTHONIC = CallGrammar(_pythonic_call, lead="[", separator=", ", tail="]")


def _read_pythonic(feed: Feed) -> Reading:
    feed.begin_head()
    yield from feed.option(_PYTHON_START)
    if (yield from feed.option("[")):
        while name := (yield from _pythonic_name(feed)):
            feed.begin_call(name)
            yield from _read_keyword_arguments(feed)
            feed.end_call()
            if not (yield from feed.option(",")):
                yield from feed.option("]")
                yield from feed.option(_PYTHON_END)
                yield from feed.rest()
            feed.begin_head()
    feed.give_back()
    yield from feed.rest()


def _pythonic_name(feed: Feed) -> Generator[None, None, str]:
    """The name before a parenthesis; "" if something else follows."""
    yield from feed.skip()
    name = yield from feed.run(_NAME_CHARACTERS)
    return name if name and (yield from feed.option("(", skip="")) else ""


def _read_keyword_arguments(feed: Feed) -> Reading:
    with call_arguments(feed) as writer:
        while not (yield from feed.option(")")):
            yield from feed.option(",")
            yield from feed.skip()
            name = yield from feed.run(_NAME_CHARACTERS)
            if not name or not (yield from feed.option("=")):
                break
            writer.begin(name, ALL_TYPES)
            pieces: list[str] = []
            yield from feed.value(_PythonValue(), pieces.append)
            writer.value(literal_json("".join(pieces)))


class _PythonValue(ValueEnd):
    """Finds the end of a Python value: a comma or closing bracket outside its own brackets and strings."""

    def take(self, character: str) -> bool:
        """True if the next character belongs to the value."""
        if self._quote:
            self._in_string(character)
        elif character in "\"'":
            self._quote = character
        elif character in "[{(":
            self._depth += 1
        elif character in "]})" and self._depth:
            self._depth -= 1
        elif character in ",)]}" and not self._depth:
            self.ended = True
        return not self.ended


_FORMATS = (
    ToolCallParser("none"),
    ToolCallParser("hermes", _read_hermes, marks=(TOOL_CALL, TOOL_CALL_END), grammar=_HERMES, holds_forced=False),
    ToolCallParser("llama3_json", _read_llama3, marks=(_PYTHON_TAG,), grammar=_LLAMA3, holds_forced=False),
    ToolCallParser(
        "mistral",
        _read_mistral,
        marks=(_TOOL_CALLS, "[ARGS]", "[CALL_ID]"),
        grammar=_MISTRAL,
        holds_forced=False,
        id_length=9,
    ),
    ToolCallParser(
        "qwen3_coder", typed_script=_read_qwen3_coder, marks=(TOOL_CALL, TOOL_CALL_END), grammar=_QWEN3_CODER
    ),
    ToolCallParser(
        "glm45",
        typed_script=_read_glm,
        marks=(TOOL_CALL, TOOL_CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END),
        grammar=_GLM,
    ),
    ToolCallParser("deepseek_v3", _read_deepseek, marks=_DEEPSEEK_MARKS, grammar=_DEEPSEEK_V3),
    ToolCallParser("deepseek_v31", _read_deepseek, marks=_DEEPSEEK_MARKS, grammar=_DEEPSEEK_V31),
    ToolCallParser("kimi_k2", _read_kimi_k2, marks=(*_KIMI_MARKS, _KIMI_ARGUMENTS), grammar=_KIMI_K2),
    ToolCallParser("granite", _read_granite, marks=(_GRANITE_CALL,), grammar=_GRANITE),
    ToolCallParser("granite-20b-fc", _read_granite_20b, marks=(_FUNCTION_CALL,), grammar=_GRANITE_20B),
    # No marks: the reader of thoughts shows them as text. A forced call follows the thought, on `final`.
    ToolCallParser("openai", _read_harmony),
    ToolCallParser("pythonic", _read_pythonic, marks=(_PYTHON_START, _PYTHON_END), grammar=_PYTHONIC),
)
TOOL_CALL_PARSERS = {one.name: one for one in _FORMATS}
"""Parsers by vLLM's names."""
TOOL_CALL_PARSERS |= {
    "qwen3_xml": TOOL_CALL_PARSERS["qwen3_coder"],
    "glm47": TOOL_CALL_PARSERS["glm45"],
    "llama4_json": TOOL_CALL_PARSERS["llama3_json"],
    "llama4_pythonic": TOOL_CALL_PARSERS["pythonic"],
    "granite4": TOOL_CALL_PARSERS["hermes"],
}
