"""Evergreen over gRPC: `/evergreen.v2.EvergreenService/StartSession` on a port of its own.

Bytes go in and out of the library, so that the codec and its limits are ours and no generated code is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio

from lmtool.core.errors import AccessDeniedError, ConnectError, RateLimitError, ResourceError
from lmtool.net.access.asgi import while_valid
from lmtool.net.access.caller import current_caller
from lmtool.net.access.forwarding import ConflictingAddressesError, client_address
from lmtool.net.access.policy import Refusal, find_refusal
from lmtool.net.telemetry.trace_context import current_trace, read_trace
from lmtool.protocol.evergreen.codec import encode
from lmtool.protocol.evergreen.descriptors import METHOD, PACKAGE, SERVICE
from lmtool.protocol.evergreen.status import Abort, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.net.access.asgi import Note
    from lmtool.net.access.policy import AccessPolicy, Reason
    from lmtool.protocol.evergreen.connection import Connection
    from lmtool.protocol.evergreen.messages import SessionMessage
    from lmtool.protocol.evergreen.server import EvergreenServer

KeyAndChain: TypeAlias = tuple[bytes, bytes]
"""A private key and its certificate's chain, PEM."""

_STATUS: dict[Reason, Status] = {
    "invalid_api_key": Status.UNAUTHENTICATED,
    "foreign_origin": Status.PERMISSION_DENIED,
    "foreign_host": Status.PERMISSION_DENIED,
    "forwarded": Status.PERMISSION_DENIED,
    "invalid_headers": Status.INVALID_ARGUMENT,
    "rate_limit_exceeded": Status.RESOURCE_EXHAUSTED,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_GONE = (grpc.aio.BaseError, grpc.aio.UsageError, RuntimeError)
"""What the library raises for a write to a client that has left."""
_KEEPALIVE_MS = 60_000
_HANDSHAKE_MS = 10_000
"""Longest time until a new connection has sent its TLS hello and its HTTP/2 preface."""
_IDLE_MS = 60_000
"""Longest time that a connection stays open without a call; a client's library connects again by itself."""
_SLACK = 1024 * 1024
"""What the library may receive above our own limit on a message, so that ours refuses it, by name."""


class GrpcServer:
    """A port that opens sessions of an `EvergreenServer`."""

    def __init__(self, sessions: EvergreenServer, policy: AccessPolicy, note: Note = lambda *_: None) -> None:
        """note: called with each call that the policy refuses, `grpc`, and the client's address."""
        self._sessions = sessions
        self._policy = policy
        self._note = note
        config = sessions.plugs.config
        limit = config.limits.max_message_bytes + _SLACK
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                # 0: pings are not counted. The library's refusal of many takes time quadratic in their number.
                ("grpc.http2.max_ping_strikes", 0),
                # More than the sessions of an address: those above are refused by that limit's name, not queued.
                ("grpc.max_concurrent_streams", 2 * config.max_client_sessions),
            ],
            maximum_concurrent_rpcs=2 * config.max_sessions,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._session)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", {METHOD: handler}),)
        )

    async def start(self, host: str, port: int, key_and_chain: Callable[[], KeyAndChain] | None = None) -> int:
        """Listen there, 0 for a free port; the port. Raises `ResourceError`.

        key_and_chain: PEM, for TLS; asked for at each handshake, so that a renewed certificate is used.
        """
        address = f"{f'[{host}]' if ':' in host else host}:{port}"
        try:
            if key_and_chain is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, _credentials(key_and_chain))
        except RuntimeError:
            bound = 0
        if not bound:
            hint = f"other port:     --grpc-port {port % 65535 + 1}     (0 picks a free one)"
            raise ResourceError(f"cannot listen on {host}:{port} for gRPC: the port is in use, or not allowed", hint)
        await self._server.start()
        return int(bound)

    async def stop(self) -> None:
        """Close the port, and calls that are still open."""
        await self._server.stop(None)

    async def _session(self, _requests: Any, context: Any) -> None:  # noqa: ANN401  # the library is untyped
        headers = [(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
        shown, peer = _as_admitted(headers), _address(context.peer())
        refusal: Refusal | None = None
        try:
            refusal = find_refusal(self._policy, shown)
            address = client_address(self._policy.proxies, peer, shown) or peer
        except ConflictingAddressesError:
            refusal, address = Refusal("invalid_headers", "two headers name different clients", "send neither"), peer
        with contextlib.ExitStack() as stack:
            stack.callback(current_trace.reset, current_trace.set(read_trace(headers)))
            if refusal is None:
                refusal = self._count(stack, shown, address)
            if refusal is not None:
                self._note(refusal, "grpc", address)
                abort: Abort | None = Abort(_STATUS[refusal.reason], refusal.message, refusal.hint)
            else:
                abort = await self._sessions.refusal(address)
            if abort is None:
                agent, caller = dict(headers).get("user-agent", ""), current_caller.get()
                try:
                    async with contextlib.nullcontext() if caller is None else while_valid(caller):
                        abort = await self._converse(context, address, agent)
                except AccessDeniedError as error:
                    abort = Abort(Status.UNAUTHENTICATED, error.sentence)
        if abort is not None:
            wait = () if refusal is None or not refusal.retry_after else (("retry-after", str(refusal.retry_after)),)
            await context.abort(_CODES[abort.status], abort.sentence, trailing_metadata=wait)

    def _count(self, stack: contextlib.ExitStack, headers: list[tuple[str, str]], address: str) -> Refusal | None:
        """Count the call until the stack is left, as one of its key; why it is not begun, or None."""
        callers = self._policy.callers
        caller = None if callers is None else callers.showing(headers, address)
        if caller is None:
            return None
        try:
            stack.enter_context(caller.connected())
        except RateLimitError as error:
            return Refusal.of_limit(error, caller.name)
        stack.callback(current_caller.reset, current_caller.set(caller))
        return None

    async def _converse(self, context: Any, address: str, agent: str) -> Abort | None:  # noqa: ANN401  # the library is untyped
        """Run a session; why it was aborted, None for one that ended in order, or whose client has left."""
        reason: Abort | None = None
        async with self._sessions.session(address, agent) as connection:
            calls = _Calls(self._sessions, connection, context)
            try:
                await connection.run(calls.receive, calls.send)
            except Abort as abort:
                reason = abort
            except ConnectError:
                reason = None
        with self._sessions.lingering(address):
            await calls.written()
        return reason


class _Calls:
    """A session's messages over one call."""

    def __init__(self, sessions: EvergreenServer, connection: Connection, context: Any) -> None:  # noqa: ANN401
        self._sessions = sessions
        self._connection = connection
        self._context = context
        self._writing: asyncio.Future[None] | None = None

    async def written(self) -> None:
        """Return when the library has sent what it was given: it fails if a call is to end before that.

        Of the session nothing is kept meanwhile; where the client reads nothing, the call lasts as long as its
        connection.
        """
        if self._writing is not None:
            with contextlib.suppress(*_GONE):
                await self._writing

    async def receive(self) -> SessionMessage | None:
        frame = await self._context.read()
        if frame is grpc.aio.EOF:
            return None
        return await self._sessions.read(self._connection, frame)

    async def send(self, message: SessionMessage | None) -> None:
        if message is None:
            return
        self._sessions.observe(self._connection, "<", message)
        self._writing = asyncio.ensure_future(self._context.write(encode(message)))
        self._writing.add_done_callback(_take_note)  # a call that is cancelled waits for it no more
        try:
            await asyncio.shield(self._writing)
        except _GONE as error:
            raise ConnectError("the client has left") from error


def _take_note(writing: asyncio.Future[None]) -> None:
    """A client that has left in the middle of a message is nothing that the event loop has to tell."""
    if not writing.cancelled():
        writing.exception()


def _credentials(key_and_chain: Callable[[], KeyAndChain]) -> Any:  # noqa: ANN401  # the library is untyped
    """The library's credentials, which follow what they are made of."""
    first, used = grpc.ssl_server_certificate_configuration([key_and_chain()]), key_and_chain()

    def fetch() -> Any:  # noqa: ANN401
        nonlocal used
        now = key_and_chain()
        if now == used:
            return None
        used = now
        return grpc.ssl_server_certificate_configuration([now])

    return grpc.dynamic_ssl_server_credentials(first, fetch)


def _as_admitted(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Metadata as the policy of every wire looks at it.

    The library (grpcio 1.85) tells neither a handler nor an interceptor which authority was asked for, so that names of
    the server are not checked here. What they protect from, a page whose name was pointed here, comes from a browser:
    it says so by `Origin`, or by `Sec-Fetch-Site`, and over gRPC only a page that is allowed by `Origin` is let in.
    """
    named = [(name, "cross-site" if name == "sec-fetch-site" else value) for name, value in headers]
    return [*((name, value) for name, value in named if name not in {"host", ":authority"}), ("host", "localhost")]


def _address(peer: str) -> str:
    """The address in `ipv4:127.0.0.1:50000`, or in `ipv6:%5B::1%5D:50000`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
