"""What a server holds: memory, descriptors and threads by its process, open streams and connections by `/metrics`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.measure.bench.record import percentile
from lmtool.measure.bench.targets import PROC, listener, process_cpu_seconds, process_memory
from lmtool.net.access.names import is_loopback
from tests.lab.soak.wires import ask

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.lab.soak.connection import Address

EARLY = 0.1
"""Where in the run memory is first looked at, as a share of it."""
WINDOW = 0.02
"""Share of the run around that, and at its end, whose median is taken."""
SETTLE_SECONDS = 75.0
"""How long a server may take to give back what the load has used; ours ends unused helper processes after 60."""
SPARE: Mapping[str, int] = {"descriptors": 4, "threads": 8, "processes": 0}
"""By how many more a server may have after a load: pools of threads grow as they are needed, and keep their threads."""
_GAUGE = re.compile(r"lmtool_((?:\w+_)?(?:connections|streams|sessions|running|waiting))(\{[^}]*\})? ([0-9.e+]+)")
"""Samples of `/metrics` that count what is open."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server holds at a moment; None where it is not known."""

    memory: int | None = None
    """Bytes, see `Watch.memory`."""
    descriptors: int | None = None
    threads: int | None = None
    processes: int | None = None
    open: Mapping[str, float] = field(default_factory=dict)
    """Connections, sessions and streams, by the names of `/metrics`."""


class Watch:
    """Looks at a server."""

    def __init__(self, address: Address, process: int | None) -> None:
        """process: its id on this machine; None: not known."""
        self._address = address
        self.process = process
        self.samples: list[tuple[float, int]] = []
        """Seconds since the start, and resident bytes."""
        self._start = time.monotonic()

    def begin(self) -> None:
        """Forget the samples: the load begins."""
        self.samples, self._start = [], time.monotonic()

    def sample(self) -> int | None:
        """Note the memory of now."""
        memory = self.memory()
        if memory is not None:
            self.samples.append((time.monotonic() - self._start, memory))
        return memory

    def memory(self) -> int | None:
        """Resident bytes of the process, and those of its descendants without files, which they share with it."""
        if self.process is None:
            return None
        own = process_memory(self.process)
        others = [process_memory(each, files=False) for each in family(self.process)[1:]]
        return None if own is None else own + sum(size or 0 for size in others)

    def cpu_seconds(self) -> float | None:
        """CPU time so far."""
        return None if self.process is None else process_cpu_seconds(self.process)

    def memory_at(self, share: float, duration: float) -> int | None:
        """The median memory around a share of the run. duration: seconds of the whole run."""
        width = max(1.0, WINDOW * duration)
        near = [memory for at, memory in self.samples if abs(at - share * duration) <= width]
        return None if not near else int(percentile(near, 50))

    async def state(self) -> ServerState:
        """What the server holds now."""
        counts: dict[str, float] = {}
        with contextlib.suppress(LmtoolError):
            head, body = await ask(self._address, "GET", "/metrics")
            if head.status == 200:
                found = _GAUGE.finditer(body.decode("utf-8", "replace"))
                counts = {f"{name}{labels or ''}": float(value) for name, labels, value in (f.groups() for f in found)}
        if self.process is None:
            return ServerState(open=counts)
        processes = family(self.process)
        files = [_count(PROC / str(each) / "fd") for each in processes]
        threads = [_count(PROC / str(each) / "task") for each in processes]
        return ServerState(self.memory(), sum(files), sum(threads), len(processes), counts)

    async def settled(self, before: ServerState, seconds: float = SETTLE_SECONDS) -> ServerState:
        """What it holds once the load is gone: as soon as that is no more than before, or after `seconds`."""
        until = time.monotonic() + seconds
        while True:
            now = await self.state()
            if not leaks(before, now) or time.monotonic() > until:
                return now
            await asyncio.sleep(0.5)


def leaks(before: ServerState, after: ServerState) -> list[str]:
    """A sentence for everything of which there is more than before, memory aside."""
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in SPARE]
    if before.open:  # else it could not be asked
        pairs += [(name, before.open.get(name, 0.0), value) for name, value in after.open.items()]
    return [
        f"{name}: {was:g} before, {now:g} after"
        for name, was, now in pairs
        if None not in (was, now) and now > was + SPARE.get(name, 0)
    ]


def family(process: int) -> list[int]:
    """A process and its descendants."""
    found = [process]
    for each in found:
        for task in (PROC / str(each) / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text(encoding="ascii").split()]
    return found


def _count(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return 0


def process_behind(address: Address) -> int | None:
    """The id of the process that listens at an address of this machine; None where it cannot be determined."""
    if address.unix is None:
        return listener(address.port) if is_loopback(address.host) else None
    with contextlib.suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX) as asking:
        asking.connect(address.unix)
        return int(struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]) or None
    return None
