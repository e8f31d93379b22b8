"""Keys in headers, and headers without them."""

from __future__ import annotations

import base64

import pytest

from lmtool.core.errors import UsageError
from lmtool.net.access.credentials import (
    checked_key,
    has_key,
    holds_secret,
    key_protocol,
    secrets_of,
    without_credentials,
    without_query_keys,
)

KEY = "s3cret/+?:="


def basic(pair: str) -> str:
    return "Basic " + base64.b64encode(pair.encode()).decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", f"Bearer {KEY}"),
        ("authorization", f"bearer   {KEY}"),
        ("authorization", basic(f"user:{KEY}")),
        ("authorization", basic(f":{KEY}")),
        ("proxy-authorization", f"Bearer {KEY}"),
        ("x-api-key", KEY),
        ("sec-websocket-protocol", f"lmtp, {key_protocol(KEY)}"),
    ],
)
def test_ways_to_show_a_key(name: str, value: str) -> None:
    """A bearer's token, basic credentials, `x-api-key`, a subprotocol; others beside it do no harm."""
    assert has_key(KEY, [("x-api-key", "another"), (name, value)])
    assert not has_key(KEY + "x", [(name, value)])
    assert not has_key(KEY[:-1], [(name, value)])


def test_a_key_as_the_name_of_a_user() -> None:
    """`http://KEY@host/` has_key it as well."""
    assert has_key("abc", [("authorization", basic("abc:"))])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", KEY),
        ("authorization", f"Token {KEY}"),
        ("authorization", "Bearer"),
        ("authorization", "Basic not base64"),
        ("authorization", "Basic ="),
        ("cookie", KEY),
        ("sec-websocket-protocol", KEY),
        ("sec-websocket-protocol", f"lmtp.key.{KEY}"),
        ("sec-websocket-protocol", "lmtp.key."),
        ("x-api-key", "é\udcff"),
    ],
)
def test_what_shows_nothing(name: str, value: str) -> None:
    """Whatever a stranger sends is compared, and never an error."""
    assert not has_key(KEY, [(name, value)])


def test_headers_without_credentials() -> None:
    """Nothing that carries a key is left, and everything else is."""
    kept = [("host", "here"), ("user-agent", "x"), ("sec-websocket-protocol", "lmtp, other")]
    secret = [
        ("authorization", f"Bearer {KEY}"),
        ("proxy-authorization", "x"),
        ("x-api-key", KEY),
        ("api-key", KEY),
        ("cookie", KEY),
        ("sec-websocket-protocol", key_protocol(KEY)),
    ]
    mixed = [("sec-websocket-protocol", f"{key_protocol(KEY)},lmtp")]
    assert without_credentials([*secret, *kept]) == kept
    assert without_credentials(mixed) == [("sec-websocket-protocol", "lmtp")]


def test_names_of_secrets() -> None:
    """Names that say so hold secrets, also those of headers that nobody has heard of; counts of tokens do not."""
    secret = [
        "X-Goog-Api-Key",
        "helicone-auth",
        "cf-aig-authorization",
        "x-session-token",
        "set-cookie",
        "sig",
        "apikey",
    ]
    kept = [
        "x-ratelimit-limit-tokens",
        "content-type",
        "anthropic-version",
        "keyword",
        "max_tokens",
        "author",
        "monkey",
    ]
    assert [name for name in (*secret, *kept) if holds_secret(name)] == secret


def test_urls_without_keys() -> None:
    """Values of secrets are left out of a query, and of headers that hold a URL."""
    assert without_query_keys("/v1/a?key=abc&api-version=1&api%5Fkey=x&b&token=") == (
        "/v1/a?key=***&api-version=1&api%5Fkey=***&b&token="
    )
    assert without_query_keys("/v1/key=abc") == "/v1/key=abc"
    assert without_credentials([("location", "/x?sig=1&a=2")]) == [("location", "/x?sig=***&a=2")]


def test_what_a_server_might_repeat() -> None:
    """Keys, wherever they stand, as they were sent and as they are meant; nothing that any text may have in it."""
    headers = [
        ("authorization", f"Bearer {KEY}"),
        ("cookie", "theme=dark-blue-or-so; id=0123456789abcdef"),
        ("a-key", "x"),
    ]
    assert secrets_of(headers, "/v1?token=a%2Bbcdefgh&n=123456789") >= {
        KEY.encode(), b"0123456789abcdef", b"a%2Bbcdefgh", b"a+bcdefgh",
    }  # fmt: skip
    assert not secrets_of([("x-api-key", "none"), ("accept", "application/json")], "/v1?n=123456789")


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "schlüssel", "tab\t"])
def test_keys_that_cannot_be_sent(key: str) -> None:
    """They are refused where they are given, without being told."""
    with pytest.raises(UsageError) as refused:
        checked_key(key)
    assert not key or key not in str(refused.value)
