"""Hermes and Qwen: text with calls between two marks, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.call_grammar import CallGrammar
from lmtool.protocol.http.tools.json_call import json_call

if TYPE_CHECKING:
    from lmtool.protocol.http.tools.feed import Feed, Reading

OPENING, CLOSING = "<tool_call>", "</tool_call>"
GRAMMAR = CallGrammar(json_call("arguments", "\n", "\n"), before=OPENING, after=CLOSING, separator="\n")


def read(feed: Feed) -> Reading:
    """Read one answer."""
    while True:
        yield from feed.text_before(OPENING)
        if (yield from feed.json_call()):
            yield from feed.option(CLOSING)
