"""What tells browsers which pages may read answers."""

from __future__ import annotations

from lmtool.access.cors import answer_headers, preflight_headers
from lmtool.access.policy import AccessPolicy

POLICY = AccessPolicy("secret", ("https://good.example",))
HOST = ("host", "127.0.0.1:8080")


def test_answers() -> None:
    """The origin that may read it, and that it depends on the origin; never a word about credentials."""
    assert answer_headers(POLICY, [HOST, ("origin", "https://good.example")]) == [
        ("access-control-allow-origin", "https://good.example"),
        ("vary", "Origin"),
    ]
    for foreign in ([], [("origin", "https://evil.example")], [("origin", "null")]):
        assert answer_headers(POLICY, [HOST, *foreign]) == [("vary", "Origin")]
    anyone = dict(answer_headers(AccessPolicy(origins=("*",)), [HOST, ("origin", "null")]))
    assert anyone["access-control-allow-origin"] == "*"


def test_preflights() -> None:
    """Methods, the headers that are asked for, how long that holds; a private network where that is asked."""
    asked = [
        HOST,
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type, x-stainless-os"),
        ("access-control-request-private-network", "true"),
    ]
    found = dict(preflight_headers(POLICY, asked))
    assert found["access-control-allow-origin"] == "http://localhost:3000"
    assert found["access-control-allow-headers"] == "authorization,content-type, x-stainless-os"
    assert "DELETE" in found["access-control-allow-methods"]
    assert found["access-control-allow-private-network"] == "true"
    assert int(found["access-control-max-age"]) > 0
    assert not any("credentials" in name for name in found)
    plain = dict(preflight_headers(POLICY, [*asked[:3], ("access-control-request-headers", "a\x00b: c")]))
    assert "access-control-allow-headers" not in plain
    assert "access-control-allow-private-network" not in plain
