"""Runs `lab inspect`: the inspector in a pseudo-terminal, keys pressed, their effects timed; and its card."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.core.errors import ResourceError
from lmtool.measure.bench.record import percentile
from lmtool.measure.bench.result import Metric, outcome
from tests.lab.inspector.worker import Load, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

KEYS = (b"j", b"k", b"h", b"l")
"""Pressed in turn: row down, row up, previous token, next token."""
SCROLL = (b"2", b"g", b"\x1b[6~", b"G", b"\x1b[5~")
"""To the tokens pane, then: first, page down, last, page up."""
PRESS_EVERY = 0.05
"""Seconds between two keys."""
WARMUP = 1.0
"""Seconds at the beginning that are not measured: a program that starts answers slowly."""
TIMEOUT = 120.0
"""Seconds for a step that should take one or two."""
METRICS = {
    "live": ("key_ms_p50", "key_ms_p95", "cpu_share", "cpu_share_keys", "shown_per_s"),
    "file": ("open_s", "open_cpu_s", "rss_mb", "key_ms_p50", "key_ms_p95"),
}
"""Figures by which two runs are compared."""
GOALS = {"key_ms_p50": 10.0, "key_ms_p95": 50.0, "cpu_share": 0.5, "open_s": 2.0, "rss_mb": 300.0}


@dataclass(frozen=True, slots=True)
class InspectBench:
    """Settings of one run. Fields match the flags of `lab inspect`."""

    rate: float = 50_000.0
    """Tokens a second of the live load."""
    streams: int = 64
    seconds: float = 10.0
    """Duration of the load."""
    tokens: int = 1_000_000
    """In the trace."""
    columns: int = 160
    rows: int = 45
    seed: int = 0


@dataclass(frozen=True, slots=True)
class InspectReport:
    """Figures of the live load and of the trace."""

    bench: InspectBench
    live: dict[str, float]
    file: dict[str, float]


def run(bench: InspectBench, note: Callable[[str], None]) -> InspectReport:
    """Measure a live load and a trace. Raises `ResourceError` without pseudo-terminals, or if the inspector fails."""
    if os.name != "posix":
        raise ResourceError("lab inspect needs pseudo-terminals, which this system has not", "run it on Linux or macOS")
    note(f"{bench.rate:,.0f} tokens/s over {bench.streams} streams, for {bench.seconds:g} s")
    live = _live(bench)
    with tempfile.TemporaryDirectory(prefix="lmtool-bench-") as folder:
        path = Path(folder) / "load.lmtp.jsonl"
        note(f"writing a trace of {bench.tokens:,} tokens")
        write_trace(path, Load(bench.streams, bench.rate, bench.seed), bench.tokens)
        note(f"opening it ({path.stat().st_size / 1e6:.0f} MB)")
        return InspectReport(bench, live, _file(bench, path))


def _live(bench: InspectBench) -> dict[str, float]:
    with _Terminal(bench, ["live", str(bench.streams), str(bench.rate), str(bench.seed)]) as terminal:
        terminal.line()
        time.sleep(WARMUP)
        terminal.press(KEYS[:1], 0.0)
        time.sleep(bench.seconds / 2)
        pressed = terminal.press(KEYS, bench.seconds)
        end = terminal.quit()
    return {
        **_delays(pressed, end["done"]),
        "cpu_share": _cpu_share(end["done"][:2]),
        "cpu_share_keys": _cpu_share(end["done"][1:]),
        "shown_per_s": end["tokens"] / end["seconds"],
    }


def _file(bench: InspectBench, path: Path) -> dict[str, float]:
    with _Terminal(bench, ["file", str(path)]) as terminal:
        ready = terminal.line()
        terminal.press(SCROLL, WARMUP)
        pressed = terminal.press(SCROLL, min(bench.seconds, 5.0))
        end = terminal.quit()
    return {
        **_delays(pressed, end["done"]),
        "open_s": ready["ready_s"],
        "open_cpu_s": ready["cpu_s"],
        "tokens": ready["tokens"],
        "rss_mb": end["rss_bytes"] / 1e6,
    }


def _cpu_share(done: Sequence[Sequence[float]]) -> float:
    """Share of a core that the inspector used between the first and the last of these keys."""
    return (done[-1][1] - done[0][1]) / (done[-1][0] - done[0][0])


def _delays(pressed: Sequence[float], done: Sequence[Sequence[float]]) -> dict[str, float]:
    """Milliseconds from each key press to the end of its action. The last of `done` is the key that quits."""
    waits = [after - before for before, (after, _) in zip(pressed, done[-len(pressed) - 1 : -1], strict=False)]
    if len(waits) < len(pressed):
        raise ResourceError("the inspector answered no key", "try it by hand:  lmtool inspect")
    return {f"key_ms_p{percent}": 1000 * percentile(waits, percent) for percent in (50, 95)} | {
        "key_ms_max": 1000 * max(waits),
        "keys": len(waits),
    }


class _Terminal:
    """A pseudo-terminal with the inspector in it; its output is read and discarded."""

    def __init__(self, bench: InspectBench, words: Sequence[str]) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", bench.rows, bench.columns, 0, 0))
        self._results, writing = os.pipe()
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        environment.pop("NO_COLOR", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.inspector.worker", str(writing), *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=[writing],
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        os.close(writing)
        self._buffer = b""
        self._screen = b""
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(5)
        os.close(self._master)
        os.close(self._results)

    def _drain(self) -> None:
        with contextlib.suppress(OSError):  # the other end has gone
            while data := os.read(self._master, 65536):
                self._screen = (self._screen + data)[-2000:]

    def line(self) -> dict[str, Any]:
        """The next line of results. Raises `ResourceError` after a timeout."""
        deadline = time.monotonic() + TIMEOUT
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._results], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._results, 1 << 20) if ready else b""
            if not data:
                raise ResourceError(
                    f"no answer from the inspector: it drew {self._screen[-300:]!r}", "try:  lmtool inspect"
                )
            self._buffer += data
        first, _, self._buffer = self._buffer.partition(b"\n")
        result: dict[str, Any] = json.loads(first)
        return result

    def press(self, keys: Sequence[bytes], seconds: float) -> list[float]:
        """Press keys in turn, at least one; the time of each press."""
        pressed: list[float] = []
        deadline = time.monotonic() + seconds
        while not pressed or time.monotonic() < deadline:
            key = keys[len(pressed) % len(keys)]
            pressed.append(time.monotonic())
            os.write(self._master, key)
            time.sleep(PRESS_EVERY)
        return pressed

    def quit(self) -> dict[str, Any]:
        """Quit the inspector; its measurements."""
        os.write(self._master, b"q")
        return self.line()


def as_outcome(report: InspectReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    parts, metrics = {"live": report.live, "file": report.file}, dict[str, Metric]()
    for part, names in METRICS.items():
        for name in names:
            title = f"{part}: {name.replace('_ms_', '_ms ')}"
            metrics[title] = Metric(parts[part][name], "higher" if name == "shown_per_s" else "lower")
    return outcome("inspect", {"settings": asdict(report.bench), **parts}, metrics)


def inspect_card(report: InspectReport, columns: int) -> Group:
    """The report for a terminal of this width, beside the goals."""
    bench, live, file = report.bench, report.live, report.file
    table = Table(box=None, pad_edge=False, padding=(0, 2 if columns >= 60 else 1))
    table.add_column("", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("goal", justify="right", no_wrap=True)
    table.add_row(Text(f"{bench.rate:,.0f} tokens/s, {bench.streams} streams", "bold"))
    table.add_row("tokens shown a second", f"{live['shown_per_s']:,.0f}", "all")
    table.add_row("share of a core", *_with_goal(live["cpu_share"], "cpu_share", ".2f"))
    table.add_row("  with 20 keys a second", f"{live['cpu_share_keys']:.2f}", "")
    _add_keys(table, live)
    table.add_row(Text(f"a trace of {file['tokens']:,.0f} tokens", "bold"))
    table.add_row("seconds to load it all", *_with_goal(file["open_s"], "open_s", ".2f"))
    table.add_row("seconds of CPU, start included", f"{file['open_cpu_s']:.2f}", "")
    table.add_row("memory, MB", *_with_goal(file["rss_mb"], "rss_mb", ".0f"))
    _add_keys(table, file)
    return Group(table)


def _add_keys(table: Table, figures: dict[str, float]) -> None:
    table.add_row("key delay, ms    p50", *_with_goal(figures["key_ms_p50"], "key_ms_p50", ".1f"))
    table.add_row("                 p95", *_with_goal(figures["key_ms_p95"], "key_ms_p95", ".1f"))
    table.add_row("                 max", f"{figures['key_ms_max']:.1f}", "")


def _with_goal(value: float, name: str, form: str) -> tuple[Text, str]:
    goal = GOALS[name]
    return Text(f"{value:{form}}", "" if value <= goal else "yellow"), f"≤ {goal:g}"
