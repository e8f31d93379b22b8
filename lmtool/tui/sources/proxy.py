"""Other programs' conversations, watched from between them and their server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.trace.events import Remark
from lmtool.trace.proxy import Proxy
from lmtool.tui.sources.asking import Asking
from lmtool.tui.sources.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path
    from socket import socket

    from lmtool.access.policy import AccessPolicy
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.trace.events import Event
    from lmtool.trace.proxy import Target
    from lmtool.trace.vocabulary import Spell
    from lmtool.tui.sources.source import Feed, Recorded, TextToScore
    from lmtool.types import GenerateRequest, ModelInfo


class ProxySource:
    """A proxy in front of any LMTP server or OpenAI-compatible one; a `Source`. Make it inside a running event loop.

    Requests of the inspector's own go to the same server, or to another one, on a connection of their own: nothing is
    ever put into somebody else's.
    """

    live = True

    def __init__(
        self,
        target: Target,
        sockets: Iterable[socket],
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        spell: Spell | None = None,
        ask: Endpoint | None = None,
        also: Callable[[int, Iterable[Event]], None] | None = None,
        before_close: Callable[[], Awaitable[None]] | None = None,
        policy: AccessPolicy | None = None,
    ) -> None:
        """Remember the server and the sockets, which are bound, to take connections on.

        spell: what ids mean; None asks the server which tokenizer it has. ask: where requests of the inspector's own
        go, by default to the server where it speaks LMTP, without a key. also: as `Intake` has it.
        before_close: awaited before connections are cut, such as to let streams end. policy: which requests are let in.
        """
        self._intake = Intake(warn, also=also, at="proxy")
        self._intake.explain_by(spell)
        self._before_close = before_close
        self._sockets = list(sockets)
        self._spelled = spell is not None
        self._proxy = Proxy(target, self._intake.tell, self.say, self._intake.clock, policy=policy)
        self._asking = None
        own = ask or (target.url if target.url.startswith("ws") else None)
        if own is not None:
            self._asking = Asking(own, self._intake, self._proxy.number, find_tokenizer=find_tokenizer)
        self.url = ""
        """Where clients connect, for people; set by whoever made the sockets."""
        ports = ",".join(str(port) for port in dict.fromkeys(one.getsockname()[1] for one in self._sockets))
        self.title = f"proxy :{ports}→{_short(target)}"

    @property
    def advice(self) -> str:
        """Where clients find the proxy."""
        return f"point a client at {self.url}" if self.url else ""

    @property
    def cannot_ask(self) -> str:
        """Why there are no requests of the inspector's own."""
        return "" if self._asking is not None else "branching needs an LMTP server: add  --connect ws://HOST:PORT"

    @property
    def generate(self) -> Callable[[GenerateRequest], Awaitable[str]] | None:
        """Send a request to the server."""
        return None if self._asking is None else self._asking.generate

    @property
    def score(self) -> Callable[[TextToScore], Awaitable[str]] | None:
        """Have a text scored."""
        return None if self._asking is None else self._asking.score

    def cancel(self, label: str) -> None:
        """End a stream of the inspector's own."""
        if self._asking is not None:
            self._asking.cancel(label)

    async def run(self, feed: Feed) -> None:
        """Take connections and feed what goes over them, for ever. A server that is away is told in a note."""
        self._intake.feed_to(feed)
        await self._proxy.listen(self._sockets)
        if self.url:
            self.say(f"waiting for clients at {self.url}")
        if not self._spelled and self._asking is not None:
            try:
                await self._asking.connect()  # says what is served, and so what ids mean
            except LmtoolError as error:
                self.say(error.message)
        await asyncio.Event().wait()

    def say(self, sentence: str) -> None:
        """Put a note among the events."""
        self._intake.tell(0, [Remark(self._intake.clock(), "note", 0, sentence)])

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Record from now on. Raises `FileError`, `UsageError`."""
        self._intake.start_recording(path, history)

    async def stop_recording(self) -> Recorded | None:
        """End the recording."""
        return await self._intake.stop_recording()

    @property
    def recorded(self) -> Recorded | None:
        """What is recorded so far."""
        return self._intake.recorded

    @property
    def connections(self) -> int:
        """Connections taken or made so far."""
        return self._proxy.connections

    async def close(self) -> None:
        """Cut all connections and end the recording."""
        before, self._before_close = self._before_close, None
        if before is not None:
            await before()
        await self._proxy.close()
        for one in self._sockets:  # where it never listened
            one.close()
        if self._asking is not None:
            await self._asking.close()
        await self._intake.stop_recording()


def _short(target: Target) -> str:
    return f":{target.port}" if target.host in {"127.0.0.1", "localhost", "::1"} else f"{target.host}:{target.port}"
