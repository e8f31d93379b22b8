"""Addresses of Unix sockets, and WebSockets over them."""

from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, unix_serve

from lmtool.net.unix_sockets import open_websocket, unix_path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("unix:/run/s", "/run/s"),
        ("unix:///run/s", "/run/s"),
        ("unix:s", "s"),
        ("unix:", ""),
        ("unix:/a@b:c", "/a@b:c"),
        ("unix:~/s", str(Path("~/s").expanduser())),
        ("ws://unix:80/", None),
        (":80", None),
    ],
)
def test_addresses(url: str, path: str | None) -> None:
    """Nothing in a path means anything else; `~` is a home."""
    assert unix_path(url) == path


async def test_requests_have_a_route_and_a_host(tmp_path: Path) -> None:
    """Those that a URL would name; no proxy of the environment is asked."""
    asked: list[tuple[str, str]] = []

    async def answer(connection: ServerConnection) -> None:
        assert connection.request is not None
        asked.append((connection.request.path, connection.request.headers["Host"]))

    async with unix_serve(answer, str(tmp_path / "s")):
        url = f"unix:{tmp_path}/s"
        for options in ({}, {"route": "/evergreen"}, {"authority": "other"}):
            connection = await open_websocket(url, **options)
            await connection.wait_closed()
    assert asked == [("/", "localhost"), ("/evergreen", "localhost"), ("/", "other")]
