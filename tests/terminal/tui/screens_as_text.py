"""Screens of a recording as text, in tests/data/screens; made by `python -m tests.terminal.tui.screens_as_text`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lmtool.terminal.tui.app import InspectorApp
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.options import InspectorOptions
from tests.terminal.tui.scripted import Scripted, Watched

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "tests/data/screens"
RECORDING = ROOT / "recordings/alternatives.lmtp.jsonl"
SIZES = ((160, 45), (120, 36), (60, 20))
KEYS = ((), ("2", "u"), ("2", "v"), ("2", "v", "v"), ("4",))
"""What is pressed before; each makes a screen."""


def path_of(size: tuple[int, int], keys: tuple[str, ...]) -> Path:
    """Where a screen is kept."""
    return KEPT / f"{size[0]}x{size[1]}-{''.join(keys) or 'start'}.txt"


async def screen(size: tuple[int, int], keys: tuple[str, ...]) -> str:
    """The recording at its end, after these keys."""
    lines = TraceFile(RECORDING)
    app = InspectorApp(lines, None, InspectorOptions(speed=float("inf")))
    async with app.run_test(size=size) as pilot:
        seen = Watched(app, pilot, Scripted())
        await seen.wait_for(lambda: lines.is_loaded, "the file to be read")
        await seen.settle()
        for key in keys:
            await seen.press(key)
        return f"{seen.text()}\n"


async def keep() -> None:
    """Write all of them."""
    KEPT.mkdir(exist_ok=True)
    for size in SIZES:
        for keys in KEYS:
            path_of(size, keys).write_text(await screen(size, keys), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(keep())
