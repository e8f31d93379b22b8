"""A program in a pseudo-terminal: keys in, what it draws out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.forkserver import LMTOOL, ForkedProcess, spawn

PATIENCE = 60.0
_STEERING = re.compile(r"\x1b\[[0-9;:?<>=]*[A-Za-z~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78]")


@dataclass
class Terminal:
    """A running program."""

    process: subprocess.Popen[str] | ForkedProcess
    master: int
    drawn: bytes = b""
    """Everything that was written, steering and all."""
    _marks: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What was written, without what steers the terminal."""
        return _STEERING.sub("", self.drawn.decode("utf-8", "replace"))

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def until(self, part: str, *, after: int = 0) -> None:
        """Wait for a text to be drawn, counting from this character of `text` on."""
        self._read(lambda: part in self.text[after:], f"{part!r} was not drawn")

    def end(self) -> int:
        """Wait for the program's end; its exit status."""
        self._read(lambda: self.process.poll() is not None, "the program did not end")
        return self.process.wait()

    def _read(self, holds, complaint: str) -> None:  # type: ignore[no-untyped-def]
        until = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < until, f"{complaint}:\n{self.text[-3000:]}"
            ready, _, _ = select.select([self.master], [], [], 0.05)
            if ready:
                try:
                    self.drawn += os.read(self.master, 65536)
                except OSError:  # the program has gone, and all it wrote was read
                    self.process.wait(10)
                    assert holds(), f"{complaint}:\n{self.text[-3000:]}"
                    return


@contextlib.contextmanager
def terminal(
    *words: str,
    columns: int = 120,
    rows: int = 36,
    program: tuple[str, ...] = (sys.executable, *LMTOOL),
    cwd: Path | None = None,
    **env: str,
) -> Iterator[Terminal]:
    """Run `lmtool WORDS...`, or another program, in a terminal of this size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    around = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}  # would win
    process = spawn(
        words,
        program=program,
        cwd=cwd,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**around, "TERM": "xterm-256color", **env},
        start_new_session=True,
    )
    os.close(slave)
    try:
        screen = Terminal(process, master)
        yield screen
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(screen.master)
