"""Which web pages may open a socket here: a browser lets every page try, and tells only the page's origin."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection


def is_allowed(origin: str | None, host: str | None, allowed: Collection[str]) -> bool:
    """Whether a handshake with these `Origin` and `Host` headers may go on.

    Programs send no `Origin`. A page may connect when it comes from this machine, or from the address it connects to,
    or is allowed by name. An equal host *name* proves nothing: a foreign page can make its own name point here (DNS
    rebinding), so only an equal IP address counts. `null`, the origin of files and sandboxed frames, is foreign.
    """
    if origin is None or "*" in allowed or origin in allowed:
        return True
    page = _host_name(origin)
    if page is None:
        return False
    return _is_loopback(page) or (_is_address(page) and page == _host_name(f"//{host}"))


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
