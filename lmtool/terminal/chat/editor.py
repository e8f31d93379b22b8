"""A text changed in the user's editor, which has the terminal meanwhile."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SET_EDITOR = "name yours:  export EDITOR=nano"


def editor_command() -> list[str]:
    """The user's editor, from $VISUAL or $EDITOR, else one that is installed. Raises `UsageError`."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if named:
        try:
            return shlex.split(named)
        except ValueError as error:
            raise UsageError(f"the editor {named!r} cannot be read: {error}", _SET_EDITOR) from None
    for program in ("editor", "nano", "vi"):
        if shutil.which(program):
            return [program]
    raise UsageError("no editor is known", _SET_EDITOR)


def edited_text(command: Sequence[str], text: str) -> str | None:
    """The text as the editor leaves it; None where it ends with an error. Raises `UsageError` where it cannot run."""
    with tempfile.TemporaryDirectory(prefix="lmtool-") as folder:
        file = Path(folder) / "prompt.md"
        file.write_text(f"{text}\n" if text else "", encoding="utf-8")
        try:
            status = subprocess.call([*command, str(file)])  # noqa: S603 - the user's own choice
        except OSError as error:
            raise UsageError(f"cannot run the editor {command[0]}: {error.strerror}", _SET_EDITOR) from None
        if status or not file.is_file():
            return None
        return file.read_text(encoding="utf-8", errors="replace").rstrip("\n")
