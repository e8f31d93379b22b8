"""Where a proxy listens."""

from __future__ import annotations

import pytest

from lmtool.cli.proxying import bound, listen_config, proxy_url
from lmtool.errors import ResourceError, UsageError
from lmtool.trace.proxy import parse_target


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("8081", "127.0.0.1", 8081), (":0", "127.0.0.1", 0), ("[::1]:9", "::1", 9), ("a:1", "a", 1)],
)
def test_forms(text: str, host: str, port: int) -> None:
    """A port alone is one of this machine only."""
    found = listen_config(text)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize("text", ["", "a", "a:b", "127.0.0.1:70000"])
def test_what_is_no_place(text: str) -> None:
    """It is refused with the forms there are."""
    with pytest.raises(UsageError) as caught:
        listen_config(text)
    assert "HOST:PORT" in caught.value.hints[0]


def test_clients_write_it_as_they_write_the_server() -> None:
    """An LMTP server's proxy is a ws URL, an HTTP server's one has its path."""
    place = listen_config("0")
    sockets = bound(place, "--listen")
    port = sockets[0].getsockname()[1]
    assert proxy_url(place, sockets, parse_target("ws://a/")) == f"ws://127.0.0.1:{port}/"
    assert proxy_url(place, sockets, parse_target("https://a/v1")) == f"http://127.0.0.1:{port}/v1"
    with pytest.raises(ResourceError) as caught:
        bound(listen_config(str(port)), "--proxy")
    assert "--proxy 127.0.0.1:0" in caught.value.hints[0]
    for one in sockets:
        one.close()
