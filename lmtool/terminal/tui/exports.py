"""One stream as a trace, table, document, coloured text, picture or page; and the beginning of a late recording."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from rich.color import Color

from lmtool.core.errors import UsageError
from lmtool.core.logprobs.distribution import probability
from lmtool.core.logprobs.heat import COLORS, THOUGHT_COLORS, THOUGHT_INK, legend
from lmtool.core.logprobs.numbers import short
from lmtool.protocol.lmtp.frames import stream_key, stream_name
from lmtool.settings.terminal import hidden_shown
from lmtool.terminal.tui.runs import visible, width
from lmtool.trace import formats
from lmtool.trace.codec import Header
from lmtool.trace.events import Frame, JsonText, Open, Request, Response, Vocab
from lmtool.trace.writer import write_text, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from textual.app import App

    from lmtool.core.logprobs.heat import Palette
    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.terminal.tui.event_store import EventStore, TraceFile
    from lmtool.terminal.tui.state import State
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.view import View
    from lmtool.trace.events import Event

ShownToken: TypeAlias = "tuple[str, str, str]"
"""Text, style (such as `heat3`), and a line of figures."""

FONTS = "'DejaVu Sans Mono', 'Menlo', 'Consolas', monospace"
COLUMNS = 88
"""Width of pictures in characters."""
_LINE, _CHARACTER = 20, 8.43
"""Pixels of a line's height and of a character's width, at 14 pixels a DejaVu Sans Mono character."""


def picture(app: App[int]) -> str:
    """An SVG of the screen that looks the same everywhere: with a monospaced font of the machine, none is fetched."""
    return without_web_fonts(app.export_screenshot())


def without_web_fonts(svg: str) -> str:
    """A picture of rich, which would load a font from elsewhere, with fonts of the machine."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    return re.sub(r"font-family:\s*Fira Code[^;]*;", f"font-family: {FONTS};", svg)


def form_of(path: Path) -> str:
    """The form that a file's name means. Raises `UsageError`."""
    for name, form in FORMS.items():
        if path.name.endswith(form.ending):
            return name
    endings = ", ".join(form.ending for form in FORMS.values())
    raise UsageError(f"{path.name} has no ending that says what to write", f"one of {endings}")


def write(form: str, view: View, folder: Path) -> Path:
    """Write the stream under the cursor into a new file of this folder, named after it. Raises `FileError`."""
    stream = view.current
    if stream is None:
        raise UsageError("there is no stream yet")
    path = free_path(folder, f"stream-{re.sub(r'[^A-Za-z0-9.]+', '-', stream.label)[:80]}", FORMS[form].ending)
    write_to(path, form, view, stream)
    return path


def free_path(folder: Path, stem: str, ending: str) -> Path:
    """An unused path in this folder, with a number from 2 if needed."""
    names = (f"{stem}{'' if number == 1 else f'-{number}'}{ending}" for number in count(1))
    return next(path for name in names if not (path := folder / name).exists())


def write_to(path: Path, form: str, view: View, stream: Stream, *, overwrite: bool | None = None) -> None:
    """Write a stream up to the moment into a file. overwrite: as for `TraceWriter`. Raises `FileError`."""
    texts = FORMS[form].texts
    if texts is None:
        known = {"name": view.state.model, "vocab_size": view.state.vocab_size}
        model = {name: value for name, value in known.items() if value is not None}
        header = Header(by="lmtool inspect", title=f"stream {stream.label}", model=model, json="msgspec")
        write_trace(path, header, events_of(view, stream), overwrite=overwrite)
        return
    write_text(path, "".join(texts(view, stream)), overwrite=overwrite)


def events_of(view: View, stream: Stream) -> Iterator[Event]:
    """Events of one stream alone: its connection, vocabulary, request and outputs."""
    request = view.lines.event(stream.frame)
    yield Open(request.time, stream.connection, {"peer": "client"})
    if vocabulary := _vocabulary(view, stream):
        special = view.state.texts.special_names
        yield Vocab(request.time, 0, vocabulary, {i: special[i] for i in vocabulary if i in special})
    yield request
    for frame in _frames(view, stream):
        event = view.lines.event(frame)
        yield without_other_streams(event, {stream.label})


def _frames(view: View, stream: Stream) -> list[int]:
    """Frames of the stream after its request: tokens and ending; over HTTP all frames up to the ending."""
    state, rows = view.state, stream.rows[: stream.count(view.token_count)]
    frames = dict.fromkeys(state.tokens.frames[row] for row in rows)
    last = next(reversed(frames), stream.frame)
    if stream.api is not None:
        frames |= dict.fromkeys(
            f for f in range(stream.frame + 1, last + 1) if state.frames.connections[f] == stream.connection
        )
    if stream.ended is None or stream.ended > view.time:
        return sorted(frames)
    for frame in range(last, len(state.frames)):
        if state.frames.times[frame] > stream.ended:
            break
        if state.frames.connections[frame] == stream.connection and frame != stream.frame:
            event = view.lines.event(frame)
            if own_entries(event, {stream.label}) or not isinstance(event, Frame | Request | Response):
                frames[frame] = None
    return sorted(frames)


def _vocabulary(view: View, stream: Stream) -> dict[int, str | bytes]:
    state = view.state
    ids = {state.tokens.ids[row] for row in stream.rows}
    ids |= {token for row in stream.rows for token, _ in view.measures.alternatives(row) if isinstance(token, int)}
    ids |= {*stream.generated, *(stream.prompt if not isinstance(stream.prompt, str) else ())}
    return {
        token: state.texts.piece(token)
        for token in sorted(ids)
        if token >= 0 and state.texts.spelling(token) is not None
    }


def tokens_of(view: View, stream: Stream) -> list[ShownToken]:
    """The tokens up to the moment: text, style, and a line of figures for each."""
    rows = stream.rows[: stream.count(view.token_count)]
    return [(view.state.texts.text_at(stream, i), view.style(row), _figures(view, row)) for i, row in enumerate(rows)]


def _figures(view: View, row: int) -> str:
    parts = ["thought"] if view.state.is_thought(row) else []
    logprob = view.state.tokens.logprob(row)
    if logprob is not None:
        parts.append(f"p {probability(logprob):.3g}")
    if (rank := view.measures.rank(row)) is not None:
        parts.append(f"rank {rank}")
    top = [f"{view.measures.quote(token)} {probability(p):.3g}" for token, p in view.measures.alternatives(row)[:5]]
    return " · ".join([*parts, *top])


def _ansi(view: View, stream: Stream) -> Iterator[str]:
    for text, style, _ in tokens_of(view, stream):
        safe = "\n".join(map(visible, text.split("\n")))
        codes = ";".join(_sgr(style, view.palette))
        if not codes:
            yield safe
            continue
        yield "\n".join(f"\x1b[{codes}m{part}\x1b[0m" if part else "" for part in safe.split("\n"))
    yield "\n"


def _sgr(style: str, palette: Palette) -> Iterator[str]:
    ink, ground = _colors(style, palette)
    if _is_thought(style):
        yield "3"
    if ink is not None:
        yield f"38;5;{ink}"
    if ground is not None:
        yield f"48;5;{ground}"


def _is_thought(style: str) -> bool:
    return style.startswith("thought")


def _colors(style: str, palette: Palette) -> tuple[int | None, int | None]:
    """Text and background of a style among the 256 colours; None for the default."""
    if style.startswith("heat"):
        return COLORS[palette][int(style[4:])]
    if style.startswith("thought") and style != "thought":
        return THOUGHT_COLORS[int(style[7:])]
    return THOUGHT_INK if style == "thought" else None, None


def _svg(view: View, stream: Stream) -> Iterator[str]:
    lines = _wrapped(tokens_of(view, stream))
    high, wide = (len(lines) + 3) * _LINE, round((COLUMNS + 2) * _CHARACTER)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">\n'
        f"<style>text {{ font: 14px {FONTS}; white-space: pre }}</style>\n"
        f'<rect width="{wide}" height="{high}" rx="6" fill="#121212"/>\n'
        f'<text x="{_CHARACTER}" y="{_LINE}" fill="#9e9e9e">{_escaped(_title(view, stream))}</text>\n'
    )
    for number, line in enumerate(lines, 2):
        yield from _svg_line(line, number * _LINE, view.palette)
    yield f'<text x="{_CHARACTER}" y="{high - 8}" fill="#9e9e9e">{_escaped(_scale(view))}</text>\n</svg>\n'


def _svg_line(line: list[tuple[str, str]], y: int, palette: Palette) -> Iterator[str]:
    column = 1
    for text, style in line:
        x, wide = column * _CHARACTER, width(text) * _CHARACTER
        foreground, background = _colors(style, palette)
        ink = "#e0e0e0" if foreground is None else rgb(foreground)
        slant = ' font-style="italic"' if _is_thought(style) else ""
        if background is not None:
            yield f'<rect x="{x:.1f}" y="{y - 15}" width="{wide:.1f}" height="{_LINE}" fill="{rgb(background)}"/>'
        yield f'<text x="{x:.1f}" y="{y}" fill="{ink}"{slant} textLength="{wide:.1f}">{_escaped(text)}</text>\n'
        column += width(text)


def _wrapped(tokens: list[ShownToken]) -> list[list[tuple[str, str]]]:
    """Tokens in lines; a token that does not fit begins the next line."""
    lines: list[list[tuple[str, str]]] = [[]]
    column = 0
    for text, style, _ in tokens:
        for place, part in enumerate(text.split("\n")):
            if place:
                lines.append([])
                column = 0
            safe = visible(part)
            if column + width(safe) > COLUMNS and column:
                lines.append([])
                column = 0
            if safe:
                lines[-1].append((safe, style))
                column += width(safe)
    return lines


def _title(view: View, stream: Stream) -> str:
    prompt = " ".join(visible(view.state.prompt_text(stream)).split())
    return f"{stream.label} {stream.model or view.state.model or ''}  {prompt}"[:COLUMNS]


def _scale(view: View) -> str:
    return f"{view.heat}: " + "  ".join(label for label, _ in legend(view.heat))


def _html(view: View, stream: Stream) -> Iterator[str]:
    scales = {"heat": COLORS[view.palette], "thought": THOUGHT_COLORS}
    colors = "\n".join(
        f".{name}{step} {{ color: {rgb(ink)}; background: {rgb(ground)} }}"
        for name, scale in scales.items()
        for step, (ink, ground) in enumerate(scale)
    )
    title = _escaped(_title(view, stream))
    yield (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n<style>\n'
        "body { background: #121212; color: #e0e0e0; font: 16px/1.6 monospace; max-width: 60em; margin: 2em auto }\n"
        f"pre {{ white-space: pre-wrap; font: inherit }}\n{colors}\n"
        f"[class^=thought] {{ font-style: italic }} .thought {{ color: {rgb(THOUGHT_INK)} }}\n</style>\n"
        f"<h1>{title}</h1>\n<p>{_escaped(_scale(view))}\n<pre>"
    )
    for text, style, figures in tokens_of(view, stream):
        kind = f' class="{style}"' if style.startswith(("heat", "thought")) else ""
        yield f'<span{kind} title="{_escaped(figures)}">{_escaped(text)}</span>'
    ending = stream.phase(view.time, view.token_count)
    yield f"</pre>\n<p>{stream.count(view.token_count)} tokens · {ending}{_perplexity(view, stream)}\n</html>\n"


def _perplexity(view: View, stream: Stream) -> str:
    perplexity = stream.perplexity(stream.count(view.token_count))
    mode = "" if stream.logprobs_mode in (None, "raw") else f" ({stream.logprobs_mode})"
    return "" if perplexity is None else f" · perplexity {short(perplexity)}{mode}"


def _escaped(text: str) -> str:
    return html.escape(hidden_shown(text, keep="\n\t"))


def rgb(number: int) -> str:
    """Web colour `#rrggbb` of one of the 256 terminal colours."""
    return Color.from_ansi(number).get_truecolor().hex


@dataclass(frozen=True, slots=True)
class Form:
    """A form that a stream can be written in."""

    ending: str
    """Ending of the file's name."""
    sentence: str
    """Description."""
    texts: Callable[[View, Stream], Iterator[str]] | None
    """Content in pieces; None for a trace."""


FORMS: Mapping[str, Form] = {
    "trace": Form(".lmtp.jsonl", "a trace with this stream alone", None),
    "csv": Form(".csv", "a table: one row a token", lambda v, s: formats.as_csv(Header(), events_of(v, s), s.choice)),
    "markdown": Form(
        ".md",
        "a document: request and text",
        lambda v, s: formats.as_markdown(Header(title=f"Stream {s.label}"), events_of(v, s), s.choice),
    ),
    "ansi": Form(".ansi", "text with colours, for less -R", _ansi),
    "svg": Form(".svg", "a picture of the coloured text", _svg),
    "html": Form(".html", "a page: point at a token to see its alternatives", _html),
}


def preamble(lines: EventStore | TraceFile) -> list[Event]:
    """Requests and answers of running live streams alone, in order.

    A stream whose request is not known is left out, as it would be in a recording from the beginning.
    """
    state = lines.state
    running = [
        stream
        for stream in state.streams
        if stream.ended is None and stream.frame >= lines.live_from and stream.has_request
    ]
    frames = {frame for stream in running for frame in _frames_so_far(state, stream)}
    labels = {stream.label for stream in running}
    return [without_other_streams(lines.whole(frame), labels) for frame in sorted(frames)]


def _frames_so_far(state: State, stream: Stream) -> Iterable[int]:
    """Frames of its request and tokens; over HTTP all frames since the request."""
    if stream.api is None:
        return (stream.frame, *(state.tokens.frames[row] for row in stream.rows))
    later = range(stream.frame + 1, len(state.frames))
    return (stream.frame, *(frame for frame in later if state.frames.connections[frame] == stream.connection))


def own_entries(event: Event, labels: Collection[str]) -> list[Entry]:
    """Entries of a server's frame that belong to these streams."""
    if not isinstance(event, Frame):
        return []
    named = ((stream_name(stream_key(one.get("stream_id"))), one) for one in event.answer()[1])
    return [one for name, one in named if f"{event.connection}/{name}" in labels]


def without_other_streams(event: Event, labels: Collection[str]) -> Event:
    """A server's frame without the entries of other streams; any other event as it is."""
    if not isinstance(event, Frame):
        return event
    (command, entries), own = event.answer(), own_entries(event, labels)
    if len(own) == len(entries):
        return event
    if isinstance(event.content, JsonText):
        return replace(event, content=replace(event.content, value=own))
    return replace(event, content=f"{command} {json.dumps(own)}")  # with what JSON cannot say, such as -Infinity
