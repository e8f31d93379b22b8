"""Which HTTP requests are being answered, so that a server can end when the last of them is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class RequestTracker:
    """Counts requests from their arrival to the last byte of their answer."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        """Requests that are being answered."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        """True if nothing new is taken any more."""

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self.count += 1
            self._idle.clear()
            try:
                await app(scope, receive, send)
            finally:
                self.count -= 1
                if not self.count:
                    self._idle.set()

        return counted

    async def drain(self, seconds: float) -> bool:
        """Take nothing new, and wait for what runs; whether all of it ended within `seconds`."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        return not self.count
