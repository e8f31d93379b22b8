"""Qwen3-Coder: text with calls, `<tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>`.

Each tag stands on a line of its own, and so do values, which are plain text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.argument_types import call_arguments
from lmtool.protocol.http.tools.call_grammar import CallGrammar
from lmtool.protocol.http.tools.text_arguments import ArgumentTags, text_call

if TYPE_CHECKING:
    from lmtool.protocol.http.tools.argument_types import ArgumentTypes
    from lmtool.protocol.http.tools.feed import Feed, Reading

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_TAGS = ArgumentTags((PARAMETER,), (">\n",), ("\n", PARAMETER_END), "\n")
GRAMMAR = CallGrammar(
    text_call("\n<function={name}>\n", _TAGS, f"{FUNCTION_END}\n"), before=OPENING, after=CLOSING, separator="\n"
)


def read(feed: Feed, types: ArgumentTypes) -> Reading:
    """Read one answer."""
    while True:
        yield from feed.text_before(OPENING)
        if not (yield from feed.option(FUNCTION)):
            feed.give_back()
            continue
        name, _ = yield from feed.word(">")
        feed.begin_call(name)
        yield from _arguments(feed, name, types)
        feed.end_call()
        yield from feed.option(CLOSING)


def _arguments(feed: Feed, tool: str, types: ArgumentTypes) -> Reading:
    ends = (f"\n{PARAMETER_END}", PARAMETER_END)
    with call_arguments(feed) as writer:
        while (yield from feed.option(PARAMETER)):
            name, _ = yield from feed.word(">")
            feed.arguments(writer.begin(name, types.of(tool, name)))
            yield from feed.option("\n", skip="")
            yield from feed.until(*ends, emit=lambda piece: feed.arguments(writer.push(piece)))
            feed.arguments(writer.end())
    yield from feed.option(FUNCTION_END)
