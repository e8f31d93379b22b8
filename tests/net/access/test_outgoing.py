"""What clients show, and what they make of a refusal."""

from __future__ import annotations

import pytest

from lmtool.core.errors import UsageError
from lmtool.net.access.outgoing import as_headers, authorization, denied, key_in, split_url


@pytest.mark.parametrize(
    ("url", "shown", "key"),
    [
        ("ws://user:KEY@host:80/", "ws://host:80/", "KEY"),
        ("KEY@host:80", "host:80", "KEY"),
        ("http://:K%40Y@[::1]:8080/v1?a=b@c", "http://[::1]:8080/v1?a=b@c", "K@Y"),
        ("user:a:b@host", "host", "a:b"),
        ("ws://host/a@b", "ws://host/a@b", None),
        (":8080", ":8080", None),
    ],
)
def test_credentials_in_a_url(url: str, shown: str, key: str | None) -> None:
    """They are taken out of it, and sent as basic credentials; an at sign behind the host is none of theirs."""
    assert split_url(url)[0] == shown
    assert key_in(split_url(url)[1]) == key


def test_what_is_shown() -> None:
    """A URL's own credentials come before a key that holds for all servers."""
    assert authorization("ws://host/", None) == ("ws://host/", None)
    assert authorization("ws://host/", "KEY") == ("ws://host/", "Bearer KEY")
    shown, own = authorization("ws://u:OWN@host/", "KEY")
    assert (shown, key_in(own)) == ("ws://host/", "OWN")
    assert key_in("Bearer KEY") == "KEY"
    assert as_headers(None) == {}
    assert as_headers("Bearer KEY") == {"Authorization": "Bearer KEY"}
    with pytest.raises(UsageError):
        authorization("ws://host/", "two words")


def test_refusals() -> None:
    """A key that is asked for, one that is wrong, and what the server says of anything else."""
    asked, wrong = denied("ws://h/", 401, "x", key_sent=False), denied("ws://h/", 401, "x", key_sent=True)
    assert "asks for an API key" in asked.message
    assert "refuses the API key" in wrong.message
    assert all("--api-key" in error.hints[0] and error.exit_code == 4 for error in (asked, wrong))
    assert "--allow-host me" in denied("ws://h/", 421, "start it with  --allow-host me", key_sent=False).message
