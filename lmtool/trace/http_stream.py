"""HTTP/1.1 parser for one direction of a connection (RFC 9112); keeps the exact bytes and buffers only heads."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_HEAD = 2**16
"""Bytes; a longer head is passed on unparsed, like everything after it."""
_LONGEST_LINE = 8192
MOST_FIELDS = 256
"""Largest number of header lines of a message, and of its trailer lines."""
_MOST_FRAMING, _FRAMING_PER_CHUNK = 2**14, 16
"""Bytes of chunk extensions and trailers: a fixed amount, and more for each chunk and for twice its content."""
_ENCODINGS = (b"gzip", b"x-gzip", b"deflate", b"identity")
"""Content codings that `connection_tap` can decode."""
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/1\.[01]")
_FRAMING = ("content-length", "transfer-encoding")
_LENGTH = re.compile(r"[0-9]{1,18}")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class Head:
    """Start line and headers of a message."""

    raw: bytes
    """Bytes as sent, with the blank line."""
    start: tuple[str, str, str]
    """Method, path, version of a request; version, status, reason of a response."""
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""

    def get(self, name: str) -> str:
        """Value of a header, with all values of the name joined; empty if there is none."""
        return ", ".join(value for key, value in self.headers if key == name)


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a message after its head."""

    raw: bytes
    """Bytes as sent."""
    body: bytes
    """The content in these bytes: without chunk sizes and trailers."""


@dataclass(frozen=True, slots=True)
class Trailer(Data):
    """A complete trailer, which no proxy must pass on (RFC 9110, 6.5.1): a server might take it for a header."""


@dataclass(frozen=True, slots=True)
class Last:
    """The message is complete."""

    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Opaque:
    """Bytes that are not HTTP: after an upgrade, or after a syntax error."""

    raw: bytes


Part: TypeAlias = Head | Data | Last | Opaque


class HttpStream:
    """Incremental parser: bytes in, parts out; the `raw` of all parts joined gives the bytes back.

    Buffers only incomplete heads.
    """

    def __init__(self, *, responses: bool) -> None:
        self._responses = responses
        self._head = bytearray()
        self._line = bytearray()
        self._left = 0
        self._framing = 0
        self._state: Callable[[bytes, list[Part]], bytes] = self._in_head
        self.methods: deque[str] = deque()
        """For responses: methods of the unanswered requests; the caller appends them."""
        self.broken = ""
        """Reason parsing stopped; empty while it continues."""

    def feed(self, data: bytes) -> list[Part]:
        """Parts that these bytes complete."""
        parts: list[Part] = []
        while data:
            data = self._state(data, parts)
        return parts

    def end(self) -> list[Part]:
        """Parts at the end of the connection: a body without a length is complete."""
        if self._state == self._until_end:
            return [Last()]
        pending, self._head = bytes(self._head or (self._line if self._state == self._trailers else b"")), bytearray()
        return [Opaque(pending)] if pending else []

    @property
    def between(self) -> bool:
        """True if the last message is complete and no other has started."""
        return self._state == self._in_head and not self._head

    def resume(self) -> None:
        """Parse again: the upgrade was refused."""
        self._state = self._in_head

    def _in_head(self, data: bytes, parts: list[Part]) -> bytes:
        searched = max(0, len(self._head) - 3)
        pending, self._head = bytes(self._head) + data, bytearray()
        if pending.startswith(b"\r\n"):  # some clients send a line too many after a body
            parts.append(Data(pending[:2], b""))
            return pending[2:]
        at = pending.find(b"\r\n\r\n", searched)
        if at < 0 and len(pending) <= LONGEST_HEAD:
            self._head += pending
            return b""
        head = None if at < 0 else _parse_head(pending[: at + 4])
        if head is None:
            return self._give_up("no HTTP/1.1 message", pending, parts)
        parts.append(head)
        self._begin_body(head, parts)
        return pending[at + 4 :]

    def _begin_body(self, head: Head, parts: list[Part]) -> None:
        if self._responses and not self._has_body(head):
            return self._none(head, parts)
        length, self._framing = head.get("content-length"), 0
        if "chunked" in head.get("transfer-encoding").lower():
            self._state = self._chunk_size
        elif length.isascii() and length.isdigit() and len(length) < 19 and int(length):
            self._left, self._state = int(length), self._length
        elif length or not self._responses:
            self._none(head, parts)
        else:
            self._state = self._until_end
        return None

    def _has_body(self, head: Head) -> bool:
        status = head.start[1]
        method = "" if status.startswith("1") and status != "101" else self.methods.popleft() if self.methods else ""
        return not (status.startswith("1") or status in ("204", "304") or method == "HEAD")

    def _none(self, head: Head, parts: list[Part]) -> None:
        """End a message without a body; an upgrade may follow."""
        upgrades = head.start[1] == "101" if self._responses else is_websocket_handshake(head)
        self._state = self._opaque if upgrades else self._in_head
        parts.append(Last())

    def _length(self, data: bytes, parts: list[Part]) -> bytes:
        rest = self._chunk(data, parts)
        if not self._left:
            self._finish(parts)
        return rest

    def _chunk_size(self, data: bytes, parts: list[Part]) -> bytes:
        line, rest = self._take_line(data, parts)
        if line is None:
            return rest
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            self._left = -1
        if self._left < 0:
            return self._give_up("a chunk without a size", rest, parts)
        self._state = self._chunk if self._left else self._trailers
        return rest

    def _chunk(self, data: bytes, parts: list[Part]) -> bytes:
        piece, rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self._framing = max(0, self._framing - 2 * len(piece) - _FRAMING_PER_CHUNK)
        parts.append(Data(piece, piece))
        if not self._left:
            self._state = self._chunk_end
        return rest

    def _chunk_end(self, data: bytes, parts: list[Part]) -> bytes:
        line, rest = self._take_line(data, parts)
        if line is not None:
            self._state = self._chunk_size
        return rest

    def _trailers(self, data: bytes, parts: list[Part]) -> bytes:
        line, rest = self._take_line(data, parts, Trailer)
        if line is not None and not line.strip():
            self._finish(parts)
        return rest

    def _take_line(self, data: bytes, parts: list[Part], kind: type[Data] = Data) -> tuple[bytes | None, bytes]:
        """A complete line (None while it is incomplete) and the bytes after it.

        Bytes are passed on at once, those of a trailer when it is complete.
        """
        end = data.find(b"\n") + 1 or len(data)
        self._line += data[:end]
        self._framing += end
        whole = self._line.endswith(b"\n")
        if kind is Data:
            parts.append(Data(data[:end], b""))
        elif whole:
            parts.append((kind if self._line.strip() else Data)(bytes(self._line), b""))
        if len(self._line) > _LONGEST_LINE or self._framing > _MOST_FRAMING:
            held = b"" if kind is Data or whole else bytes(self._line)
            self._line.clear()
            return None, self._give_up("a line that is too long", held + data[end:], parts)
        if not self._line.endswith(b"\n"):
            return None, b""
        line = bytes(self._line)
        self._line.clear()
        return line, data[end:]

    def _finish(self, parts: list[Part]) -> None:
        self._state = self._in_head
        parts.append(Last())

    def _until_end(self, data: bytes, parts: list[Part]) -> bytes:
        parts.append(Data(data, data))
        return b""

    def _opaque(self, data: bytes, parts: list[Part]) -> bytes:
        parts.append(Opaque(data))
        return b""

    def _give_up(self, reason: str, data: bytes, parts: list[Part]) -> bytes:
        self.broken = reason
        self._state = self._opaque
        if data:
            parts.append(Opaque(data))
        return b""


def _parse_head(raw: bytes) -> Head | None:
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or "HTTP/1." not in first or len(lines) > MOST_FIELDS:
        return None
    pairs = [line.partition(":") for line in lines]
    headers = tuple((name.strip().lower(), value.strip(" \t")) for name, _, value in pairs)
    return Head(raw, (words[0], words[1], words[2] if len(words) > 2 else ""), headers)


def is_websocket_handshake(head: Head) -> bool:
    """True if a request is a WebSocket handshake."""
    return head.get("upgrade").lower() == "websocket" and "upgrade" in head.get("connection").lower()


def is_session(head: Head) -> bool:
    """True if a WebSocket handshake is for Evergreen: its path ends in `/evergreen`, as on our servers."""
    return is_websocket_handshake(head) and head.start[1].partition("?")[0].endswith("/evergreen")


def is_unambiguous(head: Head) -> bool:
    """True if every server parses a request's head as we do and finds the same end of its body.

    RFC 9112, 2.2, 5.1 and 6.1: at most one length, in digits, or `chunked` alone.
    """
    first, *fields = head.raw[:-4].split(b"\r\n")
    if not _REQUEST_LINE.fullmatch(first) or not all(map(_FIELD.fullmatch, fields)):
        return False
    framing = [(name, value.lower()) for name, value in head.headers if name in _FRAMING]
    if len(framing) != 1:
        return not framing
    name, value = framing[0]
    return value == "chunked" if name == "transfer-encoding" else _LENGTH.fullmatch(value) is not None


def has_no_body(head: Head) -> bool:
    """True if neither a body nor another protocol follows a request's head."""
    return not any(head.get(name) for name in ("content-length", "transfer-encoding", "upgrade"))


def redirect_head(head: Head, host: str | None, base: str, client: str | None = None) -> bytes:
    """Request head as the server behind a proxy expects it, without the proxy's own headers.

    host: the server's `Host`; None keeps the client's. base: path of the server's URL, put in front of paths that lack
    it. client: client address, which replaces what the request claims. Only content codings that a recording can decode
    stay.
    """
    method, path, version = head.start
    lines = head.raw[:-4].split(b"\r\n")
    if (there := path_below(path, base)) != path:
        lines[0] = f"{method} {there} {version}".encode("latin-1")
    new = [_readable_encodings(line) for line in lines if not line.lower().startswith(b"proxy-authorization:")]
    if host is not None:
        new = [b"Host: " + host.encode("latin-1") if line[:5].lower() == b"host:" else line for line in new]
    if client is not None:
        new = [line for line in new if not line.lower().startswith((b"forwarded:", b"x-forwarded-for:"))]
        new.append(f"X-Forwarded-For: {client}".encode("latin-1"))
    return b"\r\n".join(new) + b"\r\n\r\n"


def path_below(path: str, base: str) -> str:
    """A path below a base; it may already begin with the base or its last segments: `/v1/chat` below `/api/v1`."""
    bare = base.rstrip("/")
    if not bare or not path.startswith("/"):
        return path
    if path.partition("?")[0] == bare or path.startswith((f"{bare}/", f"{bare}?")):
        return path
    names = bare.split("/")[1:]
    for first in range(1, len(names)):
        end = "/" + "/".join(names[first:])
        if path.partition("?")[0] == end or path.startswith((f"{end}/", f"{end}?")):
            return bare + path[len(end) :]
    return bare if path == "/" else bare + path


def _readable_encodings(line: bytes) -> bytes:
    """A header line; `Accept-Encoding` without the codings that a recording cannot decode."""
    name, colon, value = line.partition(b":")
    if name.lower() != b"accept-encoding":
        return line
    listed = [one.strip() for one in value.split(b",")]
    known = [one for one in listed if one.partition(b";")[0].strip().lower() in _ENCODINGS]
    return line if known == listed else name + colon + b" " + (b", ".join(known) or b"identity")
