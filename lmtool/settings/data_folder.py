"""The user's data folder: what lmtool keeps of its own accord, such as conversations, for its user alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lmtool.core.errors import FileError


def data_folder() -> Path:
    """Where lmtool keeps data of this user, in the platform's folder for such; it need not exist."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return base / "lmtool"


def make_private(folder: Path) -> Path:
    """The folder, made where it is missing, and closed to other users. Raises `FileError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}", "keep nothing:  --no-history") from None
    return folder
