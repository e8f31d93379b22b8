"""GPT-OSS (harmony): messages on channels, of which those to a function are calls.

    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

Source: OpenAI, "OpenAI Harmony response format". What is on `analysis` is a thought, and no part of the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.inference.text.harmony import CALL, CHANNEL, END, MESSAGE, RETURN, START
from lmtool.protocol.http.tools.feed import BLANKS

if TYPE_CHECKING:
    from lmtool.protocol.http.tools.feed import Feed, Reading

_RECIPIENT = " to=functions."
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


def read(feed: Feed) -> Reading:
    """Read one answer, with its special tokens as text. A text without a header is a message to the user."""
    while True:
        mark = yield from feed.text_before_any(START, CHANNEL, _RECIPIENT, END, RETURN)
        if mark in {END, RETURN}:
            continue
        header, _ = yield from feed.word(MESSAGE)
        called = _CALLED.search(mark + header)
        if called is not None:
            feed.begin_call(called[1])
            yield from feed.json_arguments()
            feed.end_call()
            yield from feed.skip(BLANKS)
            yield from feed.option(CALL, END)
        elif "analysis" in mark + header:
            feed.leave_out()
            yield from feed.until(END, emit=lambda _: None)
