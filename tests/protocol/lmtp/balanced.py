"""Balancers over real servers of scripted models in this process, and proxies that cut their connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

from lmtool.core.interfaces import Sink, StreamHandle
from lmtool.core.streams import refuse, stream
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest, TokenOutput
from lmtool.gateway.balance.balancer import Balancer
from tests.lab.resuming import CuttingProxy
from tests.protocol.lmtp.harness import PATIENCE, serving, until
from tests.scripted_model import ScriptedModel

PRINT = "a" * 64
OTHER_PRINT = "b" * 64


class Refusing(ScriptedModel):
    """A model that refuses every request with an error, as long as there is one."""

    error: Any = None

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel`."""
        if self.error is None:
            return super().submit(request, sink)
        self.requests.append(request)
        return refuse(request.stream_id, sink, self.error)


class Mortal:
    """A worker's address, where its server can be gone for a while."""

    def __init__(self, model: ScriptedModel, proxy: CuttingProxy) -> None:
        self.model = model
        self.proxy = proxy

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.proxy.port}/"

    def die(self) -> None:
        """Lose all connections, and take no new ones."""
        self.proxy.refuses = True
        self.proxy.cut_now()
        self.model.running.clear()

    def revive(self) -> None:
        """Take connections again."""
        self.proxy.refuses = False


@contextlib.asynccontextmanager
async def mortals(*models: ScriptedModel) -> AsyncIterator[list[Mortal]]:
    """Servers of these models behind proxies."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for model in models:
            served = await stack.enter_async_context(serving(model, catalogue=model))
            proxy = CuttingProxy(served.port, itertools.repeat(None))
            made.append(Mortal(model, await stack.enter_async_context(proxy.running())))
        yield made


@contextlib.asynccontextmanager
async def over(*workers: Mortal, **options: Any) -> AsyncIterator[Balancer]:
    """A balancer over workers that all are up."""
    balancer = Balancer([worker.url for worker in workers], check_seconds=0.05, **options)
    async with asyncio.timeout(PATIENCE):
        balancer.start()
        await until(lambda: len(balancer.up) == len(workers))
    try:
        yield balancer
    finally:
        await balancer.close()


@contextlib.asynccontextmanager
async def balanced(*models: ScriptedModel) -> AsyncIterator[Balancer]:
    """A balancer over servers of these models, all of them up."""
    async with mortals(*models) as workers, over(*workers) as balancer:
        yield balancer


async def outputs(balancer: Balancer, request: GenerateRequest | ScoreRequest) -> list[TokenOutput]:
    """All outputs of a stream."""
    async with asyncio.timeout(PATIENCE):
        return [output async for output in stream(balancer, request)]


def asked(prompt: tuple[int, ...], count: int = 3, **more: Any) -> GenerateRequest:
    """A request for a few tokens."""
    return GenerateRequest("a", prompt, SamplingParams(max_tokens=count), **more)
