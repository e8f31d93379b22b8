"""Whose process is at the other end of a Unix socket, told to an ASGI application by the protocol that carries it."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import BaseTransport
    from collections.abc import Mapping

_EXTENSION = "lmtool.peer_user"
_CREDENTIALS = struct.Struct("3i")
"""Of `SO_PEERCRED` (unix(7)): process, user, group."""


def tell_user(scope: Mapping[str, Any], transport: BaseTransport) -> None:
    """Note in a scope which user has connected, where the system knows: over a Unix socket, on Linux."""
    connected = transport.get_extra_info("socket")
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or connected is None or connected.family != getattr(socket, "AF_UNIX", None):
        return
    _, user, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    scope["extensions"][_EXTENSION] = {"id": user}


def is_same_user(scope: Mapping[str, Any]) -> bool:
    """True if a connection is known to come from a process of the user whose process this is."""
    user = scope.get("extensions", {}).get(_EXTENSION)
    return user is not None and user["id"] == os.geteuid()
