"""A terminal that has gone while the inspector runs: its window was closed, or the connection to it was lost."""

from __future__ import annotations

import errno
import os
import sys
import termios


def terminal_is_lost() -> bool:
    """Whether the terminal at stdin has gone. What is no terminal cannot go."""
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        return bool(error.args[0] != errno.ENOTTY)
    return False


def discard_lost_output() -> None:
    """Point stdout and stderr at nothing where their terminal, stdin's, has gone.

    What is still to be written would fail as the interpreter exits, and replace its status with 120.
    """
    if not terminal_is_lost():
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and os.path.samestat(os.fstat(0), os.fstat(stream.fileno())):
            os.dup2(nothing, stream.fileno())
    os.close(nothing)
