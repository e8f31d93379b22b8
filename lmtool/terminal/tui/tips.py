"""A tip when the inspector starts, at most once a day: which one is next, and the file that says when the last was."""

from __future__ import annotations

import os
import re
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmtool.terminal.tui.action import Keymap

TIPS = (
    "{surprising} goes to the next surprising token, {least_likely} to the least likely one",
    "{branch} on an alternative goes on from it in a new stream; {tree} shows the tree of branches",
    '{filter} shows only some tokens: p<.1, gap>50ms, "text", /regex/',
    "{compare} shows two streams of one prompt side by side, where they part in sight",
    "{pause} stops the screen, not the recording; {frame_back} and {frame_on} go frame by frame",
    "{heat} colours by another figure: surprisal, entropy, rank, the gap in time",
    "{palette} runs what is typed, such as  heat entropy  or  export answer.html",
    "{what_if} asks what another temperature or top-p would have left, and where this seed would have gone",
    "{score} has a stream's tokens scored, as they are or edited",
    "{record} writes everything from now on to a trace that opens here again",
    "{raw} shows the whole frame that brought a token",
)
"""Sentences; an action's id between braces stands for its key."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\d) (\d{1,9})\s*")


def tips_file() -> Path:
    """Where the day of the last tip is kept: in the platform's folder for a program's state."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return base / "lmtool" / "inspector-tip"


def next_tip(keys: Keymap[Any], file: Path, today: date) -> str:
    """The tip of today, each a day after the one before; empty where there was one today, or the day cannot be kept.

    file: has the day of the last tip, and how many there were.
    """
    try:
        last, count = _read(file)
        if last == today:
            return ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{today.isoformat()} {count + 1}\n", encoding="utf-8")
    except OSError:  # a read-only home: better no tip than the same one at every start
        return ""
    possible = [tip for tip in (_with_keys(tip, keys) for tip in TIPS) if tip]
    return possible[count % len(possible)] if possible else ""


def _read(file: Path) -> tuple[date | None, int]:
    """The day of the last tip and their number. Anything else in the file counts as no tip yet."""
    if not file.exists():
        return None, 0
    match = _LINE.fullmatch(file.read_text(encoding="utf-8", errors="replace")[:100])
    if match is None:
        return None, 0
    try:
        return date.fromisoformat(match[1]), int(match[2])
    except ValueError:
        return None, 0


def _with_keys(tip: str, keys: Keymap[Any]) -> str:
    """A tip with the user's own keys; empty where one of its actions has none."""
    signs = {name: keys.sign(name) for name in re.findall(r"{(\w+)}", tip)}
    return tip.format(**signs) if all(signs.values()) else ""
