"""A service of this process on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lmtool.net.telemetry.spans import Tracer
from lmtool.serving.config import ListenConfig, ServiceConfig
from lmtool.serving.listening import bind, url
from lmtool.serving.service import Service


def opened(service: Service) -> str:
    """Its address, once it listens."""
    listen = ListenConfig(port=0)
    sockets = bind(listen)
    service.listen(sockets)
    return url(listen, sockets)


@asynccontextmanager
async def running(
    config: ServiceConfig, *, loaded: bool = True, tracer: Tracer | None = None
) -> AsyncIterator[tuple[Service, str]]:
    """A service that listens, and its address; closed at the end. loaded: whether its model is waited for."""
    service = Service(config, tracer=tracer)
    where = opened(service)
    try:
        if loaded:
            await service.ready(lambda _: None)
        yield service, where
    finally:
        await service.close()
