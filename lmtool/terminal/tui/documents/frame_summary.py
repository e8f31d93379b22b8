"""What a frame says, in words: tokens by their texts, requests by stream and prompt, everything else by its fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.core.logprobs.distribution import probability
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.request_summary import parameters
from lmtool.terminal.tui.runs import Run, visible, width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View

LARGE = 20_000
"""Characters of a frame from which on its JSON is not read for one line."""
_ITEMS, _DEEPEST = 4, 3
"""Of a list that are shown; of values within values."""


def tokens_line(view: View, frame: int, glyphs: Glyphs, columns: int) -> Line:
    """The tokens that a frame brought, with probabilities, as far as there is room; and which streams end with it."""
    state, line, used, before = view.state, list[Run](), 0, -1
    for row in state.tokens_of_frame(frame):
        stream, logprob = state.stream_of(row), state.tokens.logprob(row)
        part: Line = []
        if stream.index != before:
            part = [_label(stream, lead="  " if line else "")]
            before = stream.index
        part += [Run(" "), Run(view.measures.quote_token(row), view.style(row))]
        part.append(Run("" if logprob is None else f" {format_probability(probability(logprob))}", "dim"))
        if stream.ended == state.frames.times[frame] and row == stream.rows[-1]:
            part.append(Run(f" {glyphs.stop} {visible(stream.finish_reason or 'end')}", "ok"))
        line += part
        used += sum(width(run.text) for run in part)
        if used > columns:
            break
    return line


def request_line(view: View, word: str, streams: Sequence[Stream]) -> Line:
    """A request by its streams: the end of the prompt between quotes, and parameters."""
    first = streams[0]
    prompt = " ".join(view.state.prompt_text(first).split())
    most = "" if first.max_tokens is None else f" max {first.max_tokens}"
    words = parameters(first.payload, first.biased, first.constraint)
    line: Line = [Run(f"{word} ", "out")]
    for stream in streams[:_ITEMS]:
        line += [_label(stream, lead=""), Run(" ")]
    return [*line, Run(visible(repr(prompt))), Run(f" {visible(words) if words != '-' else ''}{most}", "dim")]


def _label(stream: Stream, *, lead: str) -> Run:
    return Run(f"{lead}{visible(stream.label)}", f"stream{stream.index % len(STREAM_COLORS)}")


def plain(text: str) -> str:
    """A frame's text without JSON's signs: its command, then `name value` for each member; other text as it is."""
    if len(text) > LARGE:
        return text
    lead, space, rest = text.partition(" ")
    if text.startswith("event: ") and "\ndata: " in text:  # a server-sent event, by its name
        lead, space, rest = text[7:].partition("\ndata: ")
        space = " "
    for before, payload in ((f"{lead}{space}", rest), ("", text)):
        try:
            value = json.loads(payload)
        except ValueError:
            continue
        if isinstance(value, dict | list):
            return f"{before}{_words(value, 0)}"
    return text


def _words(value: object, depth: int) -> str:
    if depth > _DEEPEST + 1 and isinstance(value, dict | list):
        return "(...)"
    if isinstance(value, dict):
        members = [f"{name} {_words(one, depth + 1)}" for name, one in value.items()]
        text = " · ".join(members) if depth < 1 else ", ".join(members)
        return text if depth < 1 else "(...)" if depth > _DEEPEST else f"({text})"
    if isinstance(value, list):
        if depth == 0 and len(value) == 1:
            return _words(value[0], 0)
        items = [_words(one, depth + 1) for one in value[:_ITEMS]]
        more = f" +{len(value) - _ITEMS}" if len(value) > _ITEMS else ""
        return "none" if not items else " ".join(items) + more
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
