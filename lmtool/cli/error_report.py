"""Turns a command's exception into a message on stderr and an exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from typing import TYPE_CHECKING

import typer

from lmtool.core.errors import FileError, LmtoolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.cli.common_options import Common

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextlib.contextmanager
def reporting(common: Common) -> Iterator[None]:
    """Print an exception of the block and exit with the documented status.

    130 for Ctrl-C, 141 when the reader of stdout has gone, an error's own code, 70 for a bug.
    """
    try:
        yield
    except LmtoolError as error:
        report_error(error, common)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        _discard_stdout()
        raise typer.Exit(141) from None
    except OSError as error:
        if error.errno not in _FULL:
            report_bug(error, common)
            raise typer.Exit(70) from None
        _discard_stdout()
        report_error(FileError(f"cannot write the output: {error.strerror}", "what was written is cut"), common)
        raise typer.Exit(FileError.exit_code) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as bug:  # noqa: BLE001 - the one place where an unforeseen error becomes a sentence
        report_bug(bug, common)
        raise typer.Exit(70) from None


def _discard_stdout() -> None:
    """Point stdout at nothing, or the interpreter would complain about the closed pipe while it exits."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def report_error(error: LmtoolError, common: Common) -> None:
    """Print what happened and what to do next; the traceback too when debugging."""
    import traceback

    from lmtool.settings.terminal import end_line, visible

    if common.debug:
        traceback.print_exception(error)
    out = common.output()
    head = "\x1b[1;31merror:\x1b[0m" if out.note_color else "error:"
    words = " ".join((error.message, *error.hints))
    origins = common.origins.items()
    sources = [f"{option} is set in {origin}" for option, (origin, value) in origins if _names(words, option, value)]
    hints = "".join(f"  {visible(hint)}\n" for hint in (*error.hints, *sources))
    end_line()
    sys.stderr.write(f"{head} {visible(error.message)}\n{hints}")
    sys.stderr.flush()


def _names(words: str, option: str, value: str) -> bool:
    """Whether an error speaks of an option: by its name, or by a value that stands in quotes or is no common word."""
    named = re.search(rf"{re.escape(option)}(?![\w-])", words) is not None
    return named or repr(value) in words or (len(value) > 5 and value in words)


def report_bug(bug: Exception, common: Common) -> None:
    """Print that lmtool itself failed, and how to get the traceback for a report."""
    import traceback

    from lmtool.settings.terminal import end_line, visible

    if common.debug:
        traceback.print_exception(bug)
    name = type(bug).__name__
    end_line()
    sys.stderr.write(f"error: lmtool failed ({name}: {visible(str(bug))})\n  this is a bug; -vv shows where it is\n")
    sys.stderr.flush()
