"""What vLLM and its processes print: kept in a file, whose end says why something failed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

MOST_BYTES = 4 * 1024 * 1024
"""Size above which the file is emptied: a server runs for months, and /tmp may lie in memory."""
TAIL_BYTES = 256 * 1024


class EngineLog:
    """Takes stdout and stderr of this process, the worker, and of all that it starts from now on."""

    def __init__(self, folder: Path, *, verbose: bool) -> None:
        """folder: shared with the engine's processes. verbose: print to stderr all the same, and keep nothing."""
        self.wire: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        """What stdout was: for the protocol alone."""
        self.stderr: TextIO = os.fdopen(os.dup(2), "w", encoding="utf-8")
        """What stderr was: for the server, and whoever reads its log."""
        self._path = Path(os.devnull) if verbose else folder / "vllm.log"
        kept = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not verbose:
            os.dup2(kept, 2)
        os.dup2(2, 1)
        os.close(kept)

    def report(self, kind: str, message: str, *hints: str) -> None:
        """Write a sentence to what stderr was. kind: `error` or `warning`."""
        self.stderr.write("\n  ".join([f"{kind}: {message}", *hints]) + "\n")
        self.stderr.flush()

    def tail(self) -> str:
        """The last lines that were printed."""
        with self._path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")

    def trim(self, most: int = MOST_BYTES) -> None:
        """Empty the file where it has more bytes than that; who has it open goes on writing at its new end."""
        if self._path.stat().st_size > most:
            os.truncate(self._path, 0)
