"""How a client reaches a server: a WebSocket, or a stream of gRPC. The reason of an abort comes over both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from lmtool.access.outgoing import DENIED, as_headers, denied
from lmtool.errors import ConnectError, ResourceError, TimeLimitError
from lmtool.evergreen import codec
from lmtool.evergreen.status import Abort, Status

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from lmtool.evergreen.messages import SessionMessage

PATH = "/evergreen"
GRPC_METHOD = "/evergreen.v2.EvergreenService/StartSession"
INSTALL_GRPC = "install it:  pip install 'lmtool[grpc]'"
ABORTED = 4400
"""Close code of a session that was aborted; the reason is `STATUS_NAME: text`."""
_REFUSED = 503
"""HTTP status of a server that opens no session now; its body says why, as a close reason does."""
_OPEN_SECONDS = 10.0
_MAX_RECEIVED_BYTES = 64 * 1024 * 1024


class ClientTransport(Protocol):
    """An open way to a server. `receive` and `send` are those of `Connection.run`."""

    async def receive(self) -> SessionMessage | None:
        """The next message; None once the server has ended in order. Raises `Abort` or `ConnectError`."""

    async def send(self, message: SessionMessage | None) -> None:
        """Send a message, None for the end of this side. Raises `ConnectError`."""

    async def close(self) -> None:
        """Give everything back."""


async def dial(url: str, authorization: str | None = None, *, loopback: bool = False) -> ClientTransport:
    """Connect by WebSocket. url: `ws://` or `wss://`, without credentials. loopback: no proxy is asked.

    Raises `ConnectError`, `AccessDeniedError` or `TimeLimitError`.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

    parts = urlsplit(url)
    url = urlunsplit(parts._replace(path=PATH)) if parts.path in ("", "/") else url
    try:
        connection = await connect(
            url,
            additional_headers=as_headers(authorization),
            compression=None,
            max_size=_MAX_RECEIVED_BYTES,
            open_timeout=_OPEN_SECONDS,
            proxy=None if loopback else True,
        )
    except InvalidStatus as refused:
        status, body = (
            refused.response.status_code,
            bytes(refused.response.body or b"")[:300].decode("utf-8", "replace"),
        )
        if status in DENIED:
            raise denied(url, status, body, key_sent=authorization is not None) from None
        if status == _REFUSED and ": " in body:
            raise aborted(body) from None
        raise ConnectError(f"no Evergreen server at {url} (HTTP status {status})") from None
    except TimeoutError:
        raise TimeLimitError(f"no connection to {url} within {_OPEN_SECONDS:g} s") from None
    except (InvalidHandshake, InvalidURI, OSError) as error:
        raise ConnectError(f"no Evergreen server at {url} ({error})") from None
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
            return aborted(closed.rcvd.reason)
        return ConnectError(f"the connection to {self._url} is lost ({closed})")

    async def close(self) -> None:
        """Close it."""
        await self._connection.close()


def aborted(reason: str) -> Abort:
    """The abort that a close reason `STATUS_NAME: text` says."""
    name, _, text = reason.partition(": ")
    return Abort(Status[name] if name in Status.__members__ else Status.INTERNAL, text or reason)


async def dial_grpc(address: str, authorization: str | None = None) -> ClientTransport:
    """Connect to `HOST:PORT` by gRPC, without TLS. Raises `ResourceError` without the package, or `ConnectError`."""
    try:
        import grpc
    except ImportError:
        raise ResourceError("gRPC needs the package grpcio", INSTALL_GRPC) from None
    options = [("grpc.max_receive_message_length", _MAX_RECEIVED_BYTES), ("grpc.max_send_message_length", -1)]
    channel = grpc.aio.insecure_channel(address, options)
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            await _ready(channel)
    except (TimeoutError, ConnectError):
        await channel.close()
        raise ConnectError(f"no gRPC server at {address}") from None
    method = channel.stream_stream(GRPC_METHOD, request_serializer=codec.encode, response_deserializer=None)
    metadata = (("authorization", authorization),) if authorization is not None else ()
    return _GrpcTransport(channel, method(metadata=metadata))


async def _ready(channel: Any) -> None:  # noqa: ANN401  # grpc has no types
    """Wait until a channel is connected. Raises `ConnectError` once it cannot be."""
    import grpc

    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectError("refused")
        await channel.wait_for_state_change(state)


class _GrpcTransport:
    def __init__(self, channel: Any, call: Any) -> None:  # noqa: ANN401  # grpc has no types
        self._channel = channel
        self._call = call

    async def receive(self) -> SessionMessage | None:
        import grpc

        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._reason(error) from None
        return None if data is grpc.aio.EOF else codec.decode(data)

    async def send(self, message: SessionMessage | None) -> None:
        import grpc

        if self._call.done():  # a write now would overwrite the reason of the end, which the reader has
            await asyncio.Event().wait()
        try:
            if message is None:
                await self._call.done_writing()
            else:
                await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await asyncio.Event().wait()

    def _reason(self, error: Any) -> Abort | ConnectError:  # noqa: ANN401  # grpc has no types
        code, text = error.code().value[0], error.details() or "the session has ended"
        if error.code().name == "UNAVAILABLE" or code not in set(Status):
            return ConnectError(f"the connection is lost ({text})")
        return Abort(Status(code), text)

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()
