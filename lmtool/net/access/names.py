"""Names of hosts, as `Host` and `Origin` headers spell them."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s:/?#@\[\]\\]+)(?::\d{0,5})?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def host_name(authority: str) -> str | None:
    """The name or address in `HOST:PORT`, in lower case and without brackets; None where it is malformed."""
    match = _HOST.fullmatch(authority)
    return None if match is None else match[1].strip("[]").lower().rstrip(".") or None


def origin_host(origin: str) -> str | None:
    """The host in an origin such as `https://example.org:444`; None for `null`, and where there is none."""
    scheme, separator, authority = origin.partition("://")
    return host_name(authority) if separator and _SCHEME.fullmatch(scheme) else None


def normal_origin(text: str) -> str | None:
    """An origin as browsers spell it: in lower case, without a default port or a slash; None for what is none."""
    text = text.strip().lower().rstrip("/")
    if text in {"*", "null"}:
        return text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if origin_host(text) is None or parts.netloc != text.partition("://")[2]:
        return None
    is_default = port is not None and _DEFAULT_PORTS.get(parts.scheme) == port
    return text.removesuffix(f":{port}") if is_default else text


def is_address(name: str) -> bool:
    """True if a host is an IP address, which no name server can point elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def address_group(name: str) -> str:
    """The addresses that count as one client's: an IPv4 address alone, an IPv6 address with its network of 64 bits."""
    if not is_address(name):
        return name
    address = ip_address(name.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address) if address.is_loopback else str(ip_network((address, 64), strict=False))


def is_loopback(name: str) -> bool:
    """True if a host is always this machine: `localhost`, a name below it (RFC 6761), or a loopback address."""
    if is_address(name):
        return ip_address(name).is_loopback
    return name == "localhost" or name.endswith(".localhost")


def machine_names(host_name: str) -> tuple[str, ...]:
    """The names of a machine with this host name: as it is, without its domain, and in the local network's domain."""
    whole = host_name.strip().lower().rstrip(".")
    short = whole.partition(".")[0]
    return tuple(dict.fromkeys((whole, short, f"{short}.local"))) if short else ()
