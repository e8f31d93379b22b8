"""A program's output: results on stdout, notes and warnings on stderr, safe for a terminal."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Literal, TextIO, TypeAlias

ColorWhen: TypeAlias = Literal["auto", "always", "never"]

RESET = "\x1b[0m"
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Controls, formats (Unicode's Cf), separators of lines, half surrogate pairs, and what fonts draw as nothing."""


@dataclass(frozen=True, slots=True)
class Output:
    """Writes results and notes; knows whether colours and cursor movement are welcome."""

    color: bool
    """True if stdout may carry colours."""
    note_color: bool
    """True if stderr may carry colours."""
    terminal: bool
    """True if stdout is one: control characters are made visible."""
    quiet: bool = False

    @classmethod
    def of(cls, color: ColorWhen | None = None, *, quiet: bool = False) -> Output:
        """Decide by option, environment (NO_COLOR, FORCE_COLOR, TERM) and what the streams are connected to."""
        return cls(
            color=wants_color(sys.stdout, color),
            note_color=wants_color(sys.stderr, color),
            terminal=sys.stdout.isatty(),
            quiet=quiet,
        )

    def write(self, text: str) -> None:
        """Write part of the result to stdout, flushed; on a terminal control characters are made visible."""
        put(visible(text) if self.terminal else text)

    def write_styled(self, text: str, style: str) -> None:
        """Like `write`, in a style (an SGR parameter string such as `1;31`) where colours are welcome."""
        safe = visible(text) if self.terminal else text
        put(f"\x1b[{style}m{safe}{RESET}" if self.color and style and safe else safe)

    def line(self, text: str = "") -> None:
        """Write one line of the result to stdout."""
        self.write(f"{text}\n")

    def note(self, text: str, style: str = "2") -> None:
        """Write a note: one line on stderr, unless quiet."""
        if not self.quiet:
            self._stderr_line(text, style)

    def note_nothing_passed(self, source: str) -> None:
        """Note that no event passed a filter: an empty result looks like a trace without streams."""
        self.note(f"nothing passes the filter {source!r}")

    def warn(self, text: str) -> None:
        """Write a warning: one line on stderr, even when quiet."""
        self._stderr_line(f"warning: {text}", "33")

    def _stderr_line(self, text: str, style: str) -> None:
        safe = visible(text)
        end_line()
        sys.stderr.write(f"\x1b[{style}m{safe}{RESET}\n" if self.note_color and style else f"{safe}\n")
        sys.stderr.flush()


class _Line:
    """The line of stdout that was written last."""

    ended = True


def put(text: str) -> None:
    """Write to stdout as it is, flushed."""
    if text:
        _Line.ended = text.removesuffix(RESET).endswith("\n")
    sys.stdout.write(text)
    sys.stdout.flush()


def end_line() -> None:
    """Begin a new line on stderr where stdout is in the middle of one and both go to the same place."""
    if not _Line.ended and _together():
        _Line.ended = True
        sys.stderr.write("\n")


def _together() -> bool:
    if sys.stdout.isatty() and sys.stderr.isatty():
        return True
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # one is closed, or no file
        return False


class PassingNote:
    """A note that goes away: on a terminal, behind the cursor, which stays where it is; nowhere else."""

    def __init__(self, out: Output) -> None:
        self._style = ("\x1b[2m", RESET) if out.note_color else ("", "")
        self._possible = not out.quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        """Show a text in place of the one before; what does not fit into the line is cut off."""
        if self._possible:
            start, end = self._style
            self._put(f"\x1b7\x1b[K\x1b[?7l {start}{visible(text)}{end}\x1b[?7h\x1b8")
            self._shown = True

    def clear(self) -> None:
        """Erase it, before anything else is written."""
        if self._shown:
            self._shown = False
            self._put("\x1b[K")

    @staticmethod
    def _put(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def wants_color(stream: TextIO, when: ColorWhen | None) -> bool:
    """True if a stream should carry colours: the option first, then NO_COLOR, FORCE_COLOR, a capable terminal."""
    if when in {"always", "never"}:
        return when == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") != "0":
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """Make what steers a terminal, or shows nothing, readable (`⟨1b⟩`), so that no text can act or hide.

    Line feeds and tabs stay; a carriage return before a line feed is dropped.
    """
    if text.isascii() and text.isprintable():
        return text
    return hidden_shown(text.replace("\r\n", "\n"), keep="\n\t")


def hidden_shown(text: str, keep: str = "") -> str:
    """The text with `⟨200b⟩` for each character that steers a terminal, or is invisible; keep: but for these.

    Joiners and variation selectors stay where emoji and scripts have them: behind a visible character that is not a
    letter of ASCII, and at the beginning of a text, which may be a part of one.
    """
    if not _HIDDEN.search(text):
        return text
    return _HIDDEN.sub(lambda match: match[0] if match[0] in keep else _shown(match), text)


def _shown(match: re.Match[str]) -> str:
    text, at = match.string, match.start()
    if match[0] in "\ufe0e\ufe0f\u200c\u200d":
        before = text[max(0, at - 2) : at].removesuffix("\ufe0f" if match[0] in "\u200c\u200d" else "")[-1:]
        if before in "0123456789#*" or not (before.isascii() or _HIDDEN.match(before)):
            return match[0]
    return f"⟨{ord(match[0]):02x}⟩"
