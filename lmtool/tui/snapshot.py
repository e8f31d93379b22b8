"""A picture of the inspector at a moment of a trace, made without a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.errors import UsageError

if TYPE_CHECKING:
    from lmtool.tui.lines import TraceFile
    from lmtool.tui.options import InspectorOptions

LARGEST = 400
"""Columns or rows of a picture."""


def size_of(text: str) -> tuple[int, int]:
    """`120x36` as columns and rows. Raises `UsageError`."""
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(10 <= side <= LARGEST for side in size):
        raise UsageError(
            f"--size {text} is no size of a screen", f"columns x rows, 10 to {LARGEST} each, such as 120x36"
        )
    return size


async def snapshot(
    file: TraceFile, options: InspectorOptions, size: tuple[int, int], *, other: TraceFile | None = None
) -> str:
    """The screen as SVG, as it looks at `options.at`, or at the end of the trace. Raises `FileError`."""
    from lmtool.tui.app import InspectorApp
    from lmtool.tui.pictures import picture

    while not file.load(1.0):
        pass
    while other is not None and not other.load(1.0):
        pass
    app = InspectorApp(file, None, options, other)
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        if options.at is None:
            app.view.playing, app.view.moment = False, None
        if other is not None:
            app.action_compare()
        app.changed()
        await pilot.pause()
        await pilot.pause(0.1)  # the next frame draws what has changed
        return picture(app)
