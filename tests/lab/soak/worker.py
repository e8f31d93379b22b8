"""The load of `lab soak`, in a process of its own: `python -m tests.lab soak.worker`, which `run` starts.

Settings come as a line of JSON on stdin; a tally goes as a line of JSON to stdout every second. It ends when stdin
does, or when enough was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.lab.soak.connection import Address
from tests.lab.soak.hostile import Attacker
from tests.lab.soak.tally import Tally
from tests.lab.soak.visits import Visitor
from tests.lab.soak.wires import SoakTarget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

NICE = 10
"""How far it steps back behind a server on the same machine, and behind the good streams, which are timed."""
TALLY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What to put on a server."""

    address: Address
    target: SoakTarget
    places: Mapping[str, int]
    """Connections at once, by part: `churn`, `faults`, `slow`, `hostile`."""
    seed: int
    timeout: float
    """Seconds after which an answer counts as lost."""
    frames: int | None = None
    """Hostile frames and requests after which the load ends; None: it goes on until it is stopped."""
    tally: Tally = field(default_factory=Tally)

    def as_line(self) -> bytes:
        """For the loading process's stdin."""
        target = {name: getattr(self.target, name) for name in ("wires", "model", "pool", "grpc")}
        settings = {"places": dict(self.places), "seed": self.seed, "timeout": self.timeout, "frames": self.frames}
        return json.dumps({"address": self.address.as_json(), "target": target, **settings}).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Load:
        """What `as_line` wrote."""
        value: dict[str, Any] = json.loads(line)
        target = value.pop("target")
        target["wires"] = tuple(target["wires"])
        return cls(Address(**value.pop("address")), SoakTarget(**target), **value)

    async def run(self) -> None:
        """Keep all places busy until enough was sent; for ever where that is not limited."""
        async with asyncio.TaskGroup() as group:
            for part, count in self.places.items():
                for number in range(count):
                    group.create_task(self._place(part, f"{self.seed} {part} {number}"))

    async def _place(self, part: str, seed: str) -> None:
        common = (self.address, self.target, self.tally, seed, self.timeout)
        turn: Callable[[], Awaitable[object]]
        if part == "hostile":
            turn = Attacker(*common).turn
        else:
            visitor = Visitor(*common)

            def visit() -> Awaitable[object]:
                return visitor.turn(part)

            turn = visit
        while self.frames is None or self.tally.sent("hostile") < self.frames:
            await turn()
            await asyncio.sleep(0)


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    load = Load.of(await reader.readline())
    running, stopped = asyncio.create_task(load.run()), asyncio.create_task(reader.read())
    while True:
        await asyncio.wait((running, stopped), timeout=TALLY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        over = running.done() or stopped.done()
        _tell({**load.tally.as_json(), "over": over})
        if over:
            break
    running.cancel()
    stopped.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def _tell(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the load that stdin describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the process that started this one ends it
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(_main())


if __name__ == "__main__":
    main()
