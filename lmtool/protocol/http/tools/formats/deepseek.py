"""DeepSeek V3 and V3.1: text, and behind a mark only calls, each between marks of its own.

V3 writes a kind and the name, and JSON in a block of Markdown; V3.1 the name and JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.call_grammar import CallGrammar, const, sequence
from lmtool.protocol.http.tools.formats.call_section import read_section

if TYPE_CHECKING:
    from collections.abc import Generator

    from lmtool.protocol.http.tools.call_grammar import CallContext, Part
    from lmtool.protocol.http.tools.definitions import Tool
    from lmtool.protocol.http.tools.feed import Feed, Reading

_MARK = "<\uff5ctool▁{}\uff5c>"
CALLS, CALLS_END = _MARK.format("calls▁begin"), _MARK.format("calls▁end")
CALL, CALL_END = _MARK.format("call▁begin"), _MARK.format("call▁end")
SEPARATOR = _MARK.format("sep")
_BLOCK, _BLOCK_END = "\n```json\n", "\n```"


def _v3_call(tool: Tool, context: CallContext) -> Part:
    return sequence(
        const("function"), context.mark(SEPARATOR), const(f"{tool.name}{_BLOCK}"), context.json(tool), const(_BLOCK_END)
    )


def _v31_call(tool: Tool, context: CallContext) -> Part:
    return sequence(const(tool.name), context.mark(SEPARATOR), context.json(tool))


V3_GRAMMAR = CallGrammar(_v3_call, CALL, CALL_END, separator="\n", opening=CALLS, closing=CALLS_END)
V31_GRAMMAR = CallGrammar(_v31_call, CALL, CALL_END, opening=CALLS, closing=CALLS_END)


def read(feed: Feed) -> Reading:
    """Read one answer of either."""
    return read_section(feed, V3_GRAMMAR, _name, "```")


def _name(feed: Feed) -> Generator[None, None, tuple[str, None]]:
    name, _ = yield from feed.word(SEPARATOR)
    if name == "function" and (yield from feed.ahead("{")) == "":
        name, _ = yield from feed.word("\n")
        yield from feed.option("```json", "```")
    return name, None
