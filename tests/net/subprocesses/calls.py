"""What processes are asked to do here: they find it by its name."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lmtool.core.errors import ConstraintError


class Body(str):
    """A text of which it can be told when it is gone."""

    __slots__ = ("__weakref__",)


def pid(_given: object = None) -> int:
    """Of the process."""
    return os.getpid()


def hang(_given: object = None) -> None:
    """Never end."""
    while True:
        pass


def stay(seconds: float) -> int:
    """Take so long."""
    time.sleep(seconds)
    return os.getpid()


def leave(status: int) -> None:
    """End the process."""
    os._exit(status)


def abort(_given: object = None) -> None:
    """Crash."""
    os.abort()


def refuse(_given: object = None) -> None:
    """Raise one of our own errors."""
    raise ConstraintError("no", "send another")


class Knot:
    """What holds itself."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


def tie_knots(count: int) -> int:
    """Make garbage that only a collection finds; how much there was before."""
    before = Knot.alive
    for _ in range(count):
        Knot()
    return before


def say(text: str) -> str:
    """Print what is no answer."""
    sys.stdout.write(text)
    sys.stdout.flush()
    os.write(1, text.encode())
    return text


def unspeakable() -> Callable[[], int]:
    """What cannot be pickled."""
    return lambda: 1


class Gate:
    """Where a process waits, in `wait_at`, until it is opened."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp())
        self.path = str(folder / "gate")
        os.mkfifo(self.path)
        os.mkfifo(self.path + ".reached")

    def reached(self) -> None:
        """Return when a process has come there."""
        Path(self.path + ".reached").read_text(encoding="utf-8")

    def open(self) -> None:
        """Let it go on."""
        Path(self.path).write_text("go", encoding="utf-8")


def wait_at(gate: str) -> int:
    """Come to a gate, and return the process once it is open."""
    Path(gate + ".reached").write_text("here", encoding="utf-8")
    Path(gate).read_text(encoding="utf-8")
    return os.getpid()


def first(text: str) -> str:
    """The first word."""
    return text.partition(".")[0]
