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

    async with recording_frames(OUT, None, look) as on_frame:
        assert on_frame is look


async def test_with_a_file(tmp_path: Path) -> None:
    """Frames are kept and shown; the connection has a beginning and an end."""
    seen: list[tuple[str, str]] = []
    path = tmp_path / "a.lmtp.jsonl"
    async with recording_frames(OUT, str(path), lambda direction, frame: seen.append((direction, frame))) as on_frame:
        assert on_frame is not None
        on_frame(">", 'GENERATE {"stream_id":1}')
        on_frame("<", "TOKEN []")
    assert seen == [(">", 'GENERATE {"stream_id":1}'), ("<", "TOKEN []")]
    opened, asked, answered, closed, _ = TraceReader(path)
    assert isinstance(opened, Open)
    assert [frame.wire() for frame in (asked, answered) if isinstance(frame, Frame)] == [frame for _, frame in seen]
    assert isinstance(closed, Close)
