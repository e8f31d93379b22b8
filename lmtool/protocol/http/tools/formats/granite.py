"""Granite 3: text, and behind a mark calls, `<|tool_call|>[{...}, ...]`; 20B marks each, `<function_call> {...}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.call_grammar import CallGrammar
from lmtool.protocol.http.tools.formats.call_list import read as read_list
from lmtool.protocol.http.tools.json_call import json_call

if TYPE_CHECKING:
    from lmtool.protocol.http.tools.feed import Feed, Reading

OPENING = "<|tool_call|>"
FUNCTION = "<function_call>"
GRAMMAR = CallGrammar(json_call("arguments"), opening=OPENING, lead="[", separator=", ", tail="]")
FUNCTION_GRAMMAR = CallGrammar(json_call("arguments", " "), before=FUNCTION, separator="\n")


def read(feed: Feed) -> Reading:
    """Read one answer of Granite 3."""
    yield from feed.text_before(OPENING)
    yield from read_list(feed)


def read_functions(feed: Feed) -> Reading:
    """Read one answer of Granite 20B for function calls."""
    while True:
        yield from feed.text_before(FUNCTION)
        yield from feed.json_call()
