"""`lmtool trace record`: a proxy that records, for any client and any server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import Force

if TYPE_CHECKING:
    from lmtool.cli.output import Output
    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.trace.header import Header
    from lmtool.trace.proxy import Proxy, Target
    from lmtool.trace.recorder import Recorder, Spell
    from lmtool.trace.recording import Recording
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
    force: Force = False,
) -> None:
    """Stand between clients and a server, and record what they say. Ctrl-C ends the recording.

    Works for LMTP and other WebSockets, and for HTTP with server-sent events, such as any OpenAI-compatible server.
    """
    from lmtool.cli.output import Output
    from lmtool.cli.serving import interrupts
    from lmtool.trace.proxy import Proxy, parse_target
    from lmtool.trace.recording import Recording

    out, target, place = Output.of(common), parse_target(to or common.url), _listen_config(listen)
    spell, info = _spelling(tokenizer)
    header = _header(target, title, info, no_time=no_time)
    place_of_traces = _output(output, split)
    start = _starter(place_of_traces, header, redact, spell, note, split=split == "connection", force=force)
    clock = _clock()
    recording = Recording(start, out.warn, clock, split=split == "connection")
    try:
        proxy = Proxy(target, recording.tell, out.warn, clock)
        url = await _listen(proxy, place, target)
        out.note(f"recording {url} → {target.url} into {place_of_traces}    Ctrl-C ends it", "")
        with interrupts.watch() as asked:
            await asked.first.wait()
        await proxy.close()
    finally:
        await recording.close()
    _summary(out, recording, proxy.connections)


async def _listen(proxy: Proxy, place: ListenConfig, target: Target) -> str:
    from lmtool.cli.serving import listening
    from lmtool.errors import ResourceError

    try:
        sockets = listening.bind(place)
    except ResourceError as error:
        raise ResourceError(error.message, "another one:  --listen 127.0.0.1:0     (0 picks a free port)") from error
    await proxy.listen(sockets)
    scheme = "http" if target.url.startswith("http") else "ws"
    path = target.path if scheme == "http" else "/"
    return f"{scheme}{listening.url(place, sockets).removeprefix('ws').rstrip('/')}{path}"


def _listen_config(text: str) -> ListenConfig:
    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.errors import UsageError

    found = re.fullmatch(r"(?:(?P<host>.*):)?(?P<port>\d{1,5})", text)
    if found is None or int(found["port"]) > 65535:
        raise UsageError(f"cannot listen on {text!r}", "write HOST:PORT, :PORT or PORT, such as 127.0.0.1:8081")
    return ListenConfig((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))


def _spelling(name: str | None) -> tuple[Spell | None, TokenizerInfo | None]:
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
    out.note(f"{connections} connections · {events} events · {tokens} tokens{files}", "")
    if recording.failed:
        raise ResourceError(f"the recording is not complete: {recording.failed}", "what was written can be read")
