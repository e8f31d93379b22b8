"""Turns what a command raises into a message on stderr and an exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

import typer

from lmtool.core.errors import FileError, LmtoolError, UsageError
from lmtool.settings.terminal import end_line, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from lmtool.cli.common_options import Common

_DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextlib.contextmanager
def reporting(common: Common) -> Iterator[None]:
    """Print an exception of the block and exit with the documented status.

    130 for Ctrl-C, 141 when the reader of stdout has closed it, an error's own code, 70 for a bug.
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
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:  # noqa: BLE001 - the one place where an unforeseen error becomes a sentence
        if not isinstance(error, OSError) or error.errno not in _DISK_FULL:
            report_bug(error, common)
            raise typer.Exit(70) from None
        _discard_stdout()
        report_error(FileError(f"cannot write the output: {error.strerror}", "what was written is cut"), common)
        raise typer.Exit(FileError.exit_code) from None


def command_line_errors(run: Callable[[], Any]) -> NoReturn:
    """Run a command outside click's standalone mode, print an error of the command line in our form, and exit."""
    from lmtool.cli.common_options import Common

    try:
        status = run()
    except typer.Abort:
        status = 1
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        message = str(error.format_message()).strip()
        ctx = getattr(error, "ctx", None)
        hints = () if ctx is None else (f"see:  {ctx.command_path} --help",)
        sentence = message if ". " in message else message.removesuffix(".")
        report_error(UsageError(f"{sentence[:1].lower()}{sentence[1:]}", *hints), Common())
        status = getattr(error, "exit_code", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _discard_stdout() -> None:
    """Point stdout at the null device, or the interpreter would complain about the closed pipe while it exits."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def report_error(error: LmtoolError, common: Common) -> None:
    """Print what happened and what to do next; when debugging, the traceback as well."""
    if common.debug:
        traceback.print_exception(error)
    head = "\x1b[1;31merror:\x1b[0m" if common.output().note_color else "error:"
    words = " ".join((error.message, *error.hints))
    origins = common.origins.items()
    sources = [f"{option} is set in {origin}" for option, (origin, value) in origins if _names(words, option, value)]
    end_line()
    hints = "".join(f"  {visible(hint)}\n" for hint in (*error.hints, *sources))
    sys.stderr.write(f"{head} {visible(error.message)}\n{hints}")
    sys.stderr.flush()


def _names(words: str, option: str, value: str) -> bool:
    """True if an error mentions an option: its name, or its value in quotes or of more than five characters."""
    named = re.search(rf"{re.escape(option)}(?![\w-])", words) is not None
    return named or repr(value) in words or (len(value) > 5 and value in words)


def report_bug(bug: Exception, common: Common) -> None:
    """Print that lmtool itself failed, and how to get the traceback for a report."""
    if common.debug:
        traceback.print_exception(bug)
    end_line()
    name = type(bug).__name__
    sys.stderr.write(f"error: lmtool failed ({name}: {visible(str(bug))})\n  this is a bug; -vv shows the traceback\n")
    sys.stderr.flush()
