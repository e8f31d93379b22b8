"""What processes are asked to do here: they find it by its name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from lmtool.errors import ConstraintError


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


def say(text: str) -> str:
    """Print what is no answer."""
    sys.stdout.write(text)
    sys.stdout.flush()
    os.write(1, text.encode())
    return text


def unspeakable() -> Callable[[], int]:
    """What cannot be pickled."""
    return lambda: 1
