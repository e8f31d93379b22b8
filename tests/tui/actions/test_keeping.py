"""Keys that keep something, and leaving."""

from __future__ import annotations

from pathlib import Path

from lmtool.tui.options import InspectorOptions
from tests.tui.scripted import watching


async def test_record(tmp_path: Path) -> None:
    """R records into a file of its own name, the header says so, and r again stops it."""
    async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
        await seen.press("r")
        (path,) = tmp_path.glob("lmtool-inspect-*.lmtp.jsonl")
        assert f"rec {path.name}"[:20] in seen.text()
        await seen.press("r")
        await seen.settle()
        assert "recorded 3 events, 2 tokens" in seen.text()
        assert seen.source.recorded is None


async def test_a_recording_begins_with_what_runs(tmp_path: Path) -> None:
    """The stream that runs comes first as a whole; what is over is left out."""
    async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
        await seen.press("r")
        assert [type(event).__name__ for event in seen.source.history] == ["Frame"] * 4
        assert seen.source.history[0].time == 0.3
        (recorded,) = {event.wire().split('"stream_id": ')[1][0] for event in seen.source.history}
        assert recorded == "2"


async def test_record_from_the_start(tmp_path: Path) -> None:
    """`record` begins a recording before the first event."""
    path = tmp_path / "a.lmtp.jsonl"
    async with watching(options=InspectorOptions(record=path)) as seen:
        assert "rec a.lmtp.jsonl 1.2 kB" in seen.text()


async def test_snapshot(tmp_path: Path) -> None:
    """S writes an SVG and tells its path; no font comes from the network."""
    async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
        await seen.press("s", "s")
        pictures = [path.read_text() for path in tmp_path.glob("lmtool-inspect-*.svg")]
        assert len(pictures) == 2
        assert "<svg" in pictures[0]
        assert "cdnjs" not in pictures[0]
    async with watching(options=InspectorOptions(folder=tmp_path / "away")) as seen:
        await seen.press("s")
        assert "cannot write" in seen.text()


async def test_export(tmp_path: Path) -> None:
    """E offers forms and writes the stream under the cursor in the one that is chosen."""
    async with watching(options=InspectorOptions(folder=tmp_path)) as seen:
        await seen.press("e")
        assert "Export stream 1/1" in seen.text()
        await seen.press("j", "enter")
        assert "wrote" in seen.text()
        (path,) = tmp_path.glob("*.csv")
        assert " fox" in path.read_text()
        await seen.press("e", "escape")
        assert len(list(tmp_path.iterdir())) == 1


async def test_copy() -> None:
    """Y copies the text of the stream, the token, or the frame, by the pane."""
    async with watching() as seen:
        await seen.press("y")
        assert seen.app.clipboard == " the fox🙂\n."
        await seen.press("2", "g", "y")
        assert seen.app.clipboard == " the"
        await seen.press("4", "y")
        assert seen.app.clipboard.startswith("TOKEN [")


async def test_keys_that_quit() -> None:
    """q, ctrl+c and ctrl+q leave with 0."""
    for key in ("q", "ctrl+c", "ctrl+q"):
        async with watching() as seen:
            await seen.pilot.press(key)
            await seen.pilot.pause()
            assert seen.app.return_value == 0


async def test_ctrl_c_quits_from_every_screen() -> None:
    """Also while something is asked or read."""
    for key in ("slash", "question_mark", "ctrl+p"):
        async with watching() as seen:
            await seen.press(key)
            await seen.pilot.press("ctrl+c")
            await seen.pilot.pause()
            assert seen.app.return_value == 0
