"""The inspector in other commands: `serve --inspect`, which puts a proxy on the server's port."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError, ResourceError
from lmtool.net.access.forwarding import parse_proxies
from lmtool.net.access.keys import Key, digest_of
from lmtool.serving.config import ListenConfig, ServingConfig
from lmtool.serving.listening import bind, explain, url
from lmtool.serving.run import ReadyFile, first
from lmtool.serving.service import Service
from lmtool.terminal.tui.sources.demo import loading_notes

if TYPE_CHECKING:
    import socket

    from lmtool.cli.common_options import Common
    from lmtool.core.types import ModelInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.net.access.policy import AccessPolicy
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.serving.certificate import Certificate
    from lmtool.settings.terminal import Output
    from lmtool.terminal.tui.options import InspectorOptions
    from lmtool.terminal.tui.sources.proxy import ProxySource

INSPECTOR = "lmtool inspect"
"""Name of the inspector's own key; names in key files have no spaces."""


def find_tokenizer(info: ModelInfo) -> TextTokenizer | None:
    """The tokenizer of a served model, or None if it is not on this machine."""
    from lmtool.terminal.chat.peer import local_tokenizer

    return None if info.tokenizer is None else local_tokenizer(info.tokenizer)


@contextmanager
def warnings_to(warn: Callable[[str], None]) -> Iterator[None]:
    """Collect warnings logged by libraries, which Python would otherwise write across the screen."""
    from lmtool.serving.events import LoggedWarning
    from lmtool.serving.run import emit_warnings

    with emit_warnings(lambda event: warn(event.message) if isinstance(event, LoggedWarning) else None, debug=False):
        yield


def default_options(record: Path | None = None, settings: str | None = None) -> InspectorOptions:
    """Options of an inspector that another command opens, from settings."""
    from lmtool.cli.settings import load
    from lmtool.terminal.tui.options import InspectorOptions

    return InspectorOptions(record=record, keys=load(settings).keys, color=not os.environ.get("NO_COLOR"))


async def serve_inspected(config: ServingConfig, common: Common, out: Output) -> None:
    """Serve until the inspector is closed, then drain streams as `serve` does. Raises what `serve` raises.

    Clients connect to a proxy on the requested port; the server itself listens on a free loopback port.
    """
    from lmtool.protocol.lmtp.endpoint import parse
    from lmtool.terminal.tui.app import run_inspector
    from lmtool.terminal.tui.event_store import EventStore
    from lmtool.terminal.tui.sources.proxy import short_place

    ready_file, warnings = ReadyFile(config.life.ready_file), list[str]()
    ready_file.prepare()
    assert config.listen is not None
    outer, inner = await _taken(config.listen, config.service.access.key), bind(ListenConfig(port=0))
    own_key, behind = _behind_proxy(config.service.access)
    service = Service(replace(config.service, certificate=None, access=behind))  # the proxy terminates TLS
    service.listen(inner)
    access, drained = config.service.access, lambda: _drained(service, config.life.drain_limit, out)
    certificate = config.service.certificate
    endpoint = parse(url(ListenConfig(), inner), own_key)
    source = _source(endpoint, outer, warnings, drained, access, certificate)
    warnings += access.warnings(public=config.listen.public)
    source.url, source.title = url(config.listen, outer, tls=certificate is not None), f"serve {short_place(outer)}"
    loading = asyncio.create_task(_load(service, source, ready_file))
    try:
        with warnings_to(warnings.append):
            record = None if config.record is None else Path(config.record)
            await run_inspector(EventStore(), source, default_options(record, common.settings))
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
    if service.failure is not None:
        raise service.failure


async def _taken(listen: ListenConfig, api_key: str | None) -> list[socket.socket]:
    try:
        return bind(listen)
    except ResourceError as refusal:
        raise await explain(listen, refusal, api_key) from refusal


def _behind_proxy(access: AccessPolicy) -> tuple[str | None, AccessPolicy]:
    """The key of the inspector's own requests, and the access policy of the proxied server.

    With a key file, the inspector gets a temporary key of its own, and the server trusts the client addresses that the
    proxy forwards.
    """
    if access.callers is None:
        return access.key, access
    ring, secret = access.callers.ring, secrets.token_urlsafe(32)
    access.callers.replace(replace(ring, keys=(*ring.keys, Key(INSPECTOR, digest_of(secret), admin=True))))
    return secret, replace(access, proxies=parse_proxies(("127.0.0.1",)))


def _source(
    inner: Endpoint,
    outer: list[socket.socket],
    warnings: list[str],
    drained: Callable[[], Awaitable[None]],
    access: AccessPolicy,
    certificate: Certificate | None,
) -> ProxySource:
    from lmtool.terminal.tui.sources.proxy import ProxySource
    from lmtool.trace.proxy import parse_target

    target = replace(parse_target(inner.url), same_door=True)
    return ProxySource(
        target,
        outer,
        warnings.append,
        find_tokenizer=find_tokenizer,
        endpoint=inner,
        http=replace(target, authorization=getattr(inner, "authorization", None)),
        before_close=drained,
        policy=access,
        tls=None if certificate is None else certificate.context,
    )


async def _load(service: Service, source: ProxySource, ready_file: ReadyFile) -> None:
    try:
        await service.ready(loading_notes(source.say))
    except LmtoolError as error:
        source.say(f"the model cannot be loaded: {error.message}")
        raise
    ready_file.write(source.url)


async def _drained(service: Service, limit: float, out: Output) -> None:
    """Let running streams finish; Ctrl-C stops them."""
    from lmtool.serving import interrupts

    if service.streams:
        streams = "1 stream" if service.streams == 1 else f"{service.streams} streams"
        out.note(f"draining: {streams} left, Ctrl-C stops at once")
    with interrupts.watch() as interrupt:
        await first(service.drain(limit), interrupt.first.wait())
