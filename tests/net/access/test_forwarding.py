"""Whose word is taken for where a request comes from."""

from __future__ import annotations

import pytest

from lmtool.core.errors import UsageError
from lmtool.net.access.forwarding import ConflictingAddressesError, client_address, is_forwarded, parse_proxies

PROXIES = parse_proxies(["10.0.0.7", "192.168.0.0/16", "2001:db8::/32"])


def client(peer: str | None, *headers: tuple[str, str]) -> str | None:
    """Where a request with these headers comes from."""
    return client_address(PROXIES, peer, headers)


def test_nobody_else_is_believed() -> None:
    """Not this machine, not the next address; a Unix socket only where that is said."""
    spoofed = ("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4")
    for peer in ("127.0.0.1", "10.0.0.8", "::1", None, "unknown"):
        assert client(peer, *spoofed) == peer
    assert client_address(parse_proxies(["unix"]), None, spoofed) == "1.2.3.4"


@pytest.mark.parametrize(
    ("header", "value", "address"),
    [
        ("x-forwarded-for", "1.2.3.4", "1.2.3.4"),
        ("x-forwarded-for", "1.2.3.4:567", "1.2.3.4"),
        ("x-forwarded-for", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("x-forwarded-for", "6.6.6.6, 1.2.3.4, 192.168.1.1,2001:db8::5", "1.2.3.4"),
        ("x-forwarded-for", "192.168.1.1, 10.0.0.7", "192.168.1.1"),
        ("x-forwarded-for", "2001:dead::1", "2001:dead::1"),
        ("x-forwarded-for", "1.2.3.4, evil", "unknown"),
        ("x-forwarded-for", " , ", "10.0.0.7"),
        ("forwarded", 'for="[2001:dead::1]:80";proto=https', "2001:dead::1"),
        ("forwarded", "for=6.6.6.6, proto=http;For=1.2.3.4", "1.2.3.4"),
        ("forwarded", "for=1.2.3.4, for=_hidden", "unknown"),
        ("forwarded", "for=1.2.3.4, proto=http", "unknown"),
    ],
)
def test_trusted_proxy(header: str, value: str, address: str) -> None:
    """The last address that is no trusted proxy's; what is before it anybody may have written."""
    for peer in ("10.0.0.7", "::ffff:10.0.0.7"):
        found = client(peer, (header, value))
        assert found == (address if address != "10.0.0.7" else peer)


def test_two_headers() -> None:
    """A client can send the one that its proxy does not set: they must agree."""
    assert client("10.0.0.7", ("forwarded", "for=1.2.3.4"), ("x-forwarded-for", "1.2.3.4")) == "1.2.3.4"
    with pytest.raises(ConflictingAddressesError):
        client("10.0.0.7", ("forwarded", "for=6.6.6.6"), ("x-forwarded-for", "1.2.3.4"))


def test_long_chains() -> None:
    """They are looked at from the nearest on, as far as chains of proxies go."""
    assert client("10.0.0.7", ("x-forwarded-for", "1.2.3.4," + "10.0.0.7," * 40)) == "10.0.0.7"


def test_is_forwarded() -> None:
    """Whoever says so, truly or not."""
    assert is_forwarded([("x-forwarded-for", "127.0.0.1")])
    assert not is_forwarded([("host", "localhost")])


def test_what_is_no_proxy() -> None:
    """The error names the option and the text."""
    with pytest.raises(UsageError, match="trusted-proxy 'example' is no address"):
        parse_proxies(["example"])
