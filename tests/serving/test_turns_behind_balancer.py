"""While streams wait on a worker, the clients of its balancer take turns there (GEN-14, GEN-21)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine.plan import Plan
from lmtool.net.access.caller import Callers
from lmtool.net.access.forwarding import parse_proxies
from lmtool.net.access.key_file import parse_keys
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.serving.config import ListenConfig, ModelsConfig, ServiceConfig
from lmtool.serving.listening import bind
from lmtool.serving.service import Service
from tests.conftest import STORIES
from tests.protocol.lmtp.harness import until
from tests.serving.running import opened

KEYS = '[[keys]]\nname = "many"\nkey = "many"\n[[keys]]\nname = "one"\nkey = "one"\n'
COUNT = 5
"""Requests of the first client, each on a connection of its own where it has a key."""


@asynccontextmanager
async def balanced(folder: Path, *, trusted: bool, keys: str = "") -> AsyncIterator[tuple[Any, str]]:
    """The scheduler of a worker at a Unix socket, and the URL of a balancer before it.

    trusted: whether the worker was started with `--trusted-proxy unix`.
    """
    proxies = parse_proxies(["unix"] if trusted else [])
    worker = Service(ServiceConfig(ModelsConfig(str(STORIES)), access=AccessPolicy(proxies=proxies)))
    worker.listen(bind(ListenConfig(unix=str(folder / "worker"))))
    callers = Callers(parse_keys(keys, "keys.toml")) if keys else None
    access = AccessPolicy(callers=callers)
    front = Service(ServiceConfig(workers=(f"unix:{folder / 'worker'}",), balances=True, access=access))
    url = opened(front)
    try:
        await worker.ready(lambda _: None)
        await front.ready(lambda _: None)
        models: Any = worker._models
        yield models._slots[0].model._inner._scheduler, url
    finally:
        await front.close()
        await worker.close()


async def order_of_service(scheduler: Any, clients: list[tuple[LmtpClient, int]]) -> list[int]:
    """The limits of all streams, in the order in which the worker begins them; they are submitted one by one."""
    for number, (client, limit) in enumerate(clients):
        client.submit(GenerateRequest(number, (1, 40), SamplingParams(max_tokens=limit)), lambda _: None)
        await until(lambda expected=number + 1: len(scheduler._waiting) == expected)
    return [one.max_length - one.prompt_length for one in scheduler._waiting]


@pytest.mark.parametrize(("trusted", "place"), [(True, 1), (False, COUNT)])
async def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, place: int) -> None:
    """Another key's single request waits for one of a key with many; where the worker does not believe, for all."""
    async with balanced(tmp_path, trusted=trusted, keys=KEYS) as (scheduler, url):
        monkeypatch.setattr(scheduler, "plan", Plan)
        many = [LmtpClient(url, api_key="many") for _ in range(COUNT)]
        one = LmtpClient(url, api_key="one")
        order = await order_of_service(scheduler, [*((client, at + 1) for at, client in enumerate(many)), (one, 99)])
        assert order.index(99) == place, order
        monkeypatch.undo()
        for client in (*many, one):
            await client.close()


async def test_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys each connection to the balancer is a client of its own."""
    async with balanced(tmp_path, trusted=True) as (scheduler, url):
        monkeypatch.setattr(scheduler, "plan", Plan)
        many, one = LmtpClient(url), LmtpClient(url)
        order = await order_of_service(scheduler, [*((many, at + 1) for at in range(COUNT)), (one, 99)])
        assert order.index(99) == 1, order
        names = {waiting.client for waiting in scheduler._waiting}
        assert len(names) == 2
        assert {kind for kind, _ in names} == {"client"}
        monkeypatch.undo()
        await many.close()
        await one.close()
