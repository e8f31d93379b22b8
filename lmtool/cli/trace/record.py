"""`lmtool trace record`: a proxy that records, for any client and any server."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.proxying import bound, clients_target, listen_config, proxy_url
from lmtool.cli.serving.access import AllowHost, AllowOrigin, NoAuth
from lmtool.cli.trace.files import Force

if TYPE_CHECKING:
    from lmtool.access.policy import AccessPolicy
    from lmtool.cli.output import Output
    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.trace.header import Header
    from lmtool.trace.proxy import Target
    from lmtool.trace.recorder import Recorder
    from lmtool.trace.recording import Recording
    from lmtool.trace.vocabulary import Spell
    from lmtool.types import TokenizerInfo


async def record(
    common: Common,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="URL", help="The server: ws://HOST:PORT/, http://HOST/v1, ...", show_default="--endpoint"
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one."),
    ] = "127.0.0.1:8081",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-O", metavar="FILE", help="Where to write; .gz packs.", show_default="a name with the date"
        ),
    ] = None,
    split: Annotated[
        Literal["none", "connection"], typer.Option("--split", help="connection: -O is a folder, one file for each.")
    ] = "none",
    redact: Annotated[
        str, typer.Option("--redact", metavar="LIST", help="Leave out headers, prompt, text; with commas.")
    ] = "headers",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="NAME", help="Folder or hub name; makes ids readable.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="What the trace shows.")] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A remark at its beginning.")] = None,
    no_time: Annotated[
        bool, typer.Option("--no-time", help="Number events: the same conversation gives the same file.")
    ] = False,
    inspect: Annotated[bool, typer.Option("--inspect", help="Show it meanwhile, as lmtool inspect does.")] = False,
    allow_origin: AllowOrigin = None,
    allow_host: AllowHost = None,
    no_auth: NoAuth = False,
    force: Force = False,
) -> None:
    """Stand between clients and a server, and record what they say. Ctrl-C ends the recording.

    Works for LMTP and other WebSockets, and for HTTP with server-sent events, such as any OpenAI-compatible server.
    Keys for the server are its clients' to send, and are passed on; --api-key is asked for by the recorder itself, in
    Proxy-Authorization (not passed on) or in the headers that servers read. No trace ever holds one.
    """
    from lmtool.cli.output import Output
    from lmtool.cli.serving import interrupts
    from lmtool.cli.serving.access import AccessConfig
    from lmtool.trace.proxy import Proxy
    from lmtool.trace.recording import Recording

    if inspect:
        from lmtool.cli.inspecting.screen import need_screen
        from lmtool.lmtp.endpoint import parse

        need_screen("--inspect")
    out, target, place = Output.of(common), clients_target(to or common.address), listen_config(listen)
    door = AccessConfig(common.api_key, tuple(allow_origin or ()), tuple(allow_host or ()), no_auth)
    policy = door.policy(place)
    for sentence in policy.warnings(public=place.public):
        out.warn(sentence)
    spell, info = spelling(tokenizer)
    header = _header(target, title, info, no_time=no_time)
    place_of_traces = _output(output, split)
    start = _starter(place_of_traces, header, redact, spell, note, split=split == "connection", force=force)
    clock = _clock()
    recording = Recording(start, out.warn, clock, split=split == "connection")
    if inspect:
        ask = parse(target.url, common.api_key) if target.url.startswith("ws") else None
        connections = await _inspected(out, recording, target, place, spell, policy=policy, ask=ask)
        _summary(out, recording, connections)
        return
    try:
        proxy = Proxy(target, recording.tell, out.warn, clock, policy=policy)
        sockets = bound(place, "--listen")
        await proxy.listen(sockets)
        url = proxy_url(place, sockets, target)
        out.note(f"recording {url} → {target.url} into {place_of_traces}    Ctrl-C ends it", "")
        with interrupts.watch() as asked:
            await asked.first.wait()
        await proxy.close()
    finally:
        await recording.close()
    _summary(out, recording, proxy.connections)


async def _inspected(
    out: Output,
    recording: Recording,
    target: Target,
    place: ListenConfig,
    spell: Spell | None,
    *,
    policy: AccessPolicy,
    ask: Endpoint | None,
) -> int:
    """Record until the inspector is left; how many connections there were."""
    from lmtool.cli.inspecting.choosing import Chooser, Wanted
    from lmtool.cli.inspecting.screen import default_options, watch
    from lmtool.tui.sources.proxy import ProxySource

    warnings: list[str] = []
    try:
        sockets = bound(place, "--listen")
        find = Chooser(Wanted(), warnings.append).find_tokenizer
        source = ProxySource(
            target,
            sockets,
            warnings.append,
            find_tokenizer=find,
            spell=spell,
            ask=ask,
            also=recording.tell,
            policy=policy,
        )
        source.url = proxy_url(place, sockets, target)
        await watch(source, default_options())
    finally:
        await recording.close()
        for sentence in warnings:
            out.warn(sentence)
    return source.connections


def spelling(name: str | None) -> tuple[Spell | None, TokenizerInfo | None]:
    """What ids mean by a tokenizer, and which one it is; None for no name. Raises what loading it raises."""
    if name is None:
        return None, None
    from lmtool.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(name)
    return tokenizer.piece, tokenizer.info


def _header(target: Target, title: str | None, info: TokenizerInfo | None, *, no_time: bool) -> Header:
    from lmtool import __version__
    from lmtool.trace.header import Header

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


def _output(output: Path | None, split: str) -> Path:
    if output is not None:
        return output
    stem = datetime.now(UTC).strftime("lmtool-%Y%m%d-%H%M%S")
    return Path(stem if split == "connection" else f"{stem}.lmtp.jsonl")


def _starter(
    output: Path, header: Header, redact: str, spell: Spell | None, note: str | None, *, split: bool, force: bool
) -> Callable[[int], Recorder]:
    import secrets
    from dataclasses import replace

    from lmtool.errors import FileError
    from lmtool.trace.events import Remark
    from lmtool.trace.recorder import Recorder
    from lmtool.trace.redaction import Redaction, parse
    from lmtool.trace.writer import TraceWriter

    what, salt = parse(redact), secrets.token_bytes(16)
    if split:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the folder {output}: {error.strerror}") from None

    def start(connection: int) -> Recorder:
        path = output / f"{connection:04}.lmtp.jsonl" if split else output
        writer = TraceWriter(path, replace(header, redacted=what), overwrite=force)
        recorder = Recorder(writer, Redaction(what, salt), spell)
        if note is not None:
            recorder.take([Remark(0.0, "note", 0, note)])
        return recorder

    return start


def _clock() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began


def _summary(out: Output, recording: Recording, connections: int) -> None:
    from lmtool.errors import ResourceError

    traces, events, tokens = recording.counts
    for key, times in recording.suspects.items():
        out.warn(f"the trace holds what looks like a key: {key} ({times} times); see: lmtool trace redact")
    files = "" if traces == 1 else f" in {traces} files"
    counted = f" · {tokens} tokens over LMTP" if tokens else ""
    out.note(f"{connections} connections · {events} events{counted}{files}", "")
    if recording.failed:
        raise ResourceError(f"the recording is not complete: {recording.failed}", "what was written can be read")
