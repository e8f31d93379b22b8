"""A JSON array of calls, `[{"name": ..., "parameters": {...}}, ...]`: what a constraint makes where a call must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.http.tools.feed import BLANKS

if TYPE_CHECKING:
    from lmtool.protocol.http.tools.feed import Feed, Reading


def read(feed: Feed) -> Reading:
    """Read one answer; brackets and commas between calls say nothing."""
    while True:
        yield from feed.skip(BLANKS + "[],")
        feed.begin_head()
        yield from feed.json_call()
