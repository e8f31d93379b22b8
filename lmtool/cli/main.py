"""Entry point of the `lmtool` script: what is decided before typer is imported."""

from __future__ import annotations

import codecs
import gc
import io
import os
import sys
from collections.abc import Mapping, Sequence

from lmtool import __version__

OPTIONAL_VALUES: Mapping[str, tuple[str, ...]] = {"--heat": ("prob", "surprisal", "entropy", "rank")}
"""Options whose value may be omitted, to their possible values; the first is the default."""
_NO_OPTIONAL_VALUES = ("inspect", "tui")
"""Commands in which the value may not be omitted."""


def main() -> None:
    """Run the program on `sys.argv`."""
    words = sys.argv[1:]
    if words in (["--version"], ["-V"]):
        sys.stdout.write(f"lmtool {__version__}\n")
        return
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in {"strict", "surrogateescape"}:
        codecs.register_error("escape", _escape)
        sys.stdout.reconfigure(errors="escape")
    os.environ.setdefault("TYPER_USE_RICH", "0")  # our help is plain; importing rich takes longer than printing it
    gc.disable()  # collecting imports takes a fourteenth of the time and frees nothing; cli.options enables it
    try:
        if words in ([], ["--help"], ["-h"]) and "_LMTOOL_COMPLETE" not in os.environ:
            _print_help(options=bool(words))
        else:
            _run(words)
    finally:
        gc.enable()


def _escape(error: UnicodeError) -> tuple[str, int]:
    r"""Characters that the locale's encoding lacks as `\uXXXX`: answers are in any script, and JSON stays JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)), error.end


def _print_help(*, options: bool) -> None:
    """Print the program's help without typer, whose import takes most of the time."""
    from lmtool.cli.help import program_help

    try:
        sys.stdout.write(program_help(options=options))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would complain about the pipe


def _run(words: Sequence[str]) -> None:
    from lmtool.cli.app import build, convert_without_pydantic
    from lmtool.core.errors import UsageError

    convert_without_pydantic()
    try:
        completed = complete_values(words)
    except UsageError as error:
        from lmtool.cli.common_options import Common
        from lmtool.cli.error_report import report_error

        report_error(error, Common())
        sys.exit(error.exit_code)
    build()(completed, prog_name="lmtool")


def complete_values(words: Sequence[str]) -> list[str]:
    """The words of a command line with omitted values filled in: `--heat` becomes `--heat=prob`.

    typer has no options with an optional value. A following word that does not look like a value is kept: in `chat
    --heat "Hello there"` it is the prompt. Raises `UsageError` for a single word that is not a possible value.
    """
    end = words.index("--") if "--" in words else len(words)
    completed = list(words)
    commands = (word for word in words[:end] if word in (*_NO_OPTIONAL_VALUES, "chat", "score"))
    if next(commands, "") in _NO_OPTIONAL_VALUES:
        return completed
    for i in range(end):
        values = OPTIONAL_VALUES.get(words[i])
        if values and (i + 1 == end or words[i + 1] not in values):
            if i + 1 < end and words[i + 1].isascii() and words[i + 1].replace("_", "").isalnum():
                from lmtool.core.errors import UsageError

                raise UsageError(
                    f"{words[i]} {words[i + 1]}: expected one of {', '.join(values)}",
                    f"put a one-word prompt before it, or write:  {words[i]} {values[0]} {words[i + 1]}",
                )
            completed[i] = f"{words[i]}={values[0]}"
    return completed
