"""Collects a step's outputs and hands them over: one call into each event loop, there one call of each sink."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lmtool.interfaces import Sink
from lmtool.types import TokenOutput

if TYPE_CHECKING:
    import asyncio

_Outputs = dict[Sink, list[TokenOutput]]


class Outbox:
    """Outputs by event loop and sink, in order within a sink. Used by one thread."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, _Outputs] = defaultdict(dict)

    def put(self, loop: asyncio.AbstractEventLoop, sink: Sink, output: TokenOutput) -> None:
        """Keep an output until the next `flush`."""
        self._waiting[loop].setdefault(sink, []).append(output)

    def flush(self) -> set[asyncio.AbstractEventLoop]:
        """Hand everything over; returns the loops that are closed, whose outputs nobody can take."""
        gone = {loop for loop, outputs in self._waiting.items() if not _hand_over(loop, outputs)}
        self._waiting.clear()
        return gone


def _hand_over(loop: asyncio.AbstractEventLoop, outputs: _Outputs) -> bool:
    try:
        loop.call_soon_threadsafe(_deliver, loop, outputs)
    except RuntimeError:  # the loop closed, perhaps just now
        if loop.is_closed():
            return False
        raise
    return True


def _deliver(loop: asyncio.AbstractEventLoop, outputs: _Outputs) -> None:
    """In the loop. A sink must not raise; one that does costs its neighbours nothing."""
    for sink, own in outputs.items():
        loop.call_soon(sink, own)
