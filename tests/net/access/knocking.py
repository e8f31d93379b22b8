"""Requests that no door lets in, sent to a real port, over HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx2
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from lmtool.net.access.policy import AccessPolicy

KEY = "correct-horse"
POLICY = AccessPolicy(KEY, ("https://good.example",))
SHOWN = {"authorization": f"Bearer {KEY}"}


@dataclass(frozen=True)
class Knock:
    """One way to ask, and the status that it must get."""

    name: str
    status: int
    headers: Mapping[str, str]
    host: str | None = None
    """The name that is asked for; None: the address itself."""


REFUSED = (
    Knock("no key", 401, {}),
    Knock("wrong key", 401, {"authorization": "Bearer wrong"}),
    Knock("foreign origin", 403, {**SHOWN, "origin": "https://evil.example"}),
    Knock("text of a foreign page", 403, {**SHOWN, "origin": "https://evil.example", "content-type": "text/plain"}),
    Knock("rebound host", 421, SHOWN, "evil.example"),
    Knock("rebound page", 421, {**SHOWN, "origin": "http://evil.example"}, "evil.example"),
)
LET_IN = Knock("key", 0, SHOWN)
PAGE_LET_IN = Knock("page with a key", 0, {**SHOWN, "origin": "https://good.example"})


async def http_answer(port: int, knock: Knock, method: str, path: str, body: bytes = b"{") -> httpx2.Response:
    """The answer to an HTTP request."""
    headers = {**knock.headers, **({} if knock.host is None else {"host": knock.host})}
    async with httpx2.AsyncClient(trust_env=False, timeout=60, verify=False) as client:
        content = None if method in {"GET", "HEAD", "OPTIONS"} else body
        return await client.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, content=content)


async def socket_status(port: int, knock: Knock, path: str = "/") -> int:
    """The status of a WebSocket's handshake; 101 for one that was accepted."""
    place = {} if knock.host is None else {"host": "127.0.0.1", "port": port}
    url = f"ws://{knock.host or '127.0.0.1'}:{port}{path}"
    try:
        async with connect(url, additional_headers=dict(knock.headers), proxy=None, **place):  # type: ignore[arg-type]
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code
