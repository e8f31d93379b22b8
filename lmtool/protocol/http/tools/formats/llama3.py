"""Llama 3: the answer is a call, `{"name": ..., "parameters": {}}`, or several with `;` between, or it is text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.call_grammar import CallGrammar
from lmtool.protocol.http.tools.feed import BLANKS
from lmtool.protocol.http.tools.json_call import json_call

if TYPE_CHECKING:
    from lmtool.protocol.http.tools.feed import Feed, Reading

TAG = "<|python_tag|>"
GRAMMAR = CallGrammar(json_call("parameters"), separator="; ")


def read(feed: Feed) -> Reading:
    """Read one answer."""
    feed.begin_head()
    marked = yield from feed.option(TAG)
    if not (yield from feed.ahead("{")):
        feed.give_back()
        yield from feed.rest()
    while (yield from feed.json_call(marked=bool(marked))):
        yield from feed.skip(BLANKS + ";")
        feed.begin_head()
    yield from feed.rest()
