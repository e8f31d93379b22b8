"""Options of the inspector: sources and looks. Each setting is also an option of its command."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the command line reads annotations
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from lmtool.core.logprobs.heat import HeatMode, Palette  # noqa: TC001 - as above
from lmtool.core.sampling_parameters import PROMPT_MAX_TOKENS
from lmtool.settings.option import option

Mode: TypeAlias = Literal["split", "interleaved", "text", "table"]
SOURCE = "What to watch"
LOOK = "How it looks"


@dataclass(frozen=True, slots=True, repr=False)
class SourceOptions:
    """Sources and requests; addresses may contain credentials."""

    connect: tuple[str, ...] = option(
        (), "Server for branches of a trace; twice with --text: two models.", SOURCE, metavar="URL"
    )
    """Also the server for branches of an HTTP proxy."""
    text: str | None = option(None, "Have the server score this file's text; - is stdin.", SOURCE, metavar="FILE")
    proxy: str | None = option(
        None, "Stand between clients and --to, such as 127.0.0.1:8081.", SOURCE, metavar="LISTEN"
    )
    to: str | None = option(None, "The server behind --proxy: ws://, http://.../v1.", SOURCE, metavar="URL")
    prompts: tuple[str, ...] = option(
        (),
        "Send this at once (repeatable); it may end in max_tokens=50 and the like.",
        SOURCE,
        flag="--prompt",
        short="-p",
        metavar="TEXT",
    )
    max_tokens: int = option(
        PROMPT_MAX_TOKENS, "Of each answer that does not say.", SOURCE, short="-n", metavar="N", minimum=1
    )
    model: str | None = option(None, "Which served model.", SOURCE, short="-m", metavar="NAME")
    tokenizer: str | None = option(
        None,
        "Folder or hub name; makes ids readable.",
        SOURCE,
        metavar="NAME",
        shown_default="the server's, if it is here",
    )
    targets: tuple[str, ...] = ()
    """A URL, a file, or two files."""
    endpoint: str | None = None
    """Server of `--endpoint`."""
    default: str = ""
    """Server to try if none is given."""
    api_key: str | None = None
    """API key sent to servers."""
    content: str = ""
    """Text to score."""
    stay: bool = True
    """False to exit once the prompts are answered."""


@dataclass(frozen=True, slots=True)
class InspectorOptions:
    """Options with defaults: `InspectorOptions()` follows a live source, in colour."""

    record: Path | None = option(None, "Record as a trace from the start.", SOURCE, metavar="FILE")
    at: float | None = option(None, "Begin at this second, paused.", LOOK, metavar="S", minimum=0)
    """None shows the end of files, and live sources as they come."""
    filter: str = option(
        "", 'Show these: sid:3 kind:score p<.1 rank>3 gap>50ms err "text" /re/ | ! ( ).', LOOK, metavar="EXPR"
    )
    """In the grammar of `lmtool.trace.filter`; empty shows everything."""
    heat: HeatMode = option("prob", "What colours tell.", LOOK)
    mode: Mode = option("split", "How tokens are shown at first.", LOOK, flag="--view")
    palette: Palette = option("blue-orange", "Of the heat; the first is safe for colour blindness.", LOOK)
    theme: str = option("textual-dark", "A theme of Textual.", LOOK, metavar="NAME")
    """`textual-ansi` keeps the terminal's own sixteen colours."""
    ascii: bool = option(False, "Draw with ASCII only.", LOOK)
    speed: float = 1.0
    """Playback speed of a file, in trace seconds per second; `inf` shows its end at once."""
    exit_at_end: bool = False
    """Exit once the source has ended and everything was shown."""
    tips: bool = option(True, "A tip at the start, at most once a day.", LOOK)
    source_words: tuple[str, ...] = ()
    """Words that name the source on a command line, without credentials."""
    folder: Path = Path()
    """Folder for snapshots, exports and recordings."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of an action by its id (`lmtool.terminal.tui.action.ACTIONS`), comma-separated; from `[inspect.keys]`."""
    color: bool = True
    """False to use no colours: the heat is then dim, bold and underlined."""
