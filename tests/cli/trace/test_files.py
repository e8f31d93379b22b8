"""Opening and writing traces from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmtool.cli.trace.files import text_output, warn_if_incomplete, write_trace
from lmtool.core.errors import FileError, UsageError
from lmtool.settings.terminal import Output
from lmtool.trace.codec import Header
from lmtool.trace.events import Remark
from lmtool.trace.reader import TraceReader
from tests.cli.trace_runner import CONVERSATION

OUT = Output(color=False, note_color=False, terminal=False)


def test_written_traces_are_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Header, events, end record; nothing to tell about it."""
    path = tmp_path / "a.gz"
    assert write_trace(path, Header(), [Remark(1, "mark", 0, "x")] * 3, force=False, sources=[]) == 3
    reader = TraceReader(path)
    assert len(list(reader)) == 4
    warn_if_incomplete(OUT, reader)
    assert capsys.readouterr().err == ""


def test_cut_traces_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning names the file and why it is not complete."""
    (tmp_path / "a").write_text(CONVERSATION)
    reader = TraceReader(tmp_path / "a")
    list(reader)
    warn_if_incomplete(OUT, reader)
    assert "is cut: there is no end record" in capsys.readouterr().err


def test_files_are_not_lost(tmp_path: Path) -> None:
    """What exists is kept unless --force; what is being read is never written."""
    path = tmp_path / "a"
    path.write_text(CONVERSATION)
    with pytest.raises(FileError, match="exists already"):
        write_trace(path, Header(), [], force=False, sources=[])
    with pytest.raises(UsageError, match="is being read"):
        write_trace(path, Header(), [], force=True, sources=[path])
    with pytest.raises(FileError, match="exists already"), text_output(path, force=False):
        pass
    with pytest.raises(FileError, match="cannot write"), text_output(tmp_path / "no" / "b", force=False):
        pass
    assert path.read_text() == CONVERSATION
    with text_output(path, force=True) as file:
        file.write("new")
    assert path.read_text() == "new"


def test_a_source_that_breaks_leaves_no_file(tmp_path: Path) -> None:
    """When the events end with an error, what was there stays, and nothing new."""
    (tmp_path / "a").write_text("before")

    def events() -> object:
        yield Remark(0, "mark", 0, "x")
        raise FileError("line 3: broken")

    with pytest.raises(FileError, match="broken"):
        write_trace(tmp_path / "a", Header(), events(), force=True, sources=[])  # type: ignore[arg-type]
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a", "before")]


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_a_link_is_replaced_not_followed(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    """Another file under the output's name keeps its content; without --force the link stays, a dangling one too."""
    other, path = tmp_path / "other", tmp_path / "a"
    other.write_text("precious")
    make(path, other)
    with pytest.raises(FileError, match="exists already"):
        write_trace(path, Header(), [], force=False, sources=[])
    write_trace(path, Header(), [], force=True, sources=[])
    assert (other.read_text(), path.is_symlink()) == ("precious", False)
    make(tmp_path / "b", path)
    with pytest.raises(UsageError, match="is being read"):
        write_trace(tmp_path / "b", Header(), [], force=True, sources=[path])
    (tmp_path / "c").symlink_to(tmp_path / "none")
    with pytest.raises(FileError, match="exists already"):
        write_trace(tmp_path / "c", Header(), [], force=False, sources=[])


def test_folders_pipes_and_modes(tmp_path: Path) -> None:
    """A folder is refused; a pipe or a device is written into as it is; a private file stays private."""
    with pytest.raises(FileError, match="it is a folder"):
        write_trace(tmp_path, Header(), [], force=True, sources=[])
    with pytest.raises(FileError, match="No space left"):
        write_trace(Path("/dev/full"), Header(), [], force=False, sources=[])
    assert Path("/dev/full").is_char_device()
    with (tmp_path / "a").open("wb") as file:
        descriptor = Path(f"/dev/fd/{file.fileno()}")
        write_trace(descriptor, Header(), [], force=False, sources=[])
        assert descriptor.is_symlink()
    assert (tmp_path / "a").read_bytes().startswith(b'{"lmtp_trace"')
    (tmp_path / "a").unlink()
    path = tmp_path / "a"
    path.touch(0o600)
    write_trace(path, Header(), [], force=True, sources=[])
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
