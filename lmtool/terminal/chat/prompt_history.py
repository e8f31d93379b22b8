"""What was typed in conversations, across sessions: one file for all of them, for its user alone."""

from __future__ import annotations

import contextlib
import json
import os
from typing import IO, TYPE_CHECKING

from prompt_toolkit.history import History

from lmtool.net.access.credentials import LEFT_OUT
from lmtool.trace.redaction import without_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

FILE_NAME = "prompts.jsonl"
MAX_ENTRIES = 5000
"""Prompts that are read, the newest."""
MAX_BYTES = 2 << 20
"""Of the file; when it is larger, the older half goes at the next start."""


class PromptHistory(History):
    """Prompts for cursor keys and search. Sessions at the same time append to one file, each line at once."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """path: of the file, which need not exist; its folder does. warn: called once where it cannot be used."""
        super().__init__()
        self._path = path
        self._warn = warn
        self._failed = False

    def load_history_strings(self) -> Iterable[str]:
        """The prompts of the file, the newest first."""
        lines: list[bytes] = []
        with self._warning(), _locked(self._path) as file:
            if file.seek(0, os.SEEK_END) > MAX_BYTES:
                _keep_newer_half(file)
            file.seek(0)
            lines = file.readlines()[-MAX_ENTRIES:]
        return [text for line in reversed(lines) if (text := _text(line)) is not None]

    def store_string(self, string: str) -> None:
        """Append a prompt; what looks like a key is left out of it."""
        line = json.dumps(without_keys(string), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._warning(), _locked(self._path) as file:
            file.seek(0, os.SEEK_END)
            file.write(line)

    @contextlib.contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._warn(f"prompts are not kept: {self._path}: {error.strerror or error}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The file, made where it is missing, for this process alone while the block runs."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        if os.name == "posix":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _keep_newer_half(file: IO[bytes]) -> None:
    file.seek(-MAX_BYTES // 2, os.SEEK_END)
    file.readline()  # the rest of a line
    rest = file.read()
    file.seek(0)
    file.write(rest)
    file.truncate()


def _text(line: bytes) -> str | None:
    """A line's prompt; None for one that was damaged."""
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) and text != LEFT_OUT else None
