"""The door (`lmtool.access`) of servers that read HTTP/1.1 themselves: the proxy and the mock server."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING

from lmtool.access.cors import answer_headers, preflight_headers
from lmtool.access.policy import Refusal, admit
from lmtool.http_api.refusals import refused
from lmtool.trace.http_stream import asks_for_websocket, is_bare, is_clear

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.access.policy import AccessPolicy
    from lmtool.trace.http_stream import Head

LINGER = 2.0
"""Seconds that a client has to read its last answer while it still sends."""
UNREADABLE = Refusal("invalid_headers", "this is no HTTP/1.1", "send requests as RFC 9112 has them")


def refusal(policy: AccessPolicy, head: Head, address: str) -> Refusal | None:
    """Why a request is not let in; None for one that is.

    What needs no key (`/health`, a preflight) must be the head alone: what follows would be let in with it.
    """
    if not is_clear(head):
        return UNREADABLE
    method, path = head.start[:2] if is_bare(head) else ("", "")
    decision = admit(policy, head.headers, address, method=method, path=path.partition("?")[0])
    return decision if isinstance(decision, Refusal) else None


def refusal_answer(policy: AccessPolicy, head: Head | None, why: Refusal) -> bytes:
    """The answer to a request that is not let in; its connection ends. head: None where none could be read."""
    if head is None or asks_for_websocket(head):
        status, body, kind = why.status, why.sentence.encode(), "text/plain; charset=utf-8"
    else:
        status, body = refused(head.start[1], why)
        kind = "application/json"
    headers = [] if head is None else answer_headers(policy, head.headers)
    framing = [("content-type", kind), ("content-length", str(len(body))), ("connection", "close")]
    return _head(status, [*headers, *why.headers, *framing]) + body


def preflight_answer(policy: AccessPolicy, head: Head) -> bytes:
    """The answer to a preflight that was let in."""
    return _head(HTTPStatus.NO_CONTENT, preflight_headers(policy, head.headers))


async def last_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Send the last bytes of a connection, and drop what comes for a moment: or an unread body would reset it."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER):
            writer.write(answer)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(2**16):
                pass


def _head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")
