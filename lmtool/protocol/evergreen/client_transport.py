"""How a client reaches a server: a WebSocket, or a stream of gRPC. The reason of an abort comes over both."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from lmtool.core.errors import ConnectError, FileError, ResourceError, TimeLimitError
from lmtool.net.access.outgoing import DENIED, as_headers, denied, misses_path, no_server, reason_of
from lmtool.net.unix_sockets import open_websocket
from lmtool.net.websocket_closing import closing_words
from lmtool.protocol.evergreen import codec
from lmtool.protocol.evergreen.descriptors import METHOD, PACKAGE, SERVICE
from lmtool.protocol.evergreen.status import ABORTED, Abort, Status, abort_from, close_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.asyncio.client import ClientConnection

    from lmtool.protocol.evergreen.messages import SessionMessage

PATH = "/evergreen"
INSTALL_GRPC = "install it:  pip install 'lmtool[grpc]'"
_ABOVE_LIMIT = 429
"""HTTP status of a handshake that is above a limit of the client's key or address; its body says which."""
_REFUSED = 503
"""HTTP status of a server that opens no session now; its body says why, as a close reason does."""
_OPEN_SECONDS = 10.0
_MAX_RECEIVED_BYTES = 64 * 1024 * 1024
_WAITING_MESSAGES = 16
"""Received over gRPC and not yet taken, until the server has to wait."""


class ClientTransport(Protocol):
    """An open way to a server. `receive` and `send` are those of `Connection.run`."""

    async def receive(self) -> SessionMessage | None:
        """The next message; None once the server has ended in order. Raises `Abort` or `ConnectError`."""

    async def send(self, message: SessionMessage | None) -> None:
        """Send a message, None for the end of this side. Raises `ConnectError`."""

    async def close(self, failure: Abort | None = None) -> None:
        """Give everything back. failure: why the session was aborted, for the server."""


async def dial(url: str, authorization: str | None = None, *, loopback: bool = False) -> ClientTransport:
    """Connect by WebSocket. url: `ws://`, `wss://` or `unix:PATH`, without credentials. loopback: no proxy is asked.

    Raises `ConnectError`, `AccessDeniedError` or `TimeLimitError`.
    """
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

    parts = urlsplit(url)
    url = urlunsplit(parts._replace(path=PATH)) if parts.path in ("", "/") and parts.netloc else url
    try:
        connection = await open_websocket(
            url,
            route=PATH,
            additional_headers=as_headers(authorization),
            compression=None,
            max_size=_MAX_RECEIVED_BYTES,
            open_timeout=_OPEN_SECONDS,
            proxy=None if loopback else True,
        )
    except InvalidStatus as refused:
        status = refused.response.status_code
        body = bytes(refused.response.body or b"")[:300].decode("utf-8", "replace")
        if status in DENIED and not misses_path(url, status, body, PATH):
            raise denied(url, status, body, key_sent=authorization is not None) from None
        if status == _ABOVE_LIMIT:
            raise Abort(Status.RESOURCE_EXHAUSTED, body) from None
        if status == _REFUSED and ": " in body:
            raise abort_from(body) from None
        raise no_server(url, refused, "Evergreen", PATH) from None
    except TimeoutError:
        raise TimeLimitError(f"no connection to {url} within {_OPEN_SECONDS:g} s") from None
    except (InvalidHandshake, InvalidURI, OSError) as error:
        raise no_server(url, error, "Evergreen", PATH) from None
    return _SocketTransport(connection, url)


class _SocketTransport:
    """Protobuf in binary frames. A WebSocket has no half-close: this side's end closes it."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url
        self._ended = False

    async def receive(self) -> SessionMessage | None:
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

        try:
            frame = await self._connection.recv()
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as closed:
            raise self._lost(closed) from None
        return codec.decode(frame)

    async def send(self, message: SessionMessage | None) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            if message is None:
                await self._connection.close()
            else:
                await self._connection.send(codec.encode(message))
        except ConnectionClosed as closed:
            if closed.rcvd is None or closed.rcvd.code != ABORTED:
                raise self._lost(closed) from None
            await asyncio.Event().wait()  # the reader has the reason, and ends the session with it

    def _lost(self, closed: Any) -> Abort | ConnectError:  # noqa: ANN401  # websockets' exception, imported where used
        if closed.rcvd is not None and closed.rcvd.code == ABORTED:
            return abort_from(closed.rcvd.reason)
        return ConnectError(f"the connection to {self._url} is lost: {closing_words(closed)}")

    async def close(self, failure: Abort | None = None) -> None:
        """Close it, with the reason of an abort."""
        if failure is None:
            await self._connection.close()
        else:
            await self._connection.close(ABORTED, close_reason(failure))


async def dial_grpc(address: str, authorization: str | None = None, *, tls: bool = False) -> ClientTransport:
    """Connect to `HOST:PORT` by gRPC. Raises `ResourceError` without the package, or `ConnectError`.

    tls: the server's certificate is checked against those in the file that gRPC's own variable,
    GRPC_DEFAULT_SSL_ROOTS_FILE_PATH, or else SSL_CERT_FILE names, or against the roots that come with gRPC.
    """
    try:
        import grpc
    except ImportError:
        raise ResourceError("gRPC needs the package grpcio", INSTALL_GRPC) from None
    options = [("grpc.max_receive_message_length", _MAX_RECEIVED_BYTES), ("grpc.max_send_message_length", -1)]
    if tls:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(_roots()), options)
    else:
        channel = grpc.insecure_channel(address, options)
    if not await asyncio.to_thread(_connects, channel):
        channel.close()
        raise await _unreachable(address, tls=tls)
    return _GrpcTransport(channel, () if authorization is None else (("authorization", authorization),))


def _roots() -> bytes | None:
    """The certificates that SSL_CERT_FILE names; None for those that gRPC finds itself. Raises `FileError`.

    gRPC's own variable is the narrower one, so it comes first.
    """
    path = os.environ.get("SSL_CERT_FILE")
    if not path or os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {reason_of(error)}", "check SSL_CERT_FILE") from None


def _connects(channel: Any) -> bool:  # noqa: ANN401  # grpc is untyped
    """True if a channel reaches its server at the first attempt; the library would try for ever."""
    import grpc

    outcome: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def look(state: Any) -> None:  # noqa: ANN401  # as above
        if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            outcome.put(state is grpc.ChannelConnectivity.READY)

    channel.subscribe(look, try_to_connect=True)
    try:
        return outcome.get(timeout=_OPEN_SECONDS)
    except queue.Empty:
        return False
    finally:
        channel.unsubscribe(look)


async def _unreachable(address: str, *, tls: bool) -> ConnectError:
    """Why there is no server of gRPC; the library does not tell."""
    parts = urlsplit(f"//{address}")
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or (443 if tls else 80))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or f"no answer within {_OPEN_SECONDS:g} s"
        return ConnectError(f"no gRPC server at {address} ({reason})", "start one:  lmtool serve --grpc-port PORT")
    writer.close()
    if tls:
        hint = f"write grpc://{address}, or name its certificate:  SSL_CERT_FILE=CERTIFICATE.pem in the environment"
        return ConnectError(f"what listens at {address} does not speak gRPC with TLS and a trusted certificate", hint)
    hint = f"give the port that `lmtool serve --grpc-port` shows, or write grpcs://{address}"
    return ConnectError(f"what listens at {address} does not speak gRPC without TLS", hint)


class _GrpcTransport:
    """A call of the library's threaded interface: its asyncio one loses the reason of an abort that meets a write."""

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...]) -> None:  # noqa: ANN401  # grpc is untyped
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._requests: queue.SimpleQueue[tuple[bytes | None, asyncio.Future[None]]] = queue.SimpleQueue()
        self._received: asyncio.Queue[bytes | Abort | ConnectError | None] = asyncio.Queue(_WAITING_MESSAGES)
        self._over = asyncio.Event()
        method = channel.stream_stream(f"/{PACKAGE}.{SERVICE}/{METHOD}")
        self._call = method(self._messages(), metadata=metadata)
        threading.Thread(target=self._read, name="lmtool-grpc", daemon=True).start()

    def _messages(self) -> Iterator[bytes]:
        """What the library sends, in a thread of its own; it takes the next message when the last one is sent."""
        while True:
            data, sent = self._requests.get()
            self._loop.call_soon_threadsafe(_done, sent)
            if data is None:
                return
            yield data

    def _read(self) -> None:
        import grpc

        end: Abort | ConnectError | None = None
        try:
            for data in self._call:
                self._put(data)
        except grpc.RpcError:
            end = self._reason()
        self._put(end)

    def _put(self, item: bytes | Abort | ConnectError | None) -> None:
        """Hand an item to the event loop; waits while many have not been received. The loop may be closed already."""
        putting = self._received.put(item)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except RuntimeError:
            putting.close()

    def _reason(self) -> Abort | ConnectError:
        code, text = self._call.code(), self._call.details() or "the session has ended"
        if code.name == "UNAVAILABLE" or code.value[0] not in set(Status):
            return ConnectError(f"the connection is lost ({text})")
        return Abort(Status(code.value[0]), text)

    async def receive(self) -> SessionMessage | None:
        """See `ClientTransport`."""
        item = await self._received.get()
        if isinstance(item, bytes):
            return codec.decode(item)
        self._over.set()
        if item is not None:
            raise item
        return None

    async def send(self, message: SessionMessage | None) -> None:
        """See `ClientTransport`. Once the server has ended, nothing is sent any more: the reader has the reason."""
        sent = self._loop.create_future()
        self._requests.put((None if message is None else codec.encode(message), sent))
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({sent, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()

    async def close(self, failure: Abort | None = None) -> None:  # noqa: ARG002  # gRPC's clients can only cancel
        """Cancel the call, and close the channel."""
        self._call.cancel()
        self._requests.put((None, self._loop.create_future()))
        while not self._received.empty():
            self._received.get_nowait()
        await asyncio.to_thread(self._channel.close)


def _done(sent: asyncio.Future[None]) -> None:
    if not sent.done():
        sent.set_result(None)
