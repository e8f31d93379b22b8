"""What the requests of a connection count against, where HTTP is read by the proxy and the mock server themselves."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lmtool.core.errors import RateLimitError, UnknownModelError
from lmtool.net.access.caller import current_caller
from lmtool.net.access.forwarding import ConflictingAddressesError, client_address
from lmtool.net.access.policy import Refusal, is_open, is_preflight
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.protocol.providers.answer_reader import AnswerReader, api_of
from lmtool.protocol.providers.body_parts import form_of
from lmtool.trace.http_stream import is_websocket_handshake

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator, Mapping

    from lmtool.net.access.caller import Caller, StreamUse
    from lmtool.net.access.policy import AccessPolicy
    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.trace.exchanges import HttpExchange
    from lmtool.trace.http_stream import Head

CONFLICTING = Refusal("invalid_headers", "Forwarded and X-Forwarded-For name different clients", "send neither")


class Admission:
    """One connection's requests, each counted from `begin` to `end` against the limits of its key and address."""

    def __init__(self, policy: AccessPolicy, writer: asyncio.StreamWriter) -> None:
        """writer: of the connection, whose other end is the client or a proxy."""
        name = writer.get_extra_info("peername")
        self._policy = policy
        self._peer: str | None = name[0] if isinstance(name, tuple) else None
        self._open = contextlib.ExitStack()
        self.caller: Caller | None = None
        """Who sends the request at hand; None where nothing is counted."""

    def begin(self, head: Head) -> Refusal | None:
        """Count a request whose key is right, a handshake for as long as its WebSocket; why it is refused, or None."""
        method, path = head.start[0], head.start[1].partition("?")[0]
        callers = self._policy.callers
        try:
            address = self.address(head)
            if callers is None or is_open(method, path) or is_preflight(method, head.headers):
                return None
            self.caller = callers.showing(head.headers, address)
            if self.caller is not None:
                self._open.enter_context(self.caller.connected(as_request=not is_websocket_handshake(head)))
        except ConflictingAddressesError:
            return CONFLICTING
        except RateLimitError as error:
            return Refusal.of_limit(error)
        return None

    def address(self, head: Head) -> str | None:
        """Where a request comes from; None for a Unix socket. Raises `ConflictingAddressesError`."""
        return client_address(self._policy.proxies, self._peer, head.headers)

    def end(self) -> None:
        """The requests that were begun are answered; harmless where none was."""
        self._open.close()
        self.caller = None

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Let what is called find the caller, as behind the door of a server of ours."""
        token = current_caller.set(self.caller)
        try:
            yield
        finally:
            current_caller.reset(token)


def check_model(caller: Caller, payload: Mapping[str, object]) -> None:
    """Raise `UnknownModelError` for a model that the key may not use, `AccessDeniedError` for a withdrawn key."""
    key, name = caller.key, payload.get("model")
    if isinstance(name, str) and not key.allows_name(name):
        raise UnknownModelError(f"model {name!r:.200} is not served here")


def count_entries(use: StreamUse, entries: Iterable[Entry]) -> None:
    """Count the tokens of LMTP entries of one stream."""
    for entry in entries:
        if "token" in entry:
            use.count(0, 1)
            use.begin()


def count_answer(use: StreamUse, exchange: HttpExchange) -> None:
    """Count the tokens that a recorded answer tells."""
    response = exchange.response
    api = api_of(exchange.request.method, exchange.request.path)
    if response is None or api is None:
        return
    reader = AnswerReader(api, form_of(response.headers.get("content-type", "")))
    events = [event for part in exchange.parts for event in reader.feed(part.data)] + reader.end()
    usage = [event for event in events if isinstance(event, TokenUsage)]
    if usage:
        use.count(usage[-1].prompt_tokens or 0, usage[-1].completion_tokens or 0)
