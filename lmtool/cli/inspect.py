"""`lmtool inspect`: many streams, their probabilities, frames and time, live or from a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.serving.access import AccessConfig, AllowHost, AllowOrigin, NoAuth

if TYPE_CHECKING:
    from lmtool.cli.inspecting.choosing import Chooser
    from lmtool.cli.output import Output
    from lmtool.trace.filter import Filter
    from lmtool.tui.options import InspectorOptions

SOURCE = "What to watch"
LOOK = "How it looks"
WITHOUT = "Without a screen"


def _traces(incomplete: str) -> list[str]:
    """Traces and folders that a word on the command line may become."""
    folder, slash, begun = incomplete.rpartition("/")
    place = Path(folder + slash or ".")
    inside = sorted(place.iterdir()) if place.is_dir() else []
    wanted = [one for one in inside if one.name.startswith(begun) and not one.name.startswith(".")]
    return [
        f"{folder}{slash}{one.name}{'/' if one.is_dir() else ''}"
        for one in wanted
        if one.is_dir() or ".lmtp.jsonl" in one.name
    ]


async def inspect(
    common: Common,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="ws://HOST:PORT, a trace, or two traces to compare.  [default: the running server, else a demo]",
            show_default=False,
            autocompletion=_traces,
        ),
    ] = None,
    connect: Annotated[
        str | None,
        typer.Option("--connect", metavar="URL", help="LMTP server for branches of a trace.", rich_help_panel=SOURCE),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            "--proxy",
            metavar="LISTEN",
            help="Stand between clients and --to, such as 127.0.0.1:8081.",
            rich_help_panel=SOURCE,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="URL", help="The server behind --proxy: ws://, http://.../v1.", rich_help_panel=SOURCE
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Ask this at once (repeatable).", rich_help_panel=SOURCE),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, metavar="N", help="Of each answer.", rich_help_panel=SOURCE)
    ] = 128,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Which served model.", rich_help_panel=SOURCE)
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Folder or hub name; makes ids readable.",
            rich_help_panel=SOURCE,
            show_default="the server's, if it is here",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Record as a trace from the start.", rich_help_panel=SOURCE),
    ] = None,
    speed: Annotated[
        str, typer.Option(metavar="N|max", help="Times as fast as recorded; max shows the end.", rich_help_panel=LOOK)
    ] = "1",
    at: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Begin at this second, paused.", rich_help_panel=LOOK)
    ] = None,
    filter: Annotated[  # noqa: A002 - names the variable and the setting as well
        str,
        typer.Option(
            "--filter",
            metavar="EXPR",
            show_default=False,
            rich_help_panel=LOOK,
            help='Show these: sid:3 kind:score p<.1 rank>3 gap>50ms err "text" /re/ | ! ( ).',
        ),
    ] = "",
    heat: Annotated[
        Literal["prob", "surprisal", "entropy", "rank", "gap", "stream"],
        typer.Option(help="What colours tell.", rich_help_panel=LOOK),
    ] = "prob",
    view: Annotated[
        Literal["interleaved", "split", "text", "table"],
        typer.Option(help="How tokens are shown at first.", rich_help_panel=LOOK),
    ] = "interleaved",
    palette: Annotated[
        Literal["blue-orange", "green-red"],
        typer.Option(help="Of the heat; the first is safe for colour blindness.", rich_help_panel=LOOK),
    ] = "blue-orange",
    theme: Annotated[
        str, typer.Option(metavar="NAME", help="A theme of Textual.", rich_help_panel=LOOK)
    ] = "textual-dark",
    ascii: Annotated[  # noqa: A002 - as above
        bool, typer.Option("--ascii", help="Draw with ASCII only.", rich_help_panel=LOOK)
    ] = False,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="A line an event; so too where there is no terminal.", rich_help_panel=WITHOUT),
    ] = False,
    accessible: Annotated[
        bool, typer.Option("--accessible", help="Whole sentences as streams end, for speech.", rich_help_panel=WITHOUT)
    ] = False,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="SVG", help="Save a picture of a trace, and leave.", rich_help_panel=WITHOUT)
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="WxH", help="Of the snapshot, in characters.", rich_help_panel=WITHOUT)
    ] = "120x36",
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write one stream as .csv .md .ansi .svg .html or .lmtp.jsonl, and leave.",
            rich_help_panel=WITHOUT,
        ),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Which stream to export, such as 1/3.", show_default="the first", rich_help_panel=WITHOUT
        ),
    ] = None,
    exit_at: Annotated[
        Literal["end"] | None,
        typer.Option(help="Leave once everything was shown.", rich_help_panel=WITHOUT, show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.", rich_help_panel=WITHOUT)] = False,
    allow_origin: AllowOrigin = None,
    allow_host: AllowHost = None,
    no_auth: NoAuth = False,
) -> None:
    """Watch streams, probabilities, raw frames and time: live, between others, or from a trace.

    With no TARGET: the server at the default address, or, where none answers, four prompts racing on the embedded
    model. ? shows the keys, q quits. --api-key is shown to the server, and asked for by --proxy as by trace record.
    """
    from lmtool.cli.inspecting.choosing import Chooser, Wanted
    from lmtool.cli.inspecting.headless import has_screen
    from lmtool.cli.inspecting.screen import logs_told
    from lmtool.cli.output import Output
    from lmtool.cli.settings import load
    from lmtool.trace.filter import parse
    from lmtool.tui.options import InspectorOptions

    out = Output.of(common)
    chosen = parse(filter) if filter else None
    shows = not plain and not accessible and has_screen()
    options = InspectorOptions(
        theme=theme,
        heat=heat,
        palette=palette,
        mode=view,
        filter=filter,
        speed=_speed(speed),
        at=at,
        exit_at_end=exit_at is not None,
        record=record,
        keys=load(common.settings).keys,
        color=_color(common, drawn=snapshot is not None or export is not None),
        ascii=ascii,
    )
    files = [Path(target) for target in targets or ()]
    if export is not None or snapshot is not None:
        from lmtool.cli.inspecting import files as without

        file = _one_trace(files, "--export" if export is not None else "--snapshot")
        if export is not None:
            without.export(out, file, export, stream, options, force=force)
        if snapshot is not None:
            await without.snapshot(out, files, snapshot, size, options, force=force)
        return
    _only_with_proxy(common, proxy)
    warnings: list[str] = []
    wanted = Wanted(
        targets=tuple(targets or ()),
        endpoint=common.endpoint,
        default=common.address,
        connect=connect,
        proxy=proxy,
        to=to,
        access=AccessConfig(common.api_key, tuple(allow_origin or ()), tuple(allow_host or ()), no_auth),
        model=model,
        tokenizer=tokenizer,
        prompts=tuple(prompt or ()),
        tokens=max_tokens,
        stay=shows and exit_at is None,
    )
    chooser = Chooser(wanted, warnings.append if shows else out.warn)
    with logs_told(chooser.warn):
        if shows:
            await _on_screen(out, chooser, options, warnings)
        else:
            await _in_lines(out, chooser, options, chosen, sentences=accessible)


async def _in_lines(
    out: Output, chooser: Chooser, options: InspectorOptions, chosen: Filter | None, *, sentences: bool
) -> None:
    """Print what happens, without a screen."""
    from lmtool.cli.inspecting.choosing import is_address, is_file
    from lmtool.cli.inspecting.headless import print_trace, tell
    from lmtool.cli.trace.files import tell_ending
    from lmtool.errors import UsageError
    from lmtool.tui.sources.connect import ConnectSource

    wanted = chooser.wanted
    files = [target for target in wanted.targets if not is_address(target)]
    if len(files) == len(wanted.targets) == 1 and is_file(files[0]):
        tell_ending(out, print_trace(out, files[0], chosen=chosen, sentences=sentences))
        return
    if len(wanted.targets) > 1:
        raise UsageError("two traces are compared on a screen", f"in lines:  lmtool trace diff {' '.join(files)}")
    source = await chooser.choose()
    if isinstance(source, ConnectSource) and not wanted.prompts:
        raise UsageError(
            f"{source.title}: without a keyboard somebody has to ask something",
            'ask:           lmtool inspect --prompt "Once upon a time"',
            "watch others:  lmtool inspect --proxy 127.0.0.1:8081 --to URL",
        )
    try:
        if options.record is not None:
            source.start_recording(options.record)
        await tell(out, source, chosen=chosen, sentences=sentences)
    finally:
        done = await source.stop_recording()
        await source.close()
    if done is not None:
        counted = f" · {done.tokens} tokens over LMTP" if done.tokens else ""
        out.note(f"recorded into {done.path}: {done.events} events{counted}")


async def _on_screen(out: Output, chooser: Chooser, options: InspectorOptions, warnings: list[str]) -> None:
    """Open the inspector, and tell afterwards what could not be told on its screen."""
    from lmtool.cli.inspecting.screen import open_inspector

    try:
        status = await open_inspector(chooser, options)
    finally:
        for sentence in warnings:
            out.warn(sentence)
    if status:
        raise typer.Exit(status)


def _only_with_proxy(common: Common, proxy: str | None) -> None:
    """Raise `UsageError` for options of a port where none is opened."""
    from lmtool.errors import UsageError

    if proxy is None and (typed := common.typed & {"allow_origin", "allow_host", "no_auth"}):
        raise UsageError(f"--{min(typed).replace('_', '-')} is of a port, which only --proxy opens", "leave it out")


def _one_trace(files: list[Path], option: str) -> Path:
    from lmtool.errors import UsageError

    if not files:
        raise UsageError(f"{option} needs a trace", f"lmtool inspect NAME.lmtp.jsonl {option} ...")
    return files[0]


def _speed(text: str) -> float:
    from lmtool.cli.trace.serve import speed_of

    speed = speed_of(text)
    return float("inf") if speed is None else speed


def _color(common: Common, *, drawn: bool) -> bool:
    """Whether colours are welcome. drawn: in a file, where no terminal can be asked."""
    import os
    import sys

    from lmtool.cli.output import wants_color

    if drawn:
        return common.color != "never" and not os.environ.get("NO_COLOR")
    return wants_color(sys.stderr, common.color)
