"""Where a request comes from: its peer, or the client that a trusted proxy names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import UsageError
from lmtool.net.access.credentials import values
from lmtool.net.access.names import host_name, is_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.net.access.credentials import Headers

    Network: TypeAlias = IPv4Network | IPv6Network

UNKNOWN = "unknown"
"""The address of a client whose proxy does not tell it."""
MOST_PROXIES = 32
"""Addresses of one request that are looked at, from the nearest on."""
_FORWARDED = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"})
_FOR = re.compile(r"(?:^|;)\s*for\s*=\s*(\"[^\"]*\"|[^;\"\s]+)", re.IGNORECASE)


class ConflictingAddressesError(ValueError):
    """Two headers name different clients."""


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Whose word is taken for where a request comes from."""

    networks: tuple[Network, ...] = ()
    unix: bool = False
    """True if peers on the server's Unix socket are trusted."""

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self.networks) or self.unix

    def __contains__(self, address: str | None) -> bool:
        """True if a peer is one of them. address: None for a Unix socket."""
        if address is None:
            return self.unix
        if not is_address(address):
            return False
        found = ip_address(address.partition("%")[0])
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.networks)


def parse_proxies(texts: Iterable[str]) -> TrustedProxies:
    """Proxies by address (`10.0.0.7`), network (`10.0.0.0/8`) or `unix`. Raises `UsageError`."""
    networks: list[Network] = []
    unix = False
    for text in texts:
        if text == "unix":
            unix = True
            continue
        try:
            networks.append(ip_network(text.strip("[]"), strict=False))
        except ValueError:
            raise UsageError(
                f"--trusted-proxy {text!r} is no address", "such as 127.0.0.1, 10.0.0.0/8, or unix for --unix"
            ) from None
    return TrustedProxies(tuple(networks), unix)


def is_forwarded(headers: Headers) -> bool:
    """True if a request says that a proxy has passed it on, trusted or not."""
    return any(name in _FORWARDED for name, _ in headers)


def client_address(proxies: TrustedProxies, peer: str | None, headers: Headers) -> str | None:
    """Where a request comes from; None for a Unix socket.

    Only a trusted proxy is believed, and of what it says only what proxies have added that are trusted themselves: the
    last address that is none of theirs (RFC 7239, 4 and 5.2; `X-Forwarded-For` in the same way). Raises
    `ConflictingAddressesError` where both headers are there and differ: a client has sent one of them.
    """
    if peer not in proxies:
        return peer
    chains = [chain for chain in (_forwarded(headers), _forwarded_for(headers)) if chain]
    nearest = [chain[: -MOST_PROXIES - 1 : -1] for chain in chains]
    clients = {next((one for one in near if one not in proxies), near[-1]) for near in nearest}
    if len(clients) > 1:
        raise ConflictingAddressesError
    return clients.pop() if clients else peer


def _forwarded(headers: Headers) -> list[str]:
    """The `for` of each element of `Forwarded`, in their order."""
    elements = [element for value in values(headers, "forwarded") for element in value.split(",")]
    matches = (_FOR.search(element) for element in elements if element.strip())
    return [UNKNOWN if match is None else _address(match[1].strip('"')) for match in matches]


def _forwarded_for(headers: Headers) -> list[str]:
    listed = (one.strip() for value in values(headers, "x-forwarded-for") for one in value.split(","))
    return [_address(one) for one in listed if one]


def _address(text: str) -> str:
    """The address in `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`; `UNKNOWN` for anything else."""
    name = text if is_address(text) else host_name(text)
    return name if name is not None and is_address(name) else UNKNOWN
