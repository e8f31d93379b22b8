"""Everything that an audit said and heard, as events of a trace: all of it, or the exchanges that show a breach."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.trace.codec import Header
from lmtool.trace.connection_tap import FrameTap
from lmtool.trace.events import Remark
from lmtool.trace.server_tap import UpstreamTap
from lmtool.trace.writer import write_trace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from lmtool.trace.events import Event


class ExchangeLog:
    """Keeps the events of all exchanges in memory; each exchange is a connection of its own."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._events: list[Event] = []
        self._count = 0
        self.http = UpstreamTap(self.next_number, self._keep, self._now)
        """Takes requests over HTTP."""
        self.frames = FrameTap(self._keep, self._now)
        """Takes frames of LMTP."""

    @property
    def exchanges(self) -> int:
        """How many there were."""
        return self._count

    def next_number(self) -> int:
        """The number of a new exchange."""
        self._count += 1
        return self._count

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _keep(self, _: int, events: Iterable[Event]) -> None:
        self._events.extend(events)

    def write(
        self, path: Path, title: str, kind: str, marks: Iterable[str], only: Collection[int] | None = None
    ) -> None:
        """Write a trace, replacing the file; its folder is made. Raises `FileError`.

        kind: of the transport. marks: sentences at the end. only: the numbers of the exchanges; None: all.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the folder {path.parent}: {error.strerror}") from None
        header = Header(by="lmtool audit", at="client", title=title, transport={"kind": kind}, json="msgspec")
        events = [one for one in self._events if only is None or one.connection in only]
        last = events[-1].time if events else 0.0
        remarks = [Remark(last, "mark", 0, mark) for mark in marks]
        write_trace(path, header, [*events, *remarks], overwrite=True)
