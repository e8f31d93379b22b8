"""Frames that a server or a client shows while it works, as events of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lmtool.trace.events import Close, Drop, Frame, Open
from lmtool.trace.observing import content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmtool.trace.events import Event
    from lmtool.trace.styles import Style

_VANISHED = 1006
_NO_CODE = 1005


class FrameTap:
    """Tells frames as events; takes the place of a proxy where the program itself is ours. Nothing here raises."""

    def __init__(
        self, tell: Callable[[int, Iterable[Event]], None], clock: Callable[[], float], style: Style = "msgspec"
    ) -> None:
        """Make a tap. tell: gets a connection's number and its events; clock: seconds since the recording began."""
        self._tell = tell
        self._clock = clock
        self._style: Style = style

    def opened(self, connection: int, agent: str) -> None:
        """A connection begins."""
        facts = {"peer": "client", **({"agent": agent} if agent else {})}
        self._tell(connection, [Open(self._clock(), connection, facts)])

    def frame(self, connection: int, direction: Literal[">", "<"], frame: str | bytes) -> None:
        """A frame goes by; `>`: from client to server."""
        self._tell(connection, [Frame(self._clock(), direction, connection, content_of(frame, self._style))])

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None) -> None:
        """A connection is over."""
        now = self._clock()
        if code == _VANISHED:
            self._tell(connection, [Drop(now, connection, {"by": by})])
        else:
            self._tell(connection, [Close(now, connection, by, None if code == _NO_CODE else code)])
