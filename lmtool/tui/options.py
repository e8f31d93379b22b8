"""How the inspector is opened: what its command line and settings say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.tui.heat import HeatMode, Palette
    from lmtool.tui.view import Mode


@dataclass(frozen=True, slots=True)
class InspectorOptions:
    """Everything has a default: `InspectorOptions()` shows what comes, in colour."""

    theme: str = "textual-dark"
    """A theme of Textual; `textual-ansi` keeps the terminal's own sixteen colours."""
    heat: HeatMode = "prob"
    palette: Palette = "blue-orange"
    """Colours of the heat; the default one can be told apart with every common colour blindness."""
    mode: Mode = "interleaved"
    """How tokens are shown at first."""
    filter: str = ""
    """What to show, in the grammar of `lmtool.trace.filter`; empty shows everything."""
    speed: float = 1.0
    """Of a file that is played: trace seconds a second; `inf` shows its end at once."""
    at: float | None = None
    """Second of the trace to begin at, standing still; None: files from their end, what is live as it comes."""
    exit_at_end: bool = False
    """Leave once the source is over and everything has been shown."""
    record: Path | None = None
    """Record from the start into this file."""
    folder: Path = Path()
    """Where snapshots, exports and recordings go."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Id of an action (`lmtool.tui.keys.ACTIONS`) to its keys, with commas between; from `[inspect.keys]`."""
    color: bool = True
    """Whether colours are welcome; without them the heat is dim, bold and underlined."""
    ascii: bool = False
    """Draw with ASCII only."""
