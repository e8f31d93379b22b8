"""Options of the inspector."""

from __future__ import annotations

import subprocess
import sys

from lmtool.tui.options import InspectorOptions


def test_defaults_show_everything_in_colour() -> None:
    """No filter, no record, the palette that is safe for colour blindness."""
    options = InspectorOptions()
    assert (options.filter, options.record, options.palette, options.color) == ("", None, "blue-orange", True)


def test_options_are_light() -> None:
    """The command line reads them without textual."""
    code = "import sys, lmtool.tui.options, lmtool.tui.keys; sys.exit(bool({'textual', 'asyncio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
