"""The entry point of the `lmtool` script: decides what must be known before anything is imported."""

from __future__ import annotations

import os
import sys

from lmtool import __version__


def main() -> None:
    """Run the program on `sys.argv`."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        # Answered before typer is imported: a third of the time.
        sys.stdout.write(f"lmtool {__version__}\n")
        return
    if not sys.stdout.isatty():
        # Rich panels are for people, and cost a program that reads help a tenth of a second.
        os.environ.setdefault("TYPER_USE_RICH", "0")
    from lmtool.cli.app import build
    from lmtool.cli.arguments import complete
    from lmtool.cli.conversion import convert_plainly
    from lmtool.cli.invocation import Common
    from lmtool.errors import UsageError

    convert_plainly()
    try:
        words = complete(sys.argv[1:])
    except UsageError as error:
        from lmtool.cli.output import report_error

        report_error(error, Common())
        sys.exit(error.exit_code)
    build()(words, prog_name="lmtool")
