"""Draws the README picture again: `python -m tests.readme_picture URL`, of a server of the embedded model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent.parent / "recordings/four_streams.svg"
COMMAND = ("chat", "Tell me a story about a fox.", "-t", "1", "--seed", "7", "-n", "28", "--n-streams", "4", "--heat")


def draw(url: str) -> None:
    """Run the command against a server and keep what a terminal would show."""
    words = [sys.executable, "-m", "lmtool", *COMMAND, "-e", url, "--color", "always"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, env={"COLUMNS": "104"}).stdout
    console = Console(record=True, width=104, file=open("/dev/null", "w"), force_terminal=True)  # noqa: PTH123, SIM115
    typed = f'$ lmtool {COMMAND[0]} "{COMMAND[1]}" {" ".join(COMMAND[2:])}'
    console.print(Text(typed, style="bold"))
    console.print(Text.from_ansi(shown))
    PICTURE.write_text(console.export_svg(title="lmtool"), encoding="utf-8")


if __name__ == "__main__":
    draw(sys.argv[1])
