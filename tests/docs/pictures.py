"""Draws the pictures of README again: `python -m tests.docs.pictures URL`, of a server of the included model."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent.parent.parent / "recordings"
COMMAND = ("chat", "Tell me a story about a fox.", "-t", "1", "--seed", "7", "-n", "28", "--n-streams", "4", "--heat")
KEYS = (("u", 1), ("3", 1), ("b", 1), ("=", 2))
"""To the least likely token, to its alternatives, branch with the first, compare; streams that ended before."""
COLUMNS = 104


def four_streams(url: str) -> None:
    """Run the command against a server and keep what a terminal would show."""
    words = [sys.executable, "-m", "lmtool", *COMMAND, "-e", url, "--color", "always"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, env={"COLUMNS": str(COLUMNS)}).stdout
    typed = f'$ lmtool {COMMAND[0]} "{COMMAND[1]}" {" ".join(COMMAND[2:])}'
    draw("four_streams", Text(typed, style="bold"), Text.from_ansi(shown))


def branching(url: str) -> None:
    """Type a branch into the inspector (in tmux), and keep the comparison of both streams."""
    words = ["env", "COLORTERM=truecolor", sys.executable, "-m", "lmtool", "inspect", url]
    words += ["--prompt", "Tell me a story about a fox.", "-n", "60"]
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", "20", *words)
    for key, ended in KEYS:
        while f" {ended} done" not in tmux("capture-pane", "-p"):
            time.sleep(0.5)
        time.sleep(3.0)  # a screen is drawn a while after its last token
        tmux("send-keys", key)
    time.sleep(3.0)
    screen = tmux("capture-pane", "-p", "-e")
    tmux("kill-session")
    assert "tokens, then" in screen, f"no branch:\n{screen}"  # its least likely token was the likeliest one
    draw("branching", Text.from_ansi(screen.rstrip("\n")))


def tmux(command: str, *words: str) -> str:
    """Run a command of tmux on a session of our own."""
    target = "-s" if command == "new-session" else "-t"
    done = subprocess.run(
        ["tmux", command, target, "lmtool-pictures", *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def draw(name: str, *shown: Text) -> None:
    """Write what a terminal shows as a picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for part in shown:
        console.print(part)
    (FOLDER / f"{name}.svg").write_text(console.export_svg(title="lmtool"), encoding="utf-8")


if __name__ == "__main__":
    four_streams(sys.argv[1])
    branching(sys.argv[1])
