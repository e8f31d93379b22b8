"""Exit without waiting for threads, such as one that loads a model, but not without cleaning up."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_cleanups: list[Callable[[], None]] = []


@contextlib.contextmanager
def cleaned_at_exit(cleanup: Callable[[], None]) -> Iterator[None]:
    """Within the block, `exit_now` calls `cleanup` first, in the thread that exits."""
    _cleanups.append(cleanup)
    try:
        yield
    finally:
        _cleanups.remove(cleanup)


def exit_now(status: int) -> NoReturn:
    """Exit with this status, after all cleanups that are due."""
    for cleanup in _cleanups.copy():
        cleanup()
    os._exit(status)
