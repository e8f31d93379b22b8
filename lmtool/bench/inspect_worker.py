"""The inspector under measurement: `python -m lmtool.bench.inspect_worker` in a terminal of its own.

Words: the descriptor that takes results, then `live STREAMS RATE SEED` or `file PATH`. It writes a line once the screen
is up (for a file: once it is read), and another one with what was measured when it is told to quit.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lmtool.bench.inspect_load import Load, LoadSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.tui.lines import Spool, TraceFile


async def measure(words: Sequence[str]) -> None:
    """Run the inspector until it quits, and tell when each action had been carried out."""
    from lmtool.tui.app import InspectorApp
    from lmtool.tui.lines import Spool, TraceFile
    from lmtool.tui.options import InspectorOptions

    class Measured(InspectorApp):
        """Remembers when each key's action was done, and how much CPU time was spent by then."""

        CSS_PATH = str(Path(inspect.getfile(InspectorApp)).with_name("app.tcss"))
        done: list[tuple[float, float]]
        up: asyncio.Event

        def on_ready(self) -> None:
            self.up.set()

        def press(self, key: str, character: str | None) -> bool:
            found = super().press(key, character)
            self.done.append((time.monotonic(), time.process_time()))
            return found

    results, kind, *rest = words
    with os.fdopen(int(results), "w", buffering=1) as out:
        if kind == "live":
            source = LoadSource(Load(int(rest[0]), float(rest[1]), int(rest[2])))
            lines: Spool | TraceFile = Spool()
            app = Measured(lines, source, InspectorOptions())
        else:
            lines = TraceFile(Path(rest[0]))
            app = Measured(lines, None, InspectorOptions(speed=float("inf")))
        app.done, app.up = [], asyncio.Event()
        began = time.monotonic()
        telling = asyncio.create_task(_tell_ready(lines, out, began, app.up))
        since = time.monotonic()
        await app.run_async()
        telling.cancel()
        if app.failure is not None:
            raise app.failure
        passed = time.monotonic() - since
        out.write(
            json.dumps(
                {
                    "done": app.done,
                    "tokens": len(lines.state.tokens),
                    "seconds": passed,
                    "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                    * (1 if sys.platform == "darwin" else 1024),
                }
            )
            + "\n"
        )


async def _tell_ready(lines: Spool | TraceFile, out: TextIO, began: float, up: asyncio.Event) -> None:
    """Say when there is something to see, tokens or the whole file, and keys are taken."""
    while not (getattr(lines, "loaded", True) and len(lines.state.tokens)):  # noqa: ASYNC110 - nothing tells when
        await asyncio.sleep(0.005)
    seconds, cpu = time.monotonic() - began, time.process_time()
    await up.wait()
    out.write(json.dumps({"ready_s": seconds, "cpu_s": cpu, "tokens": len(lines.state.tokens)}) + "\n")


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1:]))
