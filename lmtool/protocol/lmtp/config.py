"""Limits of an LMTP server: the longest frame, connections and streams at once, unsent bytes, stalls, pings."""

from __future__ import annotations

from dataclasses import dataclass

from lmtool.net.access.stall import STALL_SECONDS
from lmtool.protocol.lmtp.keepalive import PING_SECONDS
from lmtool.settings.option import option

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""Longest frame of a client that every server reads (SPEC.md, TRA-4)."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits of a server and of each of its connections."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    """Longest frame a client may send, LMQL's own limit; above it that connection is closed with code 1009."""
    max_connections: int = option(1024, "Connections open at once.", "Connections", metavar="N", minimum=1)
    """One more is refused with status 503."""
    max_streams: int = 1024
    """Streams of one connection at once, and likewise its unanswered MODEL_INFO requests."""
    max_buffers: int = 256
    """Buffers of one connection, those that have expired too."""
    max_buffer_bytes: int = 4 * 1024 * 1024
    """Bytes of all buffers of one connection together, at `buffers.ID_BYTES` an id."""
    high_water_bytes: int = 256 * 1024
    """Unsent answers above this pause their client's streams and the reading of its requests."""
    max_sent_frame_bytes: int = 1024 * 1024
    """Tokens of several steps share a frame up to this size, when the client is slow to read."""
    stall_limit: float = option(
        STALL_SECONDS,
        "Seconds for which a client may take nothing; 0: any number.",
        "Connections",
        metavar="SECONDS",
        minimum=0,
    )
    """Over every protocol of a server. Its streams are paused meanwhile; then its connection is cut."""
    ping_interval: float = option(
        PING_SECONDS, "Seconds between pings; three unanswered: gone.", "Connections", metavar="SECONDS", minimum=0.01
    )
    """To a client that knows the extensions, which has at most four of these to show that it lives. Others get one a
    minute, and five of them: LMQL's client answers none while it computes a mask."""
