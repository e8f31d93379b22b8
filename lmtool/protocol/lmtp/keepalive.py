"""Pings over a WebSocket, for both ends: a peer that leaves several unanswered is gone (SPEC.md, TRA-14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

PING_SECONDS = 15.0
_EXTENSION = "lmtool.expect_pongs"


@dataclass(frozen=True, slots=True)
class PingLimits:
    """When a peer is taken for gone."""

    interval: float = PING_SECONDS
    """Seconds between two pings."""
    unanswered: int = 3
    """Pings in a row without any sign of life, after which the next one is not sent."""


PATIENT = PingLimits(60.0, 5)
"""For a peer that is not known to speak the extensions: LMQL's client answers no ping while it computes a mask, LMQL's
server with `--single_thread` none while it computes."""


class Keepalive:
    """Pings a peer until it is gone, or `stop`. Every byte of it counts as a sign of life, not the pongs alone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send_ping: Callable[[], None],
        on_dead: Callable[[str], None],
        *,
        deaf: Callable[[], bool] = lambda: False,
    ) -> None:
        """on_dead: called once, with why, when the peer is gone. deaf: whether signs of life cannot be noticed now."""
        self._loop = loop
        self._send_ping = send_ping
        self._on_dead = on_dead
        self._deaf = deaf
        self._limits = PATIENT
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, limits: PingLimits = PATIENT) -> None:
        """Ping from now on within these limits, or within these from now on."""
        if self._timer is not None and limits == self._limits:
            return
        self.stop()
        self._limits = limits
        self._timer = self._loop.call_later(limits.interval, self._tick)

    def stop(self) -> None:
        """Send no more pings."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def alive(self) -> None:
        """Note a sign of life."""
        self._unanswered = 0

    def _tick(self) -> None:
        if self._deaf():
            self._unanswered = 0
        if self._unanswered >= self._limits.unanswered:
            self._timer = None
            self._on_dead(f"{self._unanswered} pings were left unanswered")
            return
        self._unanswered += 1
        self._timer = self._loop.call_later(self._limits.interval, self._tick)
        self._send_ping()


def offer(scope: Mapping[str, Any], start: Callable[[], None]) -> None:
    """Let an ASGI application call `start` by `expect_pongs`."""
    scope["extensions"][_EXTENSION] = {"start": start}


def expect_pongs(scope: Mapping[str, Any]) -> None:
    """Tell a connection, by its ASGI scope, that its client knows the extensions, and so answers pings at once.

    Has no effect where another protocol than ours carries it.
    """
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        extension["start"]()
