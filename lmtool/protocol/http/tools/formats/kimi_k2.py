"""Kimi K2: text, and behind a mark only calls, each with an id, `functions.NAME:NUMBER`, and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.call_grammar import CallGrammar, const, sequence
from lmtool.protocol.http.tools.formats.call_section import read_section

if TYPE_CHECKING:
    from collections.abc import Generator

    from lmtool.protocol.http.tools.call_grammar import CallContext, Part
    from lmtool.protocol.http.tools.definitions import Tool
    from lmtool.protocol.http.tools.feed import Feed, Reading

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_SPACE = "functions."


def _call(tool: Tool, context: CallContext) -> Part:
    number = {"type": "regex", "pattern": "0|[1-9][0-9]{0,3}"}
    return sequence(const(f"{_SPACE}{tool.name}:"), number, context.mark(ARGUMENTS), context.json(tool))


GRAMMAR = CallGrammar(_call, CALL, CALL_END, opening=SECTION, closing=SECTION_END)


def read(feed: Feed) -> Reading:
    """Read one answer. Its templates show the ids again, so calls keep those that the model gave them."""
    return read_section(feed, GRAMMAR, _name)


def _name(feed: Feed) -> Generator[None, None, tuple[str, str]]:
    call_id, _ = yield from feed.word(ARGUMENTS)
    return call_id.removeprefix(_SPACE).rpartition(":")[0] or call_id, call_id
