"""Runs an engine's own converter of checkpoints in a process of its own, so that its memory is not the engine's."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MESSAGE_CHARACTERS = 300


def convert(words: list[str], folder: Path, result: Path) -> None:
    """Run this Python with these words in a folder, unless the result, its last file, is there already.

    Raises RuntimeError with the converter's last line where it fails.
    """
    if result.exists():
        return
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    sys.stderr.write(done.stdout + done.stderr)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1][:MESSAGE_CHARACTERS] if lines else f"exit status {done.returncode}"
        raise RuntimeError(f"the model cannot be converted: {reason}")
