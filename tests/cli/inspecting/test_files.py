"""Pictures and exports without a screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.cli.inspecting.files import export, snapshot
from lmtool.cli.output import Output
from lmtool.errors import FileError, UsageError
from lmtool.tui.options import InspectorOptions

RECORDING = Path(__file__).parents[3] / "recordings/two_streams_interleaved.lmtp.jsonl"
OUT = Output(color=False, note_color=False, terminal=False)


@pytest.mark.parametrize("name", ["a.csv", "a.md", "a.ansi", "a.svg", "a.html", "a.lmtp.jsonl"])
def test_every_form(name: str, tmp_path: Path) -> None:
    """The ending says what to write; a file that exists is left alone."""
    export(OUT, RECORDING, tmp_path / name, "1/2", InspectorOptions(), force=False)
    assert (tmp_path / name).stat().st_size > 100
    with pytest.raises(FileError):
        export(OUT, RECORDING, tmp_path / name, None, InspectorOptions(), force=False)
    export(OUT, RECORDING, tmp_path / name, None, InspectorOptions(), force=True)


def test_a_stream_that_is_not_there(tmp_path: Path) -> None:
    """It says which ones are."""
    with pytest.raises(UsageError) as caught:
        export(OUT, RECORDING, tmp_path / "a.csv", "9/9", InspectorOptions(), force=False)
    assert "1/1, 1/2" in caught.value.hints[0]


async def test_a_picture(tmp_path: Path) -> None:
    """The whole screen at a moment, or two traces compared; nothing is overwritten unasked."""
    path = tmp_path / "a.svg"
    await snapshot(OUT, [RECORDING], path, "100x30", InspectorOptions(at=0.004), force=False)
    assert "1/2" in path.read_text()
    with pytest.raises(FileError, match="exists already"):
        await snapshot(OUT, [RECORDING], path, "100x30", InspectorOptions(), force=False)
    await snapshot(OUT, [RECORDING, RECORDING], path, "100x30", InspectorOptions(), force=True)
    with pytest.raises(FileError, match="cannot write"):
        await snapshot(OUT, [RECORDING], tmp_path / "no/a.svg", "100x30", InspectorOptions(), force=False)
