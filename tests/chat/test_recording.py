"""`chat --record`: frames are recorded while they are shown to others."""

from __future__ import annotations

from pathlib import Path

from lmtool.chat.peer import open_peer
from lmtool.lmtp.endpoint import parse
from lmtool.terminal import Output
from lmtool.trace.events import Close, Frame, Open
from lmtool.trace.reader import TraceReader


async def test_recorded_connection(served: str, tmp_path: Path) -> None:
    """Each frame is shown and recorded; the connection has a beginning and an end."""
    shown: list[tuple[str, str]] = []
    path = tmp_path / "a.lmtp.jsonl"

    def show(direction: str, frame: str) -> None:
        shown.append((direction, frame))

    async with open_peer(parse(served), Output.of(quiet=True), None, record=str(path), on_frame=show):
        pass
    reader = TraceReader(path)
    opened, *frames, closed, _ = reader
    assert reader.header.transport == {"kind": "websocket", "path": "/"}
    assert isinstance(opened, Open)
    assert [direction for direction, _ in shown] == [">", "<"]
    assert [frame.wire() for frame in frames if isinstance(frame, Frame)] == [frame for _, frame in shown]
    assert isinstance(closed, Close)
