"""Plain wire logs read as events: lines after `>` and `<`, as websocat and wscat print them and documents show them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.trace.events import Event, Frame, Open
from lmtool.trace.observing import content_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmtool.trace.events import Direction
    from lmtool.trace.styles import Style

_COMMAND = re.compile(r"(GENERATE|SCORE|MODEL_INFO|CANCEL|TOKEN|MSG) \S")
_FROM_SERVER = ("TOKEN", "MSG")


def events_of(lines: Iterable[str], style: Style) -> Iterator[Event]:
    """One connection with a frame for each line that is one; times are event numbers / 1000.

    `> ` is the client, `< ` the server; a line that begins with a known command needs no mark.
    Other lines are passed over.
    """
    yield Open(0.0, 1)
    number = 1
    for line in lines:
        found = _frame(line.rstrip("\r\n"))
        if found is not None:
            direction, text = found
            yield Frame(number / 1000, direction, 1, content_of(text, style))
            number += 1


def _frame(line: str) -> tuple[Direction, str] | None:
    if line.startswith("> "):
        return ">", line[2:]
    if line.startswith("< "):
        return "<", line[2:]
    command = _COMMAND.match(line)
    if command is None:
        return None
    return "<" if command[1] in _FROM_SERVER else ">", line
