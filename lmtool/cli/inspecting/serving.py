"""`lmtool serve --inspect`: the server behind the inspector's proxy, so that all of its traffic is on the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.cli.inspecting.choosing import Chooser, Wanted
from lmtool.cli.serving.listening import ListenConfig, bind, explain, url
from lmtool.cli.serving.run import ReadyFile, ServingConfig, first
from lmtool.cli.serving.service import Service
from lmtool.errors import LmtoolError, ResourceError

if TYPE_CHECKING:
    import socket

    from lmtool.access.policy import AccessPolicy
    from lmtool.cli.invocation import Common
    from lmtool.cli.output import Output
    from lmtool.tui.sources.proxy import ProxySource
    from lmtool.types import LoadProgress


async def serve_inspected(config: ServingConfig, common: Common, out: Output) -> None:
    """Serve until the inspector is left, then let streams end as `serve` does. Raises what `serve` raises.

    Clients connect to a proxy on the port that was asked for; the server itself takes a free one of this machine.
    """
    from lmtool.cli.inspecting.screen import default_options, logs_told, watch

    ready_file, warnings = ReadyFile(config.ready_file), list[str]()
    ready_file.prepare()
    assert config.listen is not None
    outer, inner = await _taken(config.listen, config.service.access.key), bind(ListenConfig(port=0))
    service = Service(config.service)
    service.listen(inner)
    access, drained = config.service.access, lambda: _drained(service, config.drain_limit, out)
    source = _source(url(ListenConfig(), inner), outer, warnings, drained, access)
    warnings += access.warnings(public=config.listen.public)
    source.url, source.title = url(config.listen, outer), f"serve :{outer[0].getsockname()[1]}"
    loading = asyncio.create_task(_load(service, source, ready_file))
    try:
        with logs_told(warnings.append):
            await watch(source, default_options(_file(config.record), common.settings))
    finally:
        ready_file.remove()
        if not loading.done():
            loading.cancel()
        (failure,) = await asyncio.gather(loading, return_exceptions=True)
        await service.close()
        for sentence in warnings:
            out.warn(sentence)
    if isinstance(failure, LmtoolError):
        raise failure


def _file(record: str | None) -> Path | None:
    return None if record is None else Path(record)


async def _taken(listen: ListenConfig, api_key: str | None) -> list[socket.socket]:
    try:
        return bind(listen)
    except ResourceError as refusal:
        raise await explain(listen, refusal, api_key) from refusal


def _source(
    inner: str,
    outer: list[socket.socket],
    warnings: list[str],
    drained: Callable[[], Awaitable[None]],
    access: AccessPolicy,
) -> ProxySource:
    from lmtool.lmtp.endpoint import parse
    from lmtool.trace.proxy import parse_target
    from lmtool.tui.sources.proxy import ProxySource

    find = Chooser(Wanted(), warnings.append).find_tokenizer
    return ProxySource(
        replace(parse_target(inner), same_door=True),
        outer,
        warnings.append,
        find_tokenizer=find,
        ask=parse(inner, access.key),
        before_close=drained,
        policy=access,
    )


async def _load(service: Service, source: ProxySource, ready_file: ReadyFile) -> None:
    said = [""]

    def progress(now: LoadProgress) -> None:
        sentence = f"{now.model}: {now.phase}"
        if sentence != said[-1]:
            said.append(sentence)
            source.say(sentence)

    try:
        await service.ready(progress)
    except LmtoolError as error:
        source.say(f"the model cannot be loaded: {error.message}")
        raise
    ready_file.write(source.url)


async def _drained(service: Service, limit: float, out: Output) -> None:
    """Let running streams end; Ctrl-C ends them at once."""
    from lmtool.cli.serving import interrupts

    if service.streams:
        streams = "1 stream" if service.streams == 1 else f"{service.streams} streams"
        out.note(f"draining: {streams} left, Ctrl-C stops at once")
    with interrupts.watch() as asked:
        await first(service.drain(limit), asked.first.wait())
