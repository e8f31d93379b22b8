"""GLM 4.5 to 4.7: text with calls, `<tool_call>NAME<arg_key>NAME</arg_key><arg_value>VALUE</arg_value></tool_call>`.

Values are plain text, and JSON where they are no strings; up to 4.6 each tag stands on a line of its own.
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
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
_TAGS = ArgumentTags((KEY,), (KEY_END, "\n", VALUE), (VALUE_END,), "\n")
GRAMMAR = CallGrammar(text_call("{name}\n", _TAGS, ""), before=OPENING, after=CLOSING, separator="\n")


def read(feed: Feed, types: ArgumentTypes) -> Reading:
    """Read one answer."""
    while True:
        yield from feed.text_before(OPENING)
        yield from feed.skip()
        name, _ = yield from feed.word("\n", KEY, CLOSING, keep=True)
        if not name:
            feed.give_back()
            continue
        feed.begin_call(name)
        yield from _arguments(feed, name, types)
        feed.end_call()
        yield from feed.option(CLOSING)


def _arguments(feed: Feed, tool: str, types: ArgumentTypes) -> Reading:
    with call_arguments(feed) as writer:
        while (yield from feed.option(KEY)):
            name, _ = yield from feed.word(KEY_END)
            yield from feed.option(VALUE)
            feed.arguments(writer.begin(name, types.of(tool, name)))
            yield from feed.until(VALUE_END, emit=lambda piece: feed.arguments(writer.push(piece)))
            feed.arguments(writer.end())
