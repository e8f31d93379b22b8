"""Which origins may open a socket."""

import pytest

from lmtool.lmtp import origin

HERE = "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("page", "host"),
    [
        (None, HERE),
        ("http://localhost:3000", HERE),
        ("http://127.0.0.1:8080", HERE),
        ("http://[::1]:5000", HERE),
        ("http://192.168.1.5:8080", "192.168.1.5:8080"),
        ("http://192.168.1.5:9999", "192.168.1.5:8080"),
        ("http://[fe80::1]", "[fe80::1]:8080"),
        ("https://good.example", HERE),
    ],
)
def test_allowed(page, host):
    """Programs, pages of this machine, of the address itself, and those allowed by name."""
    assert origin.is_allowed(page, host, ["https://good.example"])


@pytest.mark.parametrize(
    ("page", "host"),
    [
        ("https://evil.example", HERE),
        ("http://rebound.example:8080", "rebound.example:8080"),
        ("http://192.168.1.6", "192.168.1.5:8080"),
        ("http://192.168.1.6", None),
        ("null", HERE),
        ("", HERE),
        ("file://", HERE),
        ("http://localhost.evil.example", HERE),
        ("http://127.0.0.1.evil.example", HERE),
        ("http://[", HERE),
        ("http://good.example", HERE),
        ("https://good.example:444", HERE),
    ],
)
def test_refused(page, host):
    """Every other page, also one whose own name was made to point here."""
    assert not origin.is_allowed(page, host, ["https://good.example"])


def test_all_may_be_allowed():
    """`*` lets every page in."""
    assert origin.is_allowed("https://evil.example", HERE, ["*"])
