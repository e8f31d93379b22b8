"""Requests to an OpenAI-compatible server, each kept in the log with its whole answer."""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import aiohttp

from lmtool.core.errors import ConnectError, ServerError
from lmtool.measure.audit.http_answers import HttpReply, model_names
from lmtool.net.access.outgoing import DENIED, as_headers, denied
from lmtool.net.http_client import as_body, open_client, reason_of
from lmtool.protocol.providers.outcomes import retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.measure.audit.exchange_log import ExchangeLog

LARGEST_ANSWER = 2**26
"""Bytes of an answer that are read."""
_BUSY = frozenset({429, 503, 529})
_TRIES = 3
_LONGEST_REST = 5.0
"""Seconds to wait after an answer that says to come again."""
_START = ("start one:      lmtool serve", "or name another:  lmtool audit http://HOST:PORT")


class Transport(Protocol):
    """Sends requests."""

    async def post(self, path: str, body: Mapping[str, object]) -> HttpReply:
        """The whole answer to a POST. Raises `ConnectError`, `AccessDeniedError`."""


class HttpTransport:
    """Sends requests to a base URL such as `http://127.0.0.1:8080/v1`. Make it in a running event loop; close it."""

    def __init__(self, url: str, authorization: str | None, log: ExchangeLog, timeout: float) -> None:
        """timeout: seconds without a byte."""
        headers = {"accept-encoding": "identity", "user-agent": "lmtool", **as_headers(authorization)}
        self._client = open_client(headers=headers, connect_timeout=min(timeout, 10.0), read_timeout=timeout)
        self._has_key = authorization is not None
        self._log = log
        self.url = url

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def models(self) -> list[str]:
        """The names of the models that are served. Raises `ConnectError`, `AccessDeniedError`, `ServerError`."""
        reply = await self._send("GET", "/models", b"")
        if reply.status != HTTPStatus.OK:
            raise ServerError(
                f"{self.url}/models answered {reply.status}: this is no OpenAI-compatible server",
                "give its base URL, such as http://HOST:PORT/v1",
                "or name the model, if it lists none:  --model NAME",
            )
        return model_names(reply.body)

    async def post(self, path: str, body: Mapping[str, object]) -> HttpReply:
        """See `Transport`. A server that is busy is asked again a few times."""
        data = json.dumps(body, ensure_ascii=False).encode()
        for _ in range(_TRIES - 1):
            reply = await self._send("POST", path, data)
            if reply.status not in _BUSY:
                return reply
            await asyncio.sleep(min(reply.retry_after, _LONGEST_REST))
        return await self._send("POST", path, data)

    async def _send(self, method: str, path: str, data: bytes) -> HttpReply:
        headers = {"content-type": "application/json"} if data else {}
        exchange = self._log.http.begin(method, f"{self.url}{path}", {"content-type": "application/json"}, data)
        number, body, failure = self._log.exchanges, bytearray(), ""
        try:
            url = f"{self.url}{path}"
            async with self._client.request(
                method, url, data=as_body(data), headers=headers, allow_redirects=False
            ) as answer:
                exchange.head(answer.status, answer.headers)
                kind = answer.headers.get("content-type", "")
                try:
                    async for piece in answer.content.iter_any():
                        exchange.data(piece)
                        body += piece
                        if len(body) > LARGEST_ANSWER:
                            failure = f"the answer has more than {LARGEST_ANSWER} bytes"
                            break
                except (aiohttp.ClientError, TimeoutError) as error:
                    failure = reason_of(error)
                status, rest = answer.status, retry_after(answer.headers, time.time())
        except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, aiohttp.InvalidURL) as error:
            exchange.end(complete=False)
            reason = "no valid URL" if isinstance(error, aiohttp.InvalidURL) else reason_of(error)
            raise ConnectError(f"no server at {self.url} ({reason})", *_START) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            exchange.end(complete=False)
            return HttpReply(number, 0, "", b"", reason_of(error))
        exchange.end(complete=not failure)
        if status in DENIED:
            raise denied(self.url, status, body.decode("utf-8", "replace"), key_sent=self._has_key)
        return HttpReply(number, status, kind, bytes(body), failure, 1.0 if rest is None else rest)
