"""The server's side of a WATCH: what waits for one client that watches the others, within bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from lmtool.core.errors import OverloadedError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.errors import LmtoolError
    from lmtool.protocol.lmtp.messages import WatchRequest
    from lmtool.protocol.lmtp.server_session import ServerSession

INTERVAL = 0.02
"""Seconds between two answers to a client that keeps up: a screen shows no more."""
ANSWER_BYTES = 128 * 1024
"""Of one answer, where its first event is not longer by itself."""


class Watcher(Protocol):
    """Events that wait for one client, a bounded number: of those that it is too slow for, the oldest are dropped."""

    def take(self, most_bytes: int) -> tuple[list[bytes], int]:
        """The next events, each as JSON, at least one if any waits; and how many were dropped before them."""

    def close(self) -> None:
        """Collect nothing more."""


class Traffic(Protocol):
    """What goes over all connections of a server."""

    def clock(self) -> float:
        """Now, in seconds, as the events tell it."""

    def watch(self, connection: int, notify: Callable[[], None]) -> Watcher | None:
        """Collect events from now on, the open connections first, without those of the watching LMTP connection.

        notify: called when something waits that had not. None where too many watch already.
        """


class Watching:
    """One connection's WATCH, if it has one. Belongs to one event loop."""

    def __init__(
        self,
        connection: int,
        traffic: Traffic | None,
        refusal: Callable[[], LmtoolError | None],
        session: ServerSession,
        send: Callable[[], None],
    ) -> None:
        """refusal: why this client may not watch now. send: called when the session has something to send."""
        self._connection = connection
        self._traffic = traffic
        self._refusal = refusal
        self._session = session
        self._send = send
        self._watcher: Watcher | None = None
        self._stream_id = ""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request: WatchRequest, problem: LmtoolError | None = None) -> str | None:
        """Answer the request, now and as long as the connection lasts; why it was refused, None where it was not.

        problem: what is against it in any case, such as a server that shuts down.
        """
        problem = problem or self._problem()
        if problem is None:
            assert self._traffic is not None
            self._watcher = self._traffic.watch(self._connection, self._notice)
            problem = None if self._watcher is not None else OverloadedError("as many watch this server as may")
        if problem is not None:
            self._session.refuse(request.stream_id, problem)
            return problem.message
        self._stream_id = request.stream_id
        self._tell(even_nothing=True)
        return None

    def _problem(self) -> LmtoolError | None:
        if self._watcher is not None:
            return RequestError("this connection watches already", "end that first:  CANCEL")
        nothing = RequestError("there is nothing to watch here", "watch a server on a port")
        return self._refusal() or (nothing if self._traffic is None else None)

    def end(self, stream_id: str) -> None:
        """Stop, if that is the request's id; harmless otherwise."""
        if self._watcher is not None and stream_id == self._stream_id:
            self.close()

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def note_sent(self) -> None:
        """Go on where the client has taken all that was sent."""
        if self._watcher is not None and self._timer is None and not self._session.waiting_bytes:
            self._tell()

    def _notice(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tell)

    def _tell(self, *, even_nothing: bool = False) -> None:
        """Send what waits, unless the client is behind: then it waits on, and what is too much is dropped."""
        self._timer = None
        if self._watcher is None or self._traffic is None or (self._session.waiting_bytes and not even_nothing):
            return
        if (withdrawn := self._refusal()) is not None:  # the keys of a file may have changed meanwhile
            self.close()
            self._session.refuse(self._stream_id, withdrawn)
            self._send()
            return
        events, lost = self._watcher.take(ANSWER_BYTES)
        if events or lost or even_nothing:
            self._session.tell(self._stream_id, self._traffic.clock(), events, lost)
            self._send()
