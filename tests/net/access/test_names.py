"""Names of hosts in headers."""

from __future__ import annotations

import pytest

from lmtool.net.access.names import host_name, is_address, is_loopback, machine_names, normal_origin, origin_host


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Example.ORG:8080", "example.org"),
        ("localhost.", "localhost"),
        ("[::1]:80", "::1"),
        ("[fe80::1%eth0]", "fe80::1%eth0"),
        ("127.0.0.1:", "127.0.0.1"),
        ("my_box", "my_box"),
        ("", None),
        (".", None),
        ("a b", None),
        ("localhost@evil.example", None),
        ("evil.example/localhost", None),
        ("evil.example#localhost", None),
        ("::1", None),
        ("[localhost]", None),
        ("a:80:80", None),
        ("a:port", None),
    ],
)
def test_host_names(text: str, name: str | None) -> None:
    """A name or an address, whatever the port and the case; nothing that another reader could read otherwise."""
    assert host_name(text) == name


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://a.example:444", "a.example"),
        ("tauri://localhost", "localhost"),
        ("null", None),
        ("file://", None),
        ("h\xe9t://a", None),
    ],
)
def test_hosts_of_origins(text: str, host: str | None) -> None:
    """What comes behind the scheme; `null` and files have none."""
    assert origin_host(text) == host


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("HTTPS://Good.example/", "https://good.example"),
        ("https://good.example:443", "https://good.example"),
        ("http://good.example:443", "http://good.example:443"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("*", "*"),
        ("null", "null"),
        ("good.example", None),
        ("https://good.example/page", None),
        ("https://user@good.example", None),
        ("https://good.example:x", None),
        ("https://[", None),
        ("", None),
    ],
)
def test_origins_as_browsers_spell_them(text: str, origin: str | None) -> None:
    """Scheme, host and a port that is not the scheme's own; what could match no page is no origin."""
    assert normal_origin(text) == origin


def test_what_is_always_here() -> None:
    """Loopback addresses and `localhost`, with the names below it; never a name that only looks so."""
    assert all(map(is_loopback, ("localhost", "app.localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_loopback, ("127.evil.example", "localhost.evil.example", "10.0.0.1", "evillocalhost", "")))
    assert is_address("192.168.1.5")
    assert not is_address("192.168.1.5.evil.example")


def test_names_of_a_machine() -> None:
    """Its host name, that without the domain, and the one in the local network."""
    assert machine_names("GPU1.example.org") == ("gpu1.example.org", "gpu1", "gpu1.local")
    assert machine_names("mac.local") == ("mac.local", "mac")
    assert machine_names("") == ()
