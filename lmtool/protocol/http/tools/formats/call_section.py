"""Text, and behind a mark only calls with JSON, each between marks of its own: as DeepSeek and Kimi K2 write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lmtool.protocol.http.tools.call_grammar import CallGrammar
    from lmtool.protocol.http.tools.feed import Feed, Reading


def read_section(
    feed: Feed,
    marks: CallGrammar,
    head: Callable[[Feed], Generator[None, None, tuple[str, str | None]]],
    behind: str = "",
) -> Reading:
    """Read one answer.

    marks: the form's; those of all calls and of each call count. head: reads what stands between the mark of a call and
    its arguments; returns the tool's name, and the id that the model gave the call. behind: what may follow arguments.
    """
    yield from feed.text_before(marks.opening)
    while True:
        if not (yield from feed.option(marks.before)):
            feed.give_back()
            yield from feed.rest()
        feed.begin_call(*(yield from head(feed)))
        yield from feed.json_arguments()
        feed.end_call()
        if behind:
            yield from feed.option(behind)
        yield from feed.option(marks.after)
        if (yield from feed.option(marks.closing)):
            yield from feed.text_before(marks.opening)
        feed.begin_head()
