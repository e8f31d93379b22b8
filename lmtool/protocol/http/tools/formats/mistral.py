"""Mistral: text, and behind a mark only calls, `[TOOL_CALLS][{...}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.call_grammar import CallGrammar
from lmtool.protocol.http.tools.formats.call_list import read as read_list
from lmtool.protocol.http.tools.json_call import json_call

if TYPE_CHECKING:
    from lmtool.protocol.http.tools.feed import Feed, Reading

OPENING = "[TOOL_CALLS]"
ARGUMENTS, CALL_ID = "[ARGS]", "[CALL_ID]"
GRAMMAR = CallGrammar(json_call("arguments"), opening=OPENING, lead="[", separator=", ", tail="]")


def read(feed: Feed) -> Reading:
    """Read one answer."""
    yield from feed.text_before(OPENING)
    if (yield from feed.ahead("[", "{")):
        yield from read_list(feed)
    while True:
        head, _ = yield from feed.word("{", keep=True)
        feed.begin_call(head.removeprefix(OPENING).partition("[")[0].strip())
        yield from feed.json_arguments()
        feed.end_call()
        yield from feed.skip()
        feed.begin_head()
