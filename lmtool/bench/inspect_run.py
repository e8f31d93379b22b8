"""`bench inspect` itself: the inspector in a terminal that nobody sees, keys pressed, answers timed."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.bench.inspect_load import Load, write_trace
from lmtool.bench.result import Metric, outcome
from lmtool.bench.statistics import percentile
from lmtool.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

KEYS = (b"j", b"k", b"h", b"l")
"""Pressed in turn: a row down, up, a token back, on."""
SCROLL = (b"2", b"g", b"\x1b[6~", b"G", b"\x1b[5~")
"""To the tokens, then: first, a page down, end, a page up."""
PRESS_EVERY = 0.05
"""Seconds between two keys."""
SETTLING = 1.0
"""Seconds at the beginning that are not measured: a program that starts is slow to answer."""
PATIENCE = 120.0
"""Seconds for a step that should take one or two."""


@dataclass(frozen=True, slots=True)
class InspectBench:
    """What is to be measured. Fields match the flags of `lmtool bench inspect`."""

    rate: float = 50_000.0
    """Tokens a second that are offered."""
    streams: int = 64
    seconds: float = 10.0
    """How long the load lasts."""
    tokens: int = 1_000_000
    """In the trace that is opened."""
    columns: int = 160
    rows: int = 45
    seed: int = 0


@dataclass(frozen=True, slots=True)
class InspectReport:
    """What was found out."""

    bench: InspectBench
    live: dict[str, float]
    file: dict[str, float]


def run(bench: InspectBench, tell: Callable[[str], None]) -> InspectReport:
    """Measure both. Raises `ResourceError` where there are no pseudo-terminals, or the inspector fails in one."""
    if os.name != "posix":
        raise ResourceError(
            "bench inspect needs pseudo-terminals, which this system has not", "run it on Linux or macOS"
        )
    tell(f"{bench.rate:,.0f} tokens/s over {bench.streams} streams, for {bench.seconds:g} s")
    live = _live(bench)
    with tempfile.TemporaryDirectory(prefix="lmtool-bench-") as folder:
        path = Path(folder) / "load.lmtp.jsonl"
        tell(f"writing a trace of {bench.tokens:,} tokens")
        write_trace(path, Load(bench.streams, bench.rate, bench.seed), bench.tokens)
        tell(f"opening it ({path.stat().st_size / 1e6:.0f} MB)")
        return InspectReport(bench, live, _file(bench, path))


def _live(bench: InspectBench) -> dict[str, float]:
    with _Terminal(bench, ["live", str(bench.streams), str(bench.rate), str(bench.seed)]) as terminal:
        terminal.line()
        time.sleep(SETTLING)
        terminal.press(KEYS[:1], 0.0)
        time.sleep(bench.seconds / 2)
        pressed = terminal.press(KEYS, bench.seconds)
        told = terminal.quit()
    return {
        **_delays(pressed, told["done"]),
        "cpu_share": _share(told["done"][:2]),
        "cpu_share_keys": _share(told["done"][1:]),
        "shown_per_s": told["tokens"] / told["seconds"],
    }


def _file(bench: InspectBench, path: Path) -> dict[str, float]:
    with _Terminal(bench, ["file", str(path)]) as terminal:
        ready = terminal.line()
        terminal.press(SCROLL, SETTLING)
        pressed = terminal.press(SCROLL, min(bench.seconds, 5.0))
        told = terminal.quit()
    return {
        **_delays(pressed, told["done"]),
        "open_s": ready["ready_s"],
        "open_cpu_s": ready["cpu_s"],
        "tokens": ready["tokens"],
        "rss_mb": told["rss_bytes"] / 1e6,
    }


def _share(done: Sequence[Sequence[float]]) -> float:
    """Share of a core that the inspector took between the first and the last of these keys."""
    return (done[-1][1] - done[0][1]) / (done[-1][0] - done[0][0])


def _delays(pressed: Sequence[float], done: Sequence[Sequence[float]]) -> dict[str, float]:
    """Milliseconds from each key to the end of what it does. The last of `done` is the key that quits."""
    waits = [after - before for before, (after, _) in zip(pressed, done[-len(pressed) - 1 : -1], strict=False)]
    if len(waits) < len(pressed):
        raise ResourceError("the inspector answered no key", "try it by hand:  lmtool inspect")
    return {f"key_ms_p{percent}": 1000 * percentile(waits, percent) for percent in (50, 95)} | {
        "key_ms_max": 1000 * max(waits),
        "keys": len(waits),
    }


class _Terminal:
    """A pseudo-terminal with the inspector in it; what it draws is read and thrown away."""

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
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "lmtool.bench.inspect_worker", str(writing), *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=[writing],
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        os.close(writing)
        self._held = b""
        self._drawn = b""
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
                self._drawn = (self._drawn + data)[-2000:]

    def line(self) -> dict[str, Any]:
        """The next line of results. Raises `ResourceError` when none comes."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self._held:
            ready, _, _ = select.select([self._results], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._results, 1 << 20) if ready else b""
            if not data:
                raise ResourceError(
                    f"the inspector said nothing: it drew {self._drawn[-300:]!r}", "try:  lmtool inspect"
                )
            self._held += data
        first, _, self._held = self._held.partition(b"\n")
        found: dict[str, Any] = json.loads(first)
        return found

    def press(self, keys: Sequence[bytes], seconds: float) -> list[float]:
        """Press keys in turn, one at least; when each was pressed."""
        pressed: list[float] = []
        until = time.monotonic() + seconds
        while not pressed or time.monotonic() < until:
            key = keys[len(pressed) % len(keys)]
            pressed.append(time.monotonic())
            os.write(self._master, key)
            time.sleep(PRESS_EVERY)
        return pressed

    def quit(self) -> dict[str, Any]:
        """Leave the inspector; what it measured."""
        os.write(self._master, b"q")
        return self.line()


def as_outcome(report: InspectReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    bench, live, file = report.bench, report.live, report.file
    metrics = {
        "live: key_ms p50": Metric(live["key_ms_p50"], "lower"),
        "live: key_ms p95": Metric(live["key_ms_p95"], "lower"),
        "live: cpu_share": Metric(live["cpu_share"], "lower"),
        "live: cpu_share_keys": Metric(live["cpu_share_keys"], "lower"),
        "live: shown_per_s": Metric(live["shown_per_s"], "higher"),
        "file: open_s": Metric(file["open_s"], "lower"),
        "file: open_cpu_s": Metric(file["open_cpu_s"], "lower"),
        "file: rss_mb": Metric(file["rss_mb"], "lower"),
        "file: key_ms p50": Metric(file["key_ms_p50"], "lower"),
        "file: key_ms p95": Metric(file["key_ms_p95"], "lower"),
    }
    settings = {name: getattr(bench, name) for name in InspectBench.__slots__}
    details = {
        "settings": settings,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "live": live,
        "file": file,
    }
    return outcome("inspect", details, metrics)
