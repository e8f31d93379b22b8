"""Why a WebSocket connection ended, in words, and in the bytes of a close frame."""

from __future__ import annotations

_BROKEN = 1006
_CODES = {
    1000: "the server closed it",
    1001: "the server is shutting down",
    _BROKEN: "it broke off",
    1009: "a request was longer than the server reads",
    1011: "the server gave it up",
    1012: "the server is restarting",
    1013: "the server has too much to do",
}
"""What close codes mean (RFC 6455, 7.4.1, and the registry of IANA)."""


def cut_reason(reason: str) -> str:
    """As much of a reason as a close frame carries: 123 bytes of UTF-8 (RFC 6455, 5.5); `?` for a lone surrogate."""
    return reason.encode(errors="replace")[:123].decode(errors="ignore")


def closing_words(closed: Exception) -> str:
    """What a client says of it; closed: a `ConnectionClosed` of `websockets`."""
    received = getattr(closed, "rcvd", None)
    code, reason = (_BROKEN, "") if received is None else (received.code, received.reason)
    return f"{_CODES.get(code, f'it was closed with code {code}')}{f' ({reason})' if reason else ''}"
