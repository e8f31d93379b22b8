"""`chat --record`: frames kept while they are shown to others."""

from __future__ import annotations

from pathlib import Path

from lmtool.cli.invocation import Common
from lmtool.cli.output import Output
from lmtool.cli.talking.recording import recording_frames
from lmtool.trace.events import Close, Frame, Open
from lmtool.trace.reader import TraceReader

OUT = Output.of(Common(quiet=True))


async def test_without_a_file() -> None:
    """Nothing stands between the client and who else looks at its frames."""
    seen: list[tuple[str, str]] = []

    def look(direction: str, frame: str) -> None:
        seen.append((direction, frame))

    async with recording_frames(OUT, None, "ws://127.0.0.1:1/", look) as on_frame:
        assert on_frame is look


async def test_with_a_file(tmp_path: Path) -> None:
    """Frames are kept and shown; the connection has a beginning and an end."""
    seen: list[tuple[str, str]] = []
    path = tmp_path / "a.lmtp.jsonl"
    at = "stdio:lmtool serve --stdio"
    async with recording_frames(OUT, str(path), at, lambda way, frame: seen.append((way, frame))) as on_frame:
        assert on_frame is not None
        on_frame(">", 'GENERATE {"stream_id":1}')
        on_frame("<", "TOKEN []")
    assert seen == [(">", 'GENERATE {"stream_id":1}'), ("<", "TOKEN []")]
    reader = TraceReader(path)
    opened, asked, answered, closed, _ = reader
    assert reader.header.transport == {"kind": "stdio"}
    assert isinstance(opened, Open)
    assert [frame.wire() for frame in (asked, answered) if isinstance(frame, Frame)] == [frame for _, frame in seen]
    assert isinstance(closed, Close)
