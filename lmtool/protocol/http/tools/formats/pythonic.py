"""Pythonic, as Llama 4: the answer is a list of calls as Python has them, `[NAME(NAME=VALUE), ...]`, or text."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.argument_types import ALL_TYPES, call_arguments, literal_json
from lmtool.protocol.http.tools.call_grammar import CallGrammar, const, sequence
from lmtool.protocol.http.tools.schema import alone

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lmtool.protocol.http.tools.call_grammar import CallContext, Part
    from lmtool.protocol.http.tools.definitions import Tool
    from lmtool.protocol.http.tools.feed import Feed, Reading

OPENING, CLOSING = "<|python_start|>", "<|python_end|>"
_NAME = string.ascii_letters + string.digits + "_.-"


def _call(tool: Tool, context: CallContext) -> Part:
    """Values are JSON, which Python reads the same but for three words. What is required comes first."""
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
    """The arguments with commas between them; those behind the required ones may be absent."""
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


GRAMMAR = CallGrammar(_call, lead="[", separator=", ", tail="]")


def read(feed: Feed) -> Reading:
    """Read one answer."""
    feed.begin_head()
    yield from feed.option(OPENING)
    if (yield from feed.option("[")):
        while name := (yield from _called(feed)):
            feed.begin_call(name)
            yield from _arguments(feed)
            feed.end_call()
            if not (yield from feed.option(",")):
                yield from feed.option("]")
                yield from feed.option(CLOSING)
                yield from feed.rest()
            feed.begin_head()
    feed.give_back()
    yield from feed.rest()


def _called(feed: Feed) -> Generator[None, None, str]:
    """The name before a parenthesis; "" where something else comes."""
    yield from feed.skip()
    name = yield from feed.run(_NAME)
    return name if name and (yield from feed.option("(", skip="")) else ""


def _arguments(feed: Feed) -> Reading:
    with call_arguments(feed) as writer:
        while not (yield from feed.option(")")):
            yield from feed.option(",")
            yield from feed.skip()
            name = yield from feed.run(_NAME)
            if not name or not (yield from feed.option("=")):
                break
            feed.arguments(writer.begin(name, ALL_TYPES))
            pieces: list[str] = []
            yield from feed.value(Literal(), pieces.append)
            feed.arguments(writer.value(literal_json("".join(pieces))))


class Literal:
    """Where a value of Python ends: before a comma or a parenthesis that is in none of its brackets."""

    def __init__(self) -> None:
        self._quote = ""
        self._escaped = False
        self._depth = 0
        self.ended = False

    def take(self, character: str) -> bool:
        """Whether the next character belongs to the value."""
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

    def _in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == self._quote:
            self._quote = ""
