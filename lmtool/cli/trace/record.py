"""`lmtool trace record`: a proxy that records, for any client and any server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lmtool.cli.common_options import ClientCommon
from lmtool.cli.trace.files import FORCE
from lmtool.serving.access_config import AccessConfig
from lmtool.serving.listening import bind_proxy, parse_listen, proxy_target, proxy_url
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.core.types import TokenizerInfo
    from lmtool.net.access.policy import AccessPolicy
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.serving.config import ListenConfig
    from lmtool.settings.terminal import Output
    from lmtool.trace.codec import Header
    from lmtool.trace.proxy import Target
    from lmtool.trace.recorder import Recording, TokenBytes


async def record(
    common: ClientCommon,
    access: AccessConfig,
    to: str | None = option(
        None, "The server: ws://HOST:PORT/, http://HOST/v1, ...", shown_default="--endpoint", metavar="URL"
    ),
    listen: str = option("127.0.0.1:8081", "Where clients connect; port 0 takes a free one.", metavar="HOST:PORT"),
    output: Path | None = option(
        None, "Where to write; .gz packs.", short="-O", shown_default="a name with the date", metavar="FILE"
    ),
    split: Literal["none", "connection"] = option("none", "connection: -O is a folder, one file for each."),
    redact: str = option("headers", "Parts to remove: headers, prompt, text; with commas.", metavar="LIST"),
    tokenizer: str | None = option(None, "Folder or hub name; makes ids readable.", metavar="NAME"),
    title: str | None = option(None, "What the trace shows."),
    note: str | None = option(None, "A remark at its beginning.", metavar="TEXT"),
    no_time: bool = option(False, "Number events instead of timing them: equal conversations give equal files."),
    inspect: bool = option(False, "Show it live, as lmtool inspect does."),
    force: bool = FORCE,
) -> None:
    """Stand between clients and a server, and record what they say. Ctrl-C ends the recording.

    Works for LMTP and other WebSockets, and for HTTP with server-sent events, such as any OpenAI-compatible server.
    Keys for the server are its clients' to send, and are passed on; --api-key is asked for by the recorder itself, in
    Proxy-Authorization (not passed on) or in the headers that servers read. No trace ever holds one.
    """
    from lmtool.serving import interrupts
    from lmtool.trace.proxy import Proxy
    from lmtool.trace.recorder import Recording, new_clock, recorders
    from lmtool.trace.redaction import parse as parse_redaction

    if inspect:
        from lmtool.protocol.lmtp.endpoint import parse
        from lmtool.terminal.tui.headless import need_screen

        need_screen("--inspect")
    out, target, place = common.output(), proxy_target(to or common.address), parse_listen(listen)
    policy = access.policy(place, common.api_key)
    for sentence in policy.warnings(public=place.public):
        out.warn(sentence)
    token_bytes, info = load_token_bytes(tokenizer)
    header = _header(target, title, info, no_time=no_time)
    folder = split == "connection"
    path = output or Path(f"{datetime.now(UTC):lmtool-%Y%m%d-%H%M%S}{'' if folder else '.lmtp.jsonl'}")
    start = recorders(path, header, parse_redaction(redact), token_bytes, split=folder, overwrite=force, note=note)
    clock = new_clock()
    recording = Recording(start, out.warn, clock, split=folder)
    if inspect:
        ask = None if target.url.startswith("http") else parse(target.url, common.api_key)
        connections = await _inspected(out, recording, target, place, token_bytes, policy=policy, ask=ask)
        _summary(out, recording, connections, path)
        return
    try:
        proxy = Proxy(target, recording.record, out.warn, clock, policy=policy)
        sockets = bind_proxy(place, "--listen")
        await proxy.listen(sockets)
        url = proxy_url(place, sockets, target)
        with interrupts.watch() as interrupt:
            out.note(f"recording {url} → {target.url} into {path}    Ctrl-C ends it", "")
            await interrupt.first.wait()
        await proxy.close()
    finally:
        await recording.close()
    _summary(out, recording, proxy.connections, path)


async def _inspected(
    out: Output,
    recording: Recording,
    target: Target,
    place: ListenConfig,
    token_bytes: TokenBytes | None,
    *,
    policy: AccessPolicy,
    ask: Endpoint | None,
) -> int:
    """Record until the inspector is left; return the number of connections."""
    from lmtool.cli.inspect_servers import default_options, find_tokenizer
    from lmtool.terminal.tui.app import run_inspector
    from lmtool.terminal.tui.event_store import EventStore
    from lmtool.terminal.tui.sources.proxy import ProxySource

    warnings: list[str] = []
    try:
        sockets = bind_proxy(place, "--listen")
        source = ProxySource(
            target,
            sockets,
            warnings.append,
            find_tokenizer=find_tokenizer,
            spell=token_bytes,
            endpoint=ask,
            also=recording.record,
            policy=policy,
        )
        source.url = proxy_url(place, sockets, target)
        await run_inspector(EventStore(), source, default_options())
    finally:
        await recording.close()
        for sentence in warnings:
            out.warn(sentence)
    return source.connections


def load_token_bytes(name: str | None) -> tuple[TokenBytes | None, TokenizerInfo | None]:
    """The bytes of a tokenizer's ids, and its name and hash; None for no name. Raises what loading it raises."""
    if name is None:
        return None, None
    from lmtool.inference.text.tokenizer import load_tokenizer
    from lmtool.inference.tiny.path import source_of
    from lmtool.trace.recorder import TokenSpelling

    tokenizer = load_tokenizer(source_of(name))
    return TokenSpelling(tokenizer), tokenizer.info


def _header(target: Target, title: str | None, info: TokenizerInfo | None, *, no_time: bool) -> Header:
    from lmtool import __version__
    from lmtool.trace.codec import Header

    kind = "http" if target.url.startswith("http") else "websocket"
    return Header(
        created=None if no_time else datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        by="lmtool" if no_time else f"lmtool {__version__}",
        at="proxy",
        title=title,
        transport={"kind": kind, "path": target.path},
        model={} if info is None else {"tokenizer": {"name": info.name, "sha256": info.sha256}},
        times="numbered" if no_time else "measured",
    )


def _summary(out: Output, recording: Recording, connections: int, path: Path) -> None:
    from lmtool.trace.recorder import warn_of_keys

    traces, events, tokens = recording.counts
    warn_of_keys(out, recording)
    files = "" if traces == 1 else f" in {traces} files"
    counted = f" · {tokens} tokens over LMTP" if tokens else ""
    out.note(f"{connections} connections · {events} events{counted}{files}", "")
    recording.refuse_cut(path)
