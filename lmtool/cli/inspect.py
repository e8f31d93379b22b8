"""`lmtool inspect`: streams with their probabilities, frames and timing, live or from a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.common_options import ClientCommon
from lmtool.serving.access_config import AccessConfig
from lmtool.settings.option import option
from lmtool.terminal.tui.options import LOOK, InspectorOptions, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.settings.terminal import Output
    from lmtool.terminal.tui.sources.choice import SourceFactory
    from lmtool.trace.filter import Filter

WITHOUT = "Without a screen"


def _traces(incomplete: str) -> list[str]:
    """Traces and folders that complete a word on the command line."""
    folder, slash, begun = incomplete.rpartition("/")
    place = Path(folder + slash or ".")
    inside = sorted(place.iterdir()) if place.is_dir() else []
    candidates = [one for one in inside if one.name.startswith(begun) and not one.name.startswith(".")]
    return [
        f"{folder}{slash}{one.name}{'/' if one.is_dir() else ''}"
        for one in candidates
        if one.is_dir() or ".lmtp.jsonl" in one.name
    ]


async def inspect(
    common: ClientCommon,
    access: AccessConfig,
    source: SourceOptions,
    look: InspectorOptions,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="ws://HOST:PORT, a trace, or two traces to compare.  [default: the running server, or a demo]",
            show_default=False,
            autocompletion=_traces,
        ),
    ] = None,
    speed: str = option(
        "1", "Playback speed as a multiple of the recorded speed; max shows the end.", LOOK, metavar="N|max"
    ),
    plain: bool = option(False, "Print one line per event; the default without a terminal.", WITHOUT),
    accessible: bool = option(False, "Print a sentence when a stream ends, for screen readers.", WITHOUT),
    snapshot: Path | None = option(None, "Save a picture of a trace and exit.", WITHOUT, metavar="SVG"),
    size: str = option("120x36", "Size of the snapshot in characters.", WITHOUT, metavar="WxH"),
    export: Path | None = option(
        None, "Write one stream as .csv .md .ansi .svg .html or .lmtp.jsonl and exit.", WITHOUT, metavar="FILE"
    ),
    stream: str | None = option(
        None, "Stream to export, such as 1/3.", WITHOUT, shown_default="the first", metavar="ID"
    ),
    exit_at: Literal["end"] | None = option(None, "Exit when everything has been shown.", WITHOUT),
    force: bool = option(False, "Overwrite existing files.", WITHOUT),
) -> None:
    """Watch streams, probabilities, raw frames and timing: live, through a proxy, or from a trace.

    Without TARGET, connects to the server at the default address and shows the streams of all its clients if it allows
    that (your own server always does). If no server answers, four prompts run on the included model. Press ? for the
    keys, q to quit. --api-key is sent to the server; clients of --proxy must send it, as with trace record.
    """
    from lmtool.cli.inspect_servers import warnings_to
    from lmtool.cli.settings import load
    from lmtool.cli.trace.serve import parse_speed
    from lmtool.terminal.chat.peer import local_tokenizer
    from lmtool.terminal.tui import headless
    from lmtool.terminal.tui.sources.choice import SourceFactory
    from lmtool.trace.filter import parse

    out = common.output()
    if source.text is not None:
        source = replace(source, content=_text_of(source.text))
    expression = parse(look.filter) if look.filter else None
    shows = not plain and not accessible and headless.has_screen()
    factor = parse_speed(speed)
    options = replace(
        look,
        speed=float("inf") if factor is None else factor,
        exit_at_end=exit_at is not None,
        keys=load(common.settings).keys,
        color=_color(common, drawn=snapshot is not None or export is not None),
        source_words=_source_words(targets or (), source),
    )
    files = [Path(target) for target in targets or ()]
    if export is not None or snapshot is not None:
        file = _one_trace(files, "--export" if export is not None else "--snapshot")
        if export is not None:
            out.note(headless.export(file, export, stream, options, force=force))
        if snapshot is not None:
            out.note(await headless.save_snapshot(files, snapshot, size, options, force=force))
        return
    if options.record is not None and force:
        _make_room(options.record)
    _only_with_proxy(common, source.proxy)
    warnings: list[str] = []
    warn = warnings.append if shows else out.warn
    choice = replace(
        source,
        targets=tuple(targets or ()),
        endpoint=common.endpoint,
        default=common.address,
        api_key=common.api_key,
        stay=shows and exit_at is None,
    )
    factory = SourceFactory(choice, warn, access, local_tokenizer)
    with warnings_to(warn):
        if shows:
            await _on_screen(out, factory, options, warnings)
        else:
            await _in_lines(out, factory, options, expression, sentences=accessible)


def _source_words(targets: Sequence[str], source: SourceOptions) -> tuple[str, ...]:
    """Command-line words that open the same source again, without credentials."""
    from lmtool.net.access.credentials import without_query_keys
    from lmtool.net.access.outgoing import split_url
    from lmtool.terminal.tui.sources.choice import is_address

    words = [split_url(target)[0] if is_address(target) else target for target in targets]
    named = [("--proxy", source.proxy), ("--to", source.to), *(("--connect", url) for url in source.connect)]
    for flag, url in named:
        words += [flag, without_query_keys(split_url(url)[0])] if url is not None else []
    words += [] if source.text is None else ["--text", source.text]
    return tuple(words)


def _text_of(name: str) -> str:
    """The text of a file, or of stdin, which is then the terminal again. Raises `FileError` or `UsageError`."""
    import os
    import sys
    from contextlib import suppress

    from lmtool.core.errors import UsageError
    from lmtool.settings.score_input import read_text
    from lmtool.terminal.chat.prompt import read_stdin

    if name != "-":
        return read_text(name)
    text = read_stdin(sys.stdin)
    if not text:
        raise UsageError("--text - reads stdin, which is empty", "pipe a text in:  cat FILE | lmtool inspect --text -")
    with suppress(OSError):  # without a terminal there is no screen either
        terminal = os.open("/dev/tty", os.O_RDONLY)
        os.dup2(terminal, 0)
        os.close(terminal)
    return text


def _make_room(record: Path) -> None:
    from lmtool.core.errors import FileError

    try:
        record.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot replace {record}: {error.strerror}") from None


async def _in_lines(
    out: Output, factory: SourceFactory, options: InspectorOptions, expression: Filter | None, *, sentences: bool
) -> None:
    """Print events or sentences, without a screen."""
    from lmtool.core.errors import UsageError
    from lmtool.serving import interrupts
    from lmtool.terminal.tui.headless import print_source
    from lmtool.terminal.tui.sources.choice import is_address, is_file

    targets = factory.options.targets
    files = [target for target in targets if not is_address(target)]
    if len(files) == len(targets) == 1 and is_file(files[0]):
        _print_trace(out, files[0], expression, sentences=sentences)
        return
    if len(targets) > 2:
        raise UsageError(f"{len(targets)} traces were given, but at most two can be compared", "name one or two")
    if len(factory.options.connect) > 1 and factory.options.text is not None:
        scored = " and ".join(f"lmtool score {factory.options.text} -e {url}" for url in factory.options.connect)
        raise UsageError("two models side by side need a terminal", f"as text:  {scored}")
    if len(targets) > 1:
        raise UsageError(
            "two traces side by side need a terminal",
            f"as text:  lmtool trace diff {' '.join(files)}",
        )
    source = await factory.make()
    try:
        if options.record is not None:
            source.start_recording(options.record)
        with interrupts.watch() as interrupt:
            await print_source(out.line, source, interrupt.first, expression=expression, sentences=sentences)
    finally:
        recorded = source.recording
        await source.close()
    if recorded is not None and recorded.events:
        tokens = f" · {recorded.tokens} tokens over LMTP" if recorded.tokens else ""
        out.note(f"recorded into {recorded.path}: {recorded.events} events{tokens}")


def _print_trace(out: Output, path: str, expression: Filter | None, *, sentences: bool) -> None:
    from lmtool.cli.trace.files import warn_if_incomplete
    from lmtool.terminal.tui.headless import print_trace

    printed = 0

    def put(line: str) -> None:
        nonlocal printed
        printed += 1
        out.line(line)

    reader = print_trace(put, path, expression=expression, sentences=sentences)
    if expression is not None and not printed:
        out.note_nothing_passed(expression.source)
    warn_if_incomplete(out, reader)


async def _on_screen(out: Output, factory: SourceFactory, options: InspectorOptions, warnings: list[str]) -> None:
    """Open the inspector; print warnings after it closes."""
    try:
        status = await _open(factory, options)
    finally:
        for sentence in warnings:
            out.warn(sentence)
    if status:
        raise typer.Exit(status)


async def _open(factory: SourceFactory, options: InspectorOptions) -> int:
    """Watch until the user quits; returns an exit status. Errors of a source are raised before the screen opens."""
    from contextlib import closing

    from lmtool.terminal.tui.app import run_inspector
    from lmtool.terminal.tui.event_store import EventStore, TraceFile
    from lmtool.terminal.tui.sources.choice import is_address
    from lmtool.terminal.tui.sources.source import FileSource

    targets = factory.options.targets
    if len(targets) == 2 and not any(is_address(target) for target in targets):
        with closing(TraceFile(targets[1])) as other:
            return await run_inspector(TraceFile(targets[0]), None, options, other)
    source = await factory.make()
    if isinstance(source, FileSource):
        answers = source.takes_requests or source.takes_http
        return await run_inspector(source.file, source if answers else None, options)
    second = factory.make_second()
    return await run_inspector(EventStore(), source, options, None if second is None else EventStore(), second)


def _only_with_proxy(common: ClientCommon, proxy: str | None) -> None:
    """Raise `UsageError` for port options without --proxy."""
    from lmtool.core.errors import UsageError

    if proxy is None and (typed := common.typed & {"allow_origin", "allow_host", "no_auth"}):
        raise UsageError(f"--{min(typed).replace('_', '-')} is a port option, and only --proxy opens a port", "omit it")


def _one_trace(files: list[Path], option: str) -> Path:
    from lmtool.core.errors import UsageError

    most = 1 if option == "--export" else 2
    if not files:
        raise UsageError(f"{option} needs a trace", f"lmtool inspect NAME.lmtp.jsonl {option} ...")
    if len(files) > most:
        raise UsageError(f"{option} takes {most} of the {len(files)} given traces", "omit the others")
    return files[0]


def _color(common: ClientCommon, *, drawn: bool) -> bool:
    """True if colours are used. drawn: into a file, which has no terminal."""
    import os
    import sys

    from lmtool.settings.terminal import wants_color

    if drawn:
        return common.color != "never" and not os.environ.get("NO_COLOR")
    return wants_color(sys.stderr, common.color)
