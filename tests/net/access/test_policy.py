"""The decision: which requests are let in, and what the others are told."""

from __future__ import annotations

import pytest

from lmtool.net.access.credentials import key_protocol
from lmtool.net.access.policy import (
    AccessPolicy,
    Refusal,
    admitted_origin,
    answer_headers,
    find_refusal,
    preflight_headers,
)

HERE = "127.0.0.1:8080"
OPEN = AccessPolicy()
KEYED = AccessPolicy("secret", ("https://good.example",), ("models.example", "mybox"))
EVIL = "https://evil.example"
SHOWN = ("authorization", "Bearer secret")


def reason(policy: AccessPolicy, *headers: tuple[str, str], host: str | None = HERE, **how: str) -> str | None:
    given = [*([] if host is None else [("host", host)]), *headers]
    refusal = find_refusal(policy, given, **how)
    return None if refusal is None else refusal.reason


@pytest.mark.parametrize(
    "host", [HERE, "localhost:1", "app.localhost", "[::1]:8080", "192.168.1.5", "MyBox:80", "models.example"]
)
def test_right_hosts(host: str) -> None:
    """Loopback names, addresses, and the names that the policy has."""
    assert reason(KEYED, SHOWN, host=host) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "models.example.evil"])
def test_rebound_hosts(host: str) -> None:
    """A name that others gave to this address (DNS rebinding), with the right key or without."""
    assert reason(OPEN, host=host) == reason(KEYED, SHOWN, host=host) == "foreign_host"
    assert reason(AccessPolicy(hosts=("*",)), host=host) is None


def test_a_request_has_one_host() -> None:
    """Without one, or with two, nobody knows whom it means; gRPC calls it `:authority`."""
    assert reason(OPEN, host=None) == "invalid_headers"
    assert reason(OPEN, ("host", HERE)) == "invalid_headers"
    assert reason(OPEN, host="a b") == "invalid_headers"
    assert reason(OPEN, (":authority", HERE), host=None) is None


@pytest.mark.parametrize(
    ("page", "host"),
    [
        ("http://localhost:3000", HERE),
        ("http://127.0.0.1:8080", HERE),
        ("http://[::1]:5000", HERE),
        ("http://192.168.1.5:9999", "192.168.1.5:8080"),
        ("http://[fe80::1]", "[fe80::1]:8080"),
        ("https://models.example", "models.example"),
        ("https://good.example", HERE),
    ],
)
def test_pages_that_may(page: str, host: str) -> None:
    """Those of this machine, of the host that they ask, and those allowed by name."""
    assert reason(KEYED, SHOWN, ("origin", page), host=host) is None
    assert admitted_origin(KEYED, [("origin", page), ("host", host)]) == page


@pytest.mark.parametrize(
    ("page", "host"),
    [
        (EVIL, HERE),
        ("http://192.168.1.6", "192.168.1.5:8080"),
        ("null", HERE),
        ("", HERE),
        ("file://", HERE),
        ("http://localhost.evil.example", HERE),
        ("http://127.0.0.1.evil.example", HERE),
        ("http://[", HERE),
        ("http://good.example", HERE),
        ("https://good.example:444", HERE),
        ("https://models.example.evil", "models.example"),
    ],
)
def test_pages_that_may_not(page: str, host: str) -> None:
    """All others, with the right key or without."""
    assert reason(KEYED, SHOWN, ("origin", page), host=host) == "foreign_origin"
    assert admitted_origin(KEYED, [("origin", page), ("host", host)]) is None


def test_a_rebound_page_is_of_no_origin_here() -> None:
    """That its origin and its host are equal proves nothing where the host is not ours."""
    headers = [("origin", "http://evil.example"), ("host", "evil.example")]
    assert admitted_origin(OPEN, headers) is None
    assert find_refusal(OPEN, headers).reason == "foreign_host"  # type: ignore[union-attr]


def test_pages_that_do_not_tell_their_origin() -> None:
    """A picture or a link on another site sends no `Origin`; browsers say where it comes from all the same."""
    assert reason(OPEN, ("sec-fetch-site", "cross-site")) == "foreign_origin"
    for site in ("none", "same-origin", "same-site"):
        assert reason(OPEN, ("sec-fetch-site", site)) is None
    assert reason(OPEN, ("sec-fetch-site", "cross-site"), ("origin", "http://localhost:1")) is None


def test_any_page_or_one_of_a_file_may_be_allowed() -> None:
    """`*` and `null` are said by name."""
    assert reason(AccessPolicy(origins=("*",)), ("origin", EVIL)) is None
    assert reason(AccessPolicy(origins=("null",)), ("origin", "null")) is None
    assert reason(OPEN, ("origin", EVIL), ("origin", "http://localhost")) == "invalid_headers"


def test_keys() -> None:
    """Where one is asked for it must be shown; where none is, any may be."""
    assert reason(KEYED) == reason(KEYED, ("authorization", "Bearer wrong")) == "invalid_api_key"
    assert reason(KEYED, SHOWN) is None
    assert reason(KEYED, ("sec-websocket-protocol", key_protocol("secret"))) is None
    assert reason(OPEN, SHOWN) is None


@pytest.mark.parametrize("path", ["/health", "/healthz", "/health/live"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes_need_nothing(method: str, path: str) -> None:
    """`/health` is open, whatever name the probe knows."""
    assert reason(KEYED, host="pod-7.cluster", method=method, path=path) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/health"),
        ("", "/health"),
        ("GET", "/health/../metrics"),
        ("GET", "/health/%2e%2e/metrics"),
        ("GET", "/health-admin"),
        ("GET", "/health/"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("GET", "//health"),
        ("GET", "http://x/health"),
    ],
)
def test_nothing_else_is_open(method: str, path: str) -> None:
    """Not what only begins alike, nor what a server behind could read as another path."""
    assert reason(KEYED, method=method, path=path) == "invalid_api_key"


def test_preflights_need_no_key() -> None:
    """A browser asks without the key whether a page may show it; a foreign page is refused there already."""
    asking = ("access-control-request-method", "POST")
    assert reason(KEYED, ("origin", "https://good.example"), asking, method="OPTIONS", path="/v1/models") is None
    assert reason(KEYED, ("origin", EVIL), asking, method="OPTIONS") == "foreign_origin"
    assert reason(KEYED, ("origin", "https://good.example"), asking, method="POST") == "invalid_api_key"
    assert reason(KEYED, ("origin", "https://good.example"), method="OPTIONS") == "invalid_api_key"
    assert reason(KEYED, asking, method="OPTIONS") == "invalid_api_key"


def test_refusals_help() -> None:
    """Each has a status and says what to do; none repeats a key; what it repeats of a stranger's is short."""
    long = "a" * 5000
    for headers, status, word in (
        ([("host", HERE), ("authorization", "Bearer wrong-key")], 401, "Authorization: Bearer KEY"),
        ([("host", HERE), ("origin", EVIL), SHOWN], 403, f"--allow-origin {EVIL}"),
        ([("host", "evil.example"), SHOWN], 421, "--allow-host evil.example"),
        ([("host", f"{long}.example"), SHOWN], 421, "--allow-host"),
        ([SHOWN], 400, "Host"),
    ):
        refusal = find_refusal(KEYED, headers)
        assert isinstance(refusal, Refusal)
        assert refusal.status == status
        assert word in refusal.sentence
        assert "secret" not in refusal.sentence
        assert "wrong-key" not in refusal.sentence
        assert len(refusal.sentence) < 500


def test_what_a_person_should_know() -> None:
    """Without a key, open doors are told; with one there is nothing to tell."""
    assert OPEN.warnings(public=False) == []
    assert "--no-auth" in OPEN.warnings(public=True)[0]
    wide = AccessPolicy(origins=("*",), hosts=("*",))
    assert len(wide.warnings(public=True)) == 3
    assert AccessPolicy("k", ("*",), ("*",)).warnings(public=True) == []


def test_a_key_is_not_shown_by_its_policy() -> None:
    """What is printed of a policy, such as in an error, has no key."""
    assert "secret" not in repr(KEYED)


def test_cors_headers_of_answers() -> None:
    """The origin that may read it, and that it depends on the origin; never a word about credentials."""
    assert answer_headers(KEYED, [("host", HERE), ("origin", "https://good.example")]) == [
        ("access-control-allow-origin", "https://good.example"),
        ("vary", "Origin"),
    ]
    for foreign in ([], [("origin", "https://evil.example")], [("origin", "null")]):
        assert answer_headers(KEYED, [("host", HERE), *foreign]) == [("vary", "Origin")]
    anyone = dict(answer_headers(AccessPolicy(origins=("*",)), [("host", HERE), ("origin", "null")]))
    assert anyone["access-control-allow-origin"] == "*"


def test_cors_headers_of_preflights() -> None:
    """Methods, the headers that are asked for, how long that holds; a private network where that is asked."""
    asked = [
        ("host", HERE),
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type, x-stainless-os"),
        ("access-control-request-private-network", "true"),
    ]
    found = dict(preflight_headers(KEYED, asked))
    assert found["access-control-allow-origin"] == "http://localhost:3000"
    assert found["access-control-allow-headers"] == "authorization,content-type, x-stainless-os"
    assert "DELETE" in found["access-control-allow-methods"]
    assert found["access-control-allow-private-network"] == "true"
    assert int(found["access-control-max-age"]) > 0
    assert not any("credentials" in name for name in found)
    plain = dict(preflight_headers(KEYED, [*asked[:3], ("access-control-request-headers", "a\x00b: c")]))
    assert "access-control-allow-headers" not in plain
    assert "access-control-allow-private-network" not in plain
