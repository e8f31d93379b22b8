"""How sources end and come back."""

from __future__ import annotations

from lmtool.errors import ConnectError
from tests.tui.scripted import tokens, watching


async def test_a_server_that_comes_back() -> None:
    """After a request was taken again the header is live again, and the source is watched as before."""
    async with watching() as seen:
        seen.source.end(ConnectError("gone"))
        await seen.settle()
        assert "remote has gone" in seen.text()
        seen.source.end(None)
        await seen.press("i", *"again", "enter")
        await seen.settle()
        assert "remote has gone" not in seen.text()
        assert len(seen.source.requests) == 1
        seen.source.push([tokens(9.0, (2, 7, -0.1))])
        await seen.settle()
        assert seen.app.view.state.now == 9.0
