"""One stream in forms for elsewhere: a trace, a table, a document, coloured text for terminals, pictures, pages."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, TypeAlias

from lmtool.errors import FileError, UsageError
from lmtool.logprobs.distribution import probability
from lmtool.trace import exports as trace_exports
from lmtool.trace.events import Frame, Open, Request, Response, Vocab
from lmtool.trace.header import Header
from lmtool.trace.writer import TraceWriter
from lmtool.tui.heat import COLORS, legend, short
from lmtool.tui.preamble import own_entries, without_other_streams
from lmtool.tui.runs import visible, width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from lmtool.trace.events import Event
    from lmtool.tui.heat import Palette
    from lmtool.tui.streams import Stream
    from lmtool.tui.view import View

Shown: TypeAlias = "tuple[str, str, str]"
"""Text that can be shown, style (such as `heat3`), and what is known of it."""

FORMS: Mapping[str, str] = {
    "trace": "a trace with this stream alone (.lmtp.jsonl)",
    "csv": "a table: one row a token (.csv)",
    "markdown": "a document: request and text (.md)",
    "ansi": "text with colours, for less -R (.ansi)",
    "svg": "a picture of the coloured text (.svg)",
    "html": "a page: point at a token to see its alternatives (.html)",
}
"""Forms and what they are."""
ENDINGS: Mapping[str, str] = {
    "trace": ".lmtp.jsonl", "csv": ".csv", "markdown": ".md", "ansi": ".ansi", "svg": ".svg", "html": ".html",
}  # fmt: skip
COLUMNS = 88
"""Of pictures, in characters."""
_LINE, _CHARACTER = 20, 8.43
"""Pixels of a line's height and of a character's width, at 14 pixels a DejaVu Sans Mono character."""


def form_of(path: Path) -> str:
    """The form that a file's name means. Raises `UsageError`."""
    for form, ending in ENDINGS.items():
        if path.name.endswith(ending):
            return form
    raise UsageError(f"{path.name} has no ending that says what to write", f"one of {', '.join(ENDINGS.values())}")


def write(form: str, view: View, folder: Path) -> Path:
    """Write the stream under the cursor into a new file of this folder, named after it. Raises `FileError`."""
    stream = view.current
    if stream is None:
        raise UsageError("there is no stream yet")
    stem = f"stream-{stream.label.replace('/', '-')}"
    for number in range(1, 1000):
        path = folder / f"{stem}{'' if number == 1 else f'-{number}'}{ENDINGS[form]}"
        if not path.exists():
            break
    write_to(path, form, view, stream)
    return path


def write_to(path: Path, form: str, view: View, stream: Stream, *, overwrite: bool = False) -> None:
    """Write a stream, up to the moment that is seen, into a file. Raises `FileError`."""
    if form == "trace":
        _write_trace(path, view, stream, overwrite=overwrite)
        return
    text = "".join(_TEXTS[form](view, stream))
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise FileError(f"{path} exists already", "choose another name, or --force to replace it") from None
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _write_trace(path: Path, view: View, stream: Stream, *, overwrite: bool) -> None:
    model = {"name": view.state.model, "vocab_size": view.state.vocab_size}
    header = Header(
        by="lmtool inspect",
        title=f"stream {stream.label}",
        model={name: value for name, value in model.items() if value is not None},
        json="msgspec",
    )
    writer, time = TraceWriter(path, header, overwrite=overwrite), 0.0
    try:
        for event in events_of(view, stream):
            writer.write(event)
            time = event.time
        writer.close(time)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    finally:
        writer.abandon()


def events_of(view: View, stream: Stream) -> Iterator[Event]:
    """The events of one stream: its connection, its words, its request, its outputs without those of others."""
    asked = view.lines.event(stream.frame)
    yield Open(asked.time, stream.connection, {"peer": "client"})
    if words := _words(view, stream):
        yield Vocab(asked.time, 0, words)
    yield asked
    for frame in _frames(view, stream):
        event = view.lines.event(frame)
        yield without_other_streams(event, {stream.label})


def _frames(view: View, stream: Stream) -> list[int]:
    """Frames after the request that belong to the stream: where its tokens came, its ending, for HTTP all up to it."""
    state, seen = view.state, stream.count(view.seen)
    rows = stream.rows[:seen]
    found = dict.fromkeys(state.tokens.frames[row] for row in rows)
    last = next(reversed(found), stream.frame)
    if stream.api is not None:
        found |= dict.fromkeys(
            f for f in range(stream.frame + 1, last + 1) if state.frames.connections[f] == stream.connection
        )
    if stream.ended is None or stream.ended > view.time:
        return sorted(found)
    for frame in range(last, len(state.frames)):
        if state.frames.times[frame] > stream.ended:
            break
        if state.frames.connections[frame] == stream.connection and frame != stream.frame:
            event = view.lines.event(frame)
            if own_entries(event, {stream.label}) or not isinstance(event, Frame | Request | Response):
                found[frame] = None
    return sorted(found)


def _words(view: View, stream: Stream) -> dict[int, str | bytes]:
    state = view.state
    ids = {state.tokens.ids[row] for row in stream.rows}
    ids |= {token for row in stream.rows for token, _ in view.alternatives(row) if isinstance(token, int)}
    ids |= set(stream.prompt) if not isinstance(stream.prompt, str) else set()
    known = (token for token in sorted(ids) if token >= 0 and state.texts.spelling(token) is not None)
    return {token: state.piece(token) for token in known}


def _csv(view: View, stream: Stream) -> Iterator[str]:
    yield from trace_exports.as_csv(Header(), events_of(view, stream), stream.choice)


def _markdown(view: View, stream: Stream) -> Iterator[str]:
    yield from trace_exports.as_markdown(Header(title=f"Stream {stream.label}"), events_of(view, stream), stream.choice)


def tokens_of(view: View, stream: Stream) -> list[Shown]:
    """The tokens that are seen, each as text that steers nothing, its style, and a line on what is known of it."""
    found: list[Shown] = []
    for position in range(stream.count(view.seen)):
        row = stream.rows[position]
        text = view.state.shown(stream, position)
        found.append((text, view.style(row), _known(view, row)))
    return found


def _known(view: View, row: int) -> str:
    parts = []
    logprob = view.state.tokens.logprob(row)
    if logprob is not None:
        parts.append(f"p {probability(logprob):.3g}")
    if (rank := view.rank(row)) is not None:
        parts.append(f"rank {rank}")
    top = [f"{view.measures.quote(token)} {probability(p):.3g}" for token, p in view.alternatives(row)[:5]]
    return " · ".join([*parts, *top])


def _ansi(view: View, stream: Stream) -> Iterator[str]:
    for text, style, _ in tokens_of(view, stream):
        step = _step(style)
        safe = "".join(c if c == "\n" else visible(c) for c in text)
        if step is None:
            yield safe
            continue
        ink, ground = COLORS[view.palette][step]
        yield "\n".join(f"\x1b[38;5;{ink};48;5;{ground}m{part}\x1b[0m" if part else "" for part in safe.split("\n"))
    yield "\n"


def _step(style: str) -> int | None:
    return next((int(word[4:]) for word in style.split() if word.startswith("heat")), None)


def _svg(view: View, stream: Stream) -> Iterator[str]:
    lines = _wrapped(tokens_of(view, stream))
    high, wide = (len(lines) + 3) * _LINE, round((COLUMNS + 2) * _CHARACTER)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">\n'
        "<style>text { font: 14px 'DejaVu Sans Mono', 'Menlo', 'Consolas', monospace; white-space: pre }</style>\n"
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
        step, ink = _step(style), "#e0e0e0"
        if step is not None:
            foreground, background = COLORS[palette][step]
            ink = rgb(foreground)
            yield f'<rect x="{x:.1f}" y="{y - 15}" width="{wide:.1f}" height="{_LINE}" fill="{rgb(background)}"/>'
        yield f'<text x="{x:.1f}" y="{y}" fill="{ink}" textLength="{wide:.1f}">{_escaped(text)}</text>\n'
        column += width(text)


def _wrapped(tokens: list[Shown]) -> list[list[tuple[str, str]]]:
    """Tokens in lines; one that does not fit goes to the next line whole."""
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
    colors = "\n".join(
        f".heat{step} {{ color: {rgb(ink)}; background: {rgb(ground)} }}"
        for step, (ink, ground) in enumerate(COLORS[view.palette])
    )
    title = _escaped(_title(view, stream))
    yield (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n<style>\n'
        "body { background: #121212; color: #e0e0e0; font: 16px/1.6 monospace; max-width: 60em; margin: 2em auto }\n"
        f"pre {{ white-space: pre-wrap; font: inherit }}\n{colors}\n</style>\n"
        f"<h1>{title}</h1>\n<p>{_escaped(_scale(view))}\n<pre>"
    )
    for text, style, known in tokens_of(view, stream):
        safe = "".join(c if c in "\n\t" else visible(c) for c in text)
        step = _step(style)
        kind = "" if step is None else f' class="heat{step}"'
        yield f'<span{kind} title="{_escaped(known)}">{_escaped(safe)}</span>'
    ending = stream.phase(view.time, view.seen)
    yield f"</pre>\n<p>{stream.count(view.seen)} tokens · {ending}{_perplexity(view, stream)}\n</html>\n"


def _perplexity(view: View, stream: Stream) -> str:
    perplexity = stream.perplexity(stream.count(view.seen))
    mode = "" if stream.logprobs_mode in (None, "raw") else f" ({stream.logprobs_mode})"
    return "" if perplexity is None else f" · perplexity {short(perplexity)}{mode}"


def _escaped(text: str) -> str:
    return html.escape(visible(text) if "\n" not in text else text)


def rgb(number: int) -> str:
    """One of the 256 colours from 16 on, as `#rrggbb`."""
    if number >= 232:
        return f"#{8 + 10 * (number - 232):02x}" + f"{8 + 10 * (number - 232):02x}" * 2
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
    return f"#{levels[red]:02x}{levels[green]:02x}{levels[blue]:02x}"


_TEXTS: Mapping[str, Callable[[View, Stream], Iterator[str]]] = {
    "csv": _csv,
    "markdown": _markdown,
    "ansi": _ansi,
    "svg": _svg,
    "html": _html,
}
