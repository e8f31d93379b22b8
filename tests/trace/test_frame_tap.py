"""Frames of our own programs as events."""

from __future__ import annotations

from lmtool.trace.events import Close, Drop, Event, Frame, Open, Parsed
from lmtool.trace.frame_tap import FrameTap


def test_a_connection() -> None:
    """Its beginning, its frames in both directions and its end are told with the time of each."""
    told: list[Event] = []
    ticks = iter((0.0, 0.5, 1.0, 1.5, 2.0))
    tap = FrameTap(lambda _number, events: told.extend(events), lambda: next(ticks))
    tap.opened(3, "x/1")
    tap.frame(3, ">", 'SCORE {"a":1e-6}')
    tap.frame(3, "<", b"\x00")
    tap.ended(3, "client", 1000)
    assert told == [
        Open(0.0, 3, {"peer": "client", "agent": "x/1"}),
        Frame(0.5, ">", 3, Parsed("SCORE", {"a": 1e-6}, "msgspec")),
        Frame(1.0, "<", 3, b"\x00"),
        Close(1.5, 3, "client", 1000),
    ]


def test_ends_without_a_code() -> None:
    """A client that vanished is a drop; a close frame without a code has none."""
    told: list[Event] = []
    tap = FrameTap(lambda _number, events: told.extend(events), lambda: 0.0)
    tap.ended(1, "client", 1006)
    tap.ended(2, "client", 1005)
    tap.ended(3, "client", None)
    assert told == [Drop(0.0, 1, {"by": "client"}), Close(0.0, 2, "client"), Close(0.0, 3, "client")]
