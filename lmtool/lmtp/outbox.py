"""What a connection has to send: entries of TOKEN and MSG, gathered into frames when they can leave."""

from __future__ import annotations

from collections import deque

from lmtool.lmtp import codec


class Outbox:
    """Entries in the order of their making.

    Neighbouring TOKEN entries leave as one frame, so a step is one frame for a reader that keeps up, and several steps
    are one frame for a reader that does not. A frame has at most `max_frame_bytes`, unless a single entry has more.
    """

    __slots__ = ("_entries", "_max_frame_bytes", "waiting_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self._entries: deque[tuple[str, bytes]] = deque()
        self._max_frame_bytes = max_frame_bytes
        self.waiting_bytes = 0
        """Bytes of the entries that have not left."""

    def put(self, command: str, entry: bytes) -> None:
        """Append one entry, which is JSON."""
        self._entries.append((command, entry))
        self.waiting_bytes += len(entry)

    def next_frame(self) -> str | None:
        """Take the next frame out; None when there is nothing to send."""
        if not self._entries:
            return None
        command, entry = self._take()
        entries, size = [entry], len(entry)
        while command == "TOKEN" and self._entries and self._entries[0][0] == "TOKEN":
            size += len(self._entries[0][1]) + 1
            if size > self._max_frame_bytes:
                break
            entries.append(self._take()[1])
        return codec.join(command, entries)

    def _take(self) -> tuple[str, bytes]:
        command, entry = self._entries.popleft()
        self.waiting_bytes -= len(entry)
        return command, entry
