"""Keys in headers, and headers without them."""

from __future__ import annotations

import base64

import pytest

from lmtool.access.credentials import checked_key, has_key, key_protocol, without_credentials
from lmtool.errors import UsageError

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


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "schlüssel", "tab\t"])
def test_keys_that_cannot_be_sent(key: str) -> None:
    """They are refused where they are given, without being told."""
    with pytest.raises(UsageError) as refused:
        checked_key(key)
    assert not key or key not in str(refused.value)
