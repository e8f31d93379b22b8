"""What a person or a pipe gets to read: results on stdout, everything else on stderr."""

from __future__ import annotations

import os
import re
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from lmtool.cli.invocation import ColorWhen, Common
    from lmtool.errors import LmtoolError

RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Output:
    """Writes results and notes; knows whether colours and cursor movement are welcome."""

    color: bool
    """Whether stdout may carry colours."""
    note_color: bool
    """Whether stderr may carry colours."""
    terminal: bool
    """Whether a person watches stdout: text is made safe for the terminal, partial lines are flushed."""
    quiet: bool = False

    @classmethod
    def of(cls, common: Common) -> Output:
        """Decide by option, environment (NO_COLOR, FORCE_COLOR, TERM) and what the streams are connected to."""
        return cls(
            color=wants_color(sys.stdout, common.color),
            note_color=wants_color(sys.stderr, common.color),
            terminal=sys.stdout.isatty(),
            quiet=common.quiet,
        )

    def write(self, text: str) -> None:
        """Put part of the result on stdout, flushed. On a terminal, control characters are shown, never sent."""
        sys.stdout.write(visible(text) if self.terminal else text)
        sys.stdout.flush()

    def write_styled(self, text: str, style: str) -> None:
        """Like `write`, in a style (an SGR parameter string such as `1;31`) where colours are welcome."""
        shown = visible(text) if self.terminal else text
        sys.stdout.write(f"\x1b[{style}m{shown}{RESET}" if self.color and style and shown else shown)
        sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """Put one line of the result on stdout."""
        self.write(f"{text}\n")

    def note(self, text: str, style: str = "2") -> None:
        """Tell something beside the result: one line on stderr, unless quiet."""
        if not self.quiet:
            self._stderr_line(text, style)

    def note_nothing_passed(self, source: str) -> None:
        """Tell that a filter let nothing through: an empty answer looks like a trace without streams."""
        self.note(f"nothing passes the filter {source!r}")

    def warn(self, text: str) -> None:
        """Warn: one line on stderr, also when quiet."""
        self._stderr_line(f"warning: {text}", "33")

    def _stderr_line(self, text: str, style: str) -> None:
        shown = visible(text)
        sys.stderr.write(f"\x1b[{style}m{shown}{RESET}\n" if self.note_color and style else f"{shown}\n")
        sys.stderr.flush()


def wants_color(stream: TextIO, when: ColorWhen | None) -> bool:
    """Whether a stream should carry colours: the option first, then NO_COLOR, FORCE_COLOR, a capable terminal."""
    if when in {"always", "never"}:
        return when == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") != "0":
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """Make control characters readable (`⟨1b⟩`), so that a model's output cannot steer the terminal.

    Line feeds and tabs stay; a carriage return before a line feed is dropped.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _is_control(c) else f"⟨{ord(c):02x}⟩" for c in text.replace("\r\n", "\n"))


def _is_control(character: str) -> bool:
    code = ord(character)
    bidirectional = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return code < 0x20 or 0x7F <= code < 0xA0 or bidirectional


def report_error(error: LmtoolError, common: Common) -> None:
    """Print what happened and what to do next; the traceback too when debugging."""
    if common.debug:
        traceback.print_exception(error)
    out = Output.of(common)
    head = "\x1b[1;31merror:\x1b[0m" if out.note_color else "error:"
    words = " ".join((error.message, *error.hints))
    origins = common.origins.items()
    found = [f"{option} is set in {where}" for option, (where, value) in origins if _names(words, option, value)]
    hints = "".join(f"  {visible(hint)}\n" for hint in (*error.hints, *found))
    sys.stderr.write(f"{head} {visible(error.message)}\n{hints}")
    sys.stderr.flush()


def _names(words: str, option: str, value: str) -> bool:
    """Whether an error speaks of an option: by its name, or by a value that stands in quotes or is no common word."""
    named = re.search(rf"{re.escape(option)}(?![\w-])", words) is not None
    return named or repr(value) in words or (len(value) > 5 and value in words)


def report_bug(bug: Exception, common: Common) -> None:
    """Print that lmtool itself failed, and how to get the traceback for a report."""
    if common.debug:
        traceback.print_exception(bug)
    name = type(bug).__name__
    sys.stderr.write(f"error: lmtool failed ({name}: {visible(str(bug))})\n  this is a bug; -vv shows where it is\n")
    sys.stderr.flush()
