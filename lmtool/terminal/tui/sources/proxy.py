"""Other programs' conversations, watched from between them and their server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lmtool.core.errors import LmtoolError
from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.terminal.tui.sources.http_requests import HttpRequestSource
from lmtool.terminal.tui.sources.requests import RequestSource
from lmtool.terminal.tui.sources.source import Source
from lmtool.trace.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from socket import socket
    from ssl import SSLContext

    from lmtool.core.types import ModelInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.net.access.policy import AccessPolicy
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.terminal.tui.sources.event_pipeline import Feed
    from lmtool.trace.events import Event
    from lmtool.trace.proxy import Target
    from lmtool.trace.recorder import TokenBytes


class ProxySource(Source):
    """A proxy in front of any server of LMTP or of an HTTP API; a `Source`. Make it inside a running event loop.

    Requests of the inspector's own go to the same server, or to another one, on a connection of their own: nothing is
    ever put into somebody else's.
    """

    def __init__(
        self,
        target: Target,
        sockets: Iterable[socket],
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        spell: TokenBytes | None = None,
        endpoint: Endpoint | None = None,
        http: Target | None = None,
        also: Callable[[int, Iterable[Event]], None] | None = None,
        before_close: Callable[[], Awaitable[None]] | None = None,
        policy: AccessPolicy | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        """Remember the server and the sockets, which are bound, to accept connections on.

        spell: what ids mean; None asks the server which tokenizer it has. endpoint: where requests of the inspector's
        own go, by default to the server where it speaks LMTP, without a key. http: the server again, with the key that
        branches of HTTP answers show; by default without one. also: as `EventPipeline` has it.
        before_close: awaited before connections are cut, such as to let streams end. policy: which requests are let in.
        tls: with which clients are spoken to.
        """
        super().__init__(EventPipeline(warn, also=also, at="proxy"))
        self._pipeline.explain_by(spell)
        self._before_close = before_close
        self._sockets = list(sockets)
        self._tls = tls
        self._knows_ids = spell is not None
        self._proxy = Proxy(target, self._pipeline.add, self.say, self._pipeline.clock, policy=policy)
        own = endpoint or (None if target.url.startswith("http") else target.url)
        if own is None:
            self.no_requests = "prompts and scores from here need an LMTP server: add  --connect ws://HOST:PORT"
        else:
            self._requests = RequestSource(own, self._pipeline, self._proxy.number, find_tokenizer=find_tokenizer)
        self._http = HttpRequestSource(http or target, self._pipeline, self._proxy.number)
        self.url = ""
        """Address for clients; set by the caller, who made the sockets."""
        self.title = f"proxy {short_place(self._sockets)}→{_short(target)}"

    @property
    def advice(self) -> str:
        """Address of the proxy for clients, and environment variables for SDKs."""
        if not self.url.startswith("http"):
            return f"point a client at {self.url}" if self.url else ""
        place = urlsplit(self.url)
        root = f"{place.scheme}://{place.netloc}"
        base = f"{root}{place.path.rstrip('/') or '/v1'}"
        return f"point a client at it: OPENAI_BASE_URL={base}  ANTHROPIC_BASE_URL={root}"

    async def run(self, feed: Feed) -> None:
        """Accept connections and feed their events until cancelled. A note reports when the server is unreachable."""
        self._pipeline.feed_to(feed)
        await self._proxy.listen(self._sockets, self._tls)
        if self.url:
            self.say(f"waiting for clients at {self.url}")
        if not self._knows_ids and self._requests is not None:
            try:
                await self._requests.connect()  # says what is served, and so what ids mean
            except LmtoolError as error:
                self.say(error.message)
        await asyncio.Event().wait()

    def say(self, sentence: str) -> None:
        """Put a note among the events."""
        self._pipeline.note(sentence)

    @property
    def connections(self) -> int:
        """Connections accepted or made so far."""
        return self._proxy.connections

    async def close(self) -> None:
        """Cut all connections and end the recording."""
        before, self._before_close = self._before_close, None
        if before is not None:
            await before()
        await self._proxy.close()
        for one in self._sockets:  # where it never listened
            one.close()
        await super().close()


def short_place(sockets: Sequence[socket]) -> str:
    """Short address of these sockets: `:8080`, or the name of a Unix socket's file."""
    names = dict.fromkeys(one.getsockname() for one in sockets)
    return ",".join(dict.fromkeys(Path(name).name if isinstance(name, str) else f":{name[1]}" for name in names))


def _short(target: Target) -> str:
    if target.unix is not None:
        return Path(target.unix).name
    return f":{target.port}" if target.host in {"127.0.0.1", "localhost", "::1"} else f"{target.host}:{target.port}"
