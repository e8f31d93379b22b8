"""While streams wait, keys take turns, however many connections each has (GEN-14)."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

import lmtool
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine.plan import Plan
from lmtool.protocol.lmtp.client import LmtpClient
from tests.protocol.lmtp.harness import until
from tests.serving.keyed_wires import MODEL, POOL, keyed_server

KEYS = '[[keys]]\nname = "many"\nkey = "many"\n[[keys]]\nname = "one"\nkey = "one"\n'
COUNT = 20
"""Requests of the first key, each on a connection of its own."""


async def test_one_request_beside_a_key_with_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over whichever wires they come, another key's single request waits for one of them."""
    async with keyed_server(KEYS, tmp_path) as server:
        scheduler = server.scheduler
        with monkeypatch.context() as nothing_begins:
            nothing_begins.setattr(scheduler, "plan", Plan)
            clients = [LmtpClient(server.url, api_key="many") for _ in range(COUNT)]
            for number, client in enumerate(clients):
                request = GenerateRequest(number, (1, 40), SamplingParams(max_tokens=number + 1), MODEL)
                client.submit(request, lambda _: None)
                await until(lambda expected=number + 1: len(scheduler._waiting) == expected)
            async with (
                aiohttp.ClientSession(headers={"x-api-key": "many"}) as http,
                http.ws_connect(f"{server.http}/v1/language/{POOL}/chatStream") as socket,
                lmtool.session(server.url, api_key="many") as session,
                LmtpClient(server.unix, api_key="one") as other,
            ):
                await socket.send_json({"id": "1", "message": {"role": "user", "content": "Hello"}})
                await until(lambda: len(scheduler._waiting) == COUNT + 1)
                await session.call("GENERATE", {"prompt": "Once"}, ["tokens"], target=MODEL, max_tokens=1)
                await until(lambda: len(scheduler._waiting) == COUNT + 2)
                other.submit(GenerateRequest("a", (1, 40), SamplingParams(max_tokens=99), MODEL), lambda _: None)
                await until(lambda: len(scheduler._waiting) == COUNT + 3)
                order = [one.max_length - one.prompt_length for one in scheduler._waiting]
                assert order.index(99) == 1, order
                assert len({one.client for one in scheduler._waiting}) == 2
                nothing_begins.undo()
                other.submit(GenerateRequest("b", (1, 40), SamplingParams(max_tokens=1), MODEL), lambda _: None)
            for client in clients:
                await client.close()
