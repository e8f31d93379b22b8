"""The user's data folder."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lmtool.core.errors import FileError
from lmtool.settings.data_folder import data_folder, make_private


def test_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is below $XDG_DATA_HOME, or where that is not set, below ~/.local/share; other platforms have their own."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "lmtool"
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".local/share/lmtool"
    monkeypatch.setattr("sys.platform", "darwin")
    assert data_folder() == tmp_path / "Library/Application Support/lmtool"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert data_folder() == tmp_path / "Local/lmtool"


def test_private(tmp_path: Path) -> None:
    """A folder is made for its user alone, and closed where others could read it; else an error says why."""
    folder = make_private(tmp_path / "a/b")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make the folder"):
        make_private(tmp_path / "file/b")
