"""The server of the demo: the embedded model in this process, on a free port of this machine, at a readable pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.types import LoadProgress

PACE = 24.0
"""Tokens a second that a stream of the demo gets: as many as eyes can follow."""


@asynccontextmanager
async def demo_server(tell: Callable[[str], None], pace: float = PACE) -> AsyncIterator[str]:
    """Serve the embedded model; its URL, once it answers. tell: takes sentences on the way.

    Raises `ResourceError` where the packages are missing that serving needs.
    """
    from starlette.applications import Starlette

    from lmtool.access.policy import AccessPolicy
    from lmtool.cli.serving.listening import ListenConfig, bind, url
    from lmtool.cli.serving.service import Service, ServiceConfig, carrier
    from lmtool.cli.wiring import ModelsConfig, need_serve_packages, threads_for
    from lmtool.engine.config import EngineConfig
    from lmtool.lmtp.config import ServerConfig
    from lmtool.lmtp.server import LmtpServer
    from lmtool.tui.sources.pacing import Paced

    need_serve_packages()
    service = Service(ServiceConfig(ModelsConfig(), EngineConfig(threads=threads_for(None))))
    listen = ListenConfig(port=0)
    sockets = bind(listen)

    said = [""]

    def progress(now: LoadProgress) -> None:
        sentence = f"{now.model}: {now.phase}"
        if sentence != said[-1]:
            said.append(sentence)
            tell(sentence)

    server = LmtpServer(Paced(service.model, pace))
    carried = carrier(Starlette(routes=server.routes()), AccessPolicy(), ServerConfig())
    serving: asyncio.Task[None] | None = None
    try:
        await service.ready(progress)
        serving = asyncio.create_task(carried.serve(sockets))
        yield url(listen, sockets)
    finally:
        await server.drain(0)
        carried.should_exit = True
        if serving is not None:
            await serving
        await service.close()
