"""Pictures of the screen that look the same everywhere: no font from the network, a monospaced one of the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App

FONTS = "'DejaVu Sans Mono', 'Menlo', 'Consolas', monospace"


def picture(app: App[int]) -> str:
    """An SVG of what is on the screen."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", app.export_screenshot())
    return re.sub(r"font-family:\s*Fira Code[^;]*;", f"font-family: {FONTS};", svg)
