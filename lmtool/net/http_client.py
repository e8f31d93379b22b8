"""The one HTTP client of the project: aiohttp, set up so that requests and answers pass through it unchanged."""

from __future__ import annotations

import io
import os
import ssl
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_HEADER = 2**16
"""Bytes of one header of an answer, and of its status line."""
_KEEP_ALIVE = 60.0
"""Seconds for which a connection without a request stays open."""
_LARGE = 2**20
"""Bytes of a body above which aiohttp wants to read it piece by piece."""
_SILENT = frozenset({"accept", "accept-encoding", "content-type", "user-agent"})
"""Headers that aiohttp would add on its own."""


def open_client(
    *,
    headers: Mapping[str, str] | None = None,
    connect_timeout: float = 10.0,
    read_timeout: float | None = None,
    decompress: bool = False,
) -> aiohttp.ClientSession:
    """A client with connections of its own; call it in a running event loop, and close it.

    It adds no headers beside `Host` and those that frame a body, keeps no cookies, asks no proxy of the environment,
    and opens connections without a limit. headers: of every request. connect_timeout: seconds for a connection.
    read_timeout: seconds without a byte; None: any time. decompress: whether bodies that come compressed are decoded.
    """
    return aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=read_timeout),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_SILENT,
        auto_decompress=decompress,
        max_line_size=LARGEST_HEADER,
        max_field_size=LARGEST_HEADER,
    )


def as_body(data: bytes) -> bytes | io.BytesIO | None:
    """A body of any size as aiohttp takes it; None for an empty one."""
    return io.BytesIO(data) if len(data) > _LARGE else data or None


def verbatim(url: str) -> URL:
    """A URL that is requested as it is written."""
    return URL(url, encoded=True)


def reason_of(error: aiohttp.ClientError | TimeoutError) -> str:
    """Why a request failed, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientSSLError):
        cause = getattr(error, "certificate_error", None)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        return "it does not speak TLS"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off"
    return str(error) or type(error).__name__
