"""Streams of traces as one HTML page or one SVG picture; neither loads anything from elsewhere."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.color import Color

from lmtool.core.errors import UsageError
from lmtool.core.logprobs.distribution import Distribution, bits, perplexity, probability
from lmtool.core.logprobs.heat import (
    COLORS,
    LIGHT_COLORS,
    LIGHT_THOUGHT_COLORS,
    LIGHT_THOUGHT_INK,
    THOUGHT_COLORS,
    THOUGHT_INK,
    heat_value,
    legend,
    step_of,
)
from lmtool.core.logprobs.numbers import figure, format_probability
from lmtool.settings.terminal import visible
from lmtool.trace.answers import Answers, StreamText
from lmtool.trace.matching import first_difference
from lmtool.trace.stream_events import RequestStarted, Stream, new_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lmtool.core.logprobs.heat import HeatMode
    from lmtool.trace.events import Event
    from lmtool.trace.stream_events import OutputEvent

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
<h1>{title}</h1>
<p>{summary}</p>
<p class="legend">{heat} {legend}</p>
<p class="keys">Point at a token for its alternatives. Keys: ← → token · ↑ ↓ stream · n N next less likely than 1 in 10 · Home End</p>
<main>
{streams}
</main>
<pre id="about" aria-live="polite"></pre>
<script>
{script}</script>
</html>
"""  # noqa: E501 - a document
"""With names in braces to be filled in."""

STYLE = """:root { color-scheme: light dark }
body { font: 16px/1.6 ui-monospace, monospace; margin: 2em auto 12em; max-width: 110em; padding: 0 1.5em }
h1 { font-size: 1.3em } h2 { font-size: 1em } footer, .keys, h2 { opacity: .7 }
main { display: grid; gap: 2em; grid-template-columns: repeat(auto-fit, minmax(min(28em, 100%), 1fr)) }
section { min-width: 0 }
blockquote { border-left: 3px solid #888; margin: 0; max-height: 12em; overflow: auto; padding-left: 1em; white-space: pre-wrap }
.text { overflow-wrap: anywhere; white-space: pre-wrap }
i { cursor: default; font-style: normal }
i.thought { color: light-dark(#875f87, #af87af); font-style: italic }
i.on { outline: 2px solid currentColor; outline-offset: 1px }
.differs { border-bottom: 3px solid #d03080 }
.legend span { margin-right: .3em; padding: 0 .5em }
#about { background: Canvas; border-top: 1px solid #888; bottom: 0; left: 0; margin: 0; max-height: 11em; overflow: auto; padding: .6em 1.5em; position: fixed; right: 0 }
#about:empty { display: none }
"""  # noqa: E501 - a style sheet
"""The style, without the colours of heat."""

SCRIPT = """const streams = [...document.querySelectorAll("section")].map(s => [...s.querySelectorAll("i")]);
const about = document.getElementById("about");
let column = 0, place = -1;
function show(c, p) {
  const token = streams[c] && streams[c][p];
  if (!token) return;
  document.querySelector("i.on")?.classList.remove("on");
  [column, place] = [c, p];
  token.classList.add("on");
  token.scrollIntoView({block: "nearest"});
  about.textContent = token.title;
}
function rare(step) {
  for (let p = place + step; p >= 0 && p < streams[column].length; p += step)
    if ("rare" in streams[column][p].dataset) return show(column, p);
}
function across(step) {
  for (let c = column + step; c >= 0 && c < streams.length; c += step)
    if (streams[c].length) return show(c, Math.max(0, Math.min(place, streams[c].length - 1)));
}
const keys = {
  ArrowRight: () => show(column, place + 1), ArrowLeft: () => show(column, place - 1),
  ArrowDown: () => across(1), ArrowUp: () => across(-1),
  Home: () => show(column, 0), End: () => show(column, streams[column].length - 1),
  n: () => rare(1), N: () => rare(-1),
};
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || !streams.length) return;
  event.preventDefault();
  keys[event.key]();
});
streams.forEach((tokens, c) => tokens.forEach((token, p) => token.addEventListener("mouseenter", () => show(c, p))));
"""
"""Script for keys and pointer; without it, the titles of tokens show the same text."""


def scale(*, light: bool, is_thought: bool = False) -> Sequence[tuple[str, str]]:
    """Text and background colour per heat step, as `#rrggbb`. light: for a light page; is_thought: for reasoning."""
    thoughts = LIGHT_THOUGHT_COLORS if light else THOUGHT_COLORS
    answers = (LIGHT_COLORS if light else COLORS)["blue-orange"]
    return [(rgb(ink), rgb(ground)) for ink, ground in (thoughts if is_thought else answers)]


def thought_ink(*, light: bool) -> str:
    """Text colour of reasoning without a heat step."""
    return rgb(LIGHT_THOUGHT_INK if light else THOUGHT_INK)


def rules(pattern: str, *, light: bool) -> str:
    """A CSS rule for each heat step of answers and reasoning. pattern: is formatted with `name`, `ink` and `ground`."""
    return "".join(
        pattern.format(name=f"{'.thought' if thought else ''}.h{step}", ink=ink, ground=ground)
        for thought in (False, True)
        for step, (ink, ground) in enumerate(scale(light=light, is_thought=thought))
    )


def on_both_grounds(pattern: str) -> str:
    """Rules for a light page, and those that override them on a dark one. pattern: as for `rules`."""
    return f"{rules(pattern, light=True)}@media (prefers-color-scheme: dark) {{\n{rules(pattern, light=False)}}}\n"


def rgb(number: int) -> str:
    """One of the 256 terminal colours as `#rrggbb`."""
    return Color.from_ansi(number).get_truecolor().hex


MAX_TOKENS = 50_000
"""Tokens of one page; more make a browser slow."""
_PROMPT_CHARACTERS = 4000
_TITLE_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class PageToken:
    """One output of a stream."""

    text: str
    id: int | None
    logprob: float | None
    alternatives: tuple[tuple[int | str | bytes, float], ...]
    is_thought: bool = False


@dataclass(slots=True, eq=False)
class PageStream(Stream):
    """A stream as a column of a page."""

    source: str = ""
    prompt: str = ""
    text: StreamText | None = None
    tokens: list[PageToken] = field(default_factory=list)


@dataclass(slots=True)
class Page:
    """Streams of one or more traces, in order."""

    heat: HeatMode = "prob"
    labels: frozenset[str] = frozenset()
    """Streams to show; empty for all."""
    columns: list[PageStream] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    """Texts of token ids."""
    _count: int = 0
    _source: str = ""

    def read(self, events: Iterable[Event], source: str = "") -> None:
        """Add the events of a trace. Raises `UsageError` for more tokens than a page may have.

        source: shown with its streams, such as the file name; may be empty.
        """
        self._source = source
        answers = Answers(self._begin)
        for event in events:
            for step in answers.follow(event):
                stream = step.stream
                assert isinstance(stream, PageStream)
                if isinstance(step, RequestStarted):
                    stream.prompt = _prompt(step, answers)
                elif stream in self.columns:
                    self._add(stream, step, answers)
        self._names |= {token: visible(str(text)) for token, text in answers.vocabulary.items()}

    def _begin(self, started: RequestStarted, index: int, choice: int) -> PageStream:
        stream = new_stream(PageStream, started, index, choice)
        stream.source = self._source
        if index >= 0 and (not self.labels or stream.label in self.labels):
            self.columns.append(stream)
        return stream

    def _add(self, stream: PageStream, step: OutputEvent, answers: Answers[PageStream]) -> None:
        stream.text = stream.text or StreamText(answers.vocabulary)
        text = stream.text.add(step)
        if not step.counts:
            return
        self._count += 1
        if self._count > MAX_TOKENS:
            raise UsageError(f"more than {MAX_TOKENS:,} tokens on one page", "choose streams:  --stream LABEL")
        if step.token is not None and text:
            self._names.setdefault(step.token, text)
        stream.tokens.append(PageToken(text, step.token, step.logprob, step.alternatives, step.is_thought))

    @property
    def visible_streams(self) -> list[PageStream]:
        """Streams with something to show."""
        return [stream for stream in self.columns if stream.tokens or stream.ended is not None]

    def title(self, title: str | None = None) -> str:
        """The given title, or one made of the first prompt."""
        shown = self.visible_streams
        name = title or (" ".join(shown[0].prompt.split()) if shown else "") or "lmtool trace"
        return name if len(name) <= _TITLE_CHARACTERS else f"{name[:_TITLE_CHARACTERS]}…"

    def html(self, title: str | None = None) -> str:
        """The page as HTML. title: None for one made of the first prompt."""
        shown = self.visible_streams
        equal = equal_tokens(shown)
        return PAGE.format(
            title=escaped(self.title(title)),
            style=STYLE + on_both_grounds("{name} {{ color: {ink}; background: {ground} }}\n"),
            script=SCRIPT,
            summary=escaped(summary(shown, equal)),
            heat=escaped(self.heat),
            legend="".join(f'<span class="h{step}">{escaped(label)}</span>' for label, step in legend(self.heat))
            + ' <span class="differs">first difference</span>' * (equal is not None),
            streams="".join(piece for stream in shown for piece in self._column(stream, equal)),
        )

    def _column(self, stream: PageStream, equal: int | None) -> Iterator[str]:
        yield f"<section><h2>{escaped(heading(stream))}</h2>"
        if stream.prompt:
            yield f"<blockquote>{escaped(stream.prompt)}</blockquote>"
        yield '<p class="text">'
        for number, token in enumerate(stream.tokens):
            yield self._token(number, token, differs=number == equal)
        yield f"</p><footer>{escaped(ending(stream))}</footer></section>"

    def _token(self, number: int, token: PageToken, *, differs: bool) -> str:
        kinds = f"{self.kinds(token)}{' differs' * differs}"
        rare = token.logprob is not None and probability(token.logprob) < 0.1
        mark = " data-rare" * rare
        return f'<i class="{kinds}"{mark} title="{escaped(self.about(number, token))}">{escaped(token.text)}</i>'

    def kinds(self, token: PageToken) -> str:
        """CSS classes of a token: its heat step `h0` to `h7`, if it has one, and `thought`."""
        own: int | str | bytes = token.text if token.id is None else token.id
        distribution = Distribution.of(own, token.logprob, token.alternatives) if token.alternatives else None
        step = step_of(self.heat, heat_value(self.heat, token.logprob, distribution, None))
        return " ".join([*([] if step is None else [f"h{step}"]), *(["thought"] if token.is_thought else [])])

    def about(self, number: int, token: PageToken) -> str:
        """Tooltip of a token: its numbers, then one alternative per line."""
        facts = [f"token {number + 1}", *([] if token.id is None else [f"id {token.id}"])]
        facts += ["thought"] if token.is_thought else []
        if token.logprob is not None:
            facts.append(f"p {format_probability(probability(token.logprob))}")
            facts.append(f"{bits(token.logprob):.1f} bits")
        lines = [f"{format_probability(probability(p)):>5}  {self._name(one)}" for one, p in token.alternatives]
        return "\n".join([" · ".join(facts), *lines])

    def _name(self, token: int | str | bytes) -> str:
        if isinstance(token, int):
            return repr(self._names[token]) if token in self._names else f"#{token}"
        return repr(token) if isinstance(token, str) else f"⟨{token.hex(' ')}⟩"


def equal_tokens(streams: Sequence[PageStream]) -> int | None:
    """Length of the common prefix of two streams, in tokens; None for any other number of streams."""
    if len(streams) != 2:
        return None
    return first_difference(*([(token.id, token.text) for token in stream.tokens] for stream in streams))


def heading(stream: PageStream) -> str:
    """Source, label and model of a stream."""
    return " ".join(filter(None, (stream.source, stream.label, stream.model)))


def summary(streams: Sequence[PageStream], equal: int | None) -> str:
    """Number of streams and tokens; for two streams, the length of their common prefix (`equal_tokens`)."""
    count = sum(len(stream.tokens) for stream in streams)
    parts = [f"{len(streams)} stream{'s' * (len(streams) != 1)}", f"{count} tokens"]
    if equal is not None:
        same = len(streams[0].tokens) == len(streams[1].tokens) == equal
        parts.append("equal" if same else f"equal for {equal} tokens")
    return " · ".join(parts)


def ending(stream: PageStream) -> str:
    """Number of tokens, ending and perplexity of a stream."""
    parts = [f"{len(stream.tokens)} tokens", stream.error or stream.finish_reason or "not finished"]
    logprobs = [token.logprob for token in stream.tokens if token.logprob is not None]
    mean = perplexity(sum(logprobs), len(logprobs)) if len(logprobs) == len(stream.tokens) else None
    return " · ".join([*parts, *([] if mean is None else [f"perplexity {figure(mean)}"])])


def _prompt(started: RequestStarted, answers: Answers[PageStream]) -> str:
    """Prompt as text, if the trace has it; the last message of a conversation."""
    prompt = started.prompt
    parts = prompt if isinstance(prompt, list) else [prompt]
    texts = []
    if len(parts) > 1 and isinstance(parts[-1], dict):
        texts.append(f"({len(parts) - 1} messages before)\n")
        parts = parts[-1:]
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("content"), str):
            texts.append(f"{part.get('role', '')}: {part['content']}\n")
        elif isinstance(part, int):
            texts.append(answers.text_of_id(part) or f"⟨#{part}⟩")
        elif isinstance(part, str):
            texts.append(part)
    text = "".join(texts).strip("\n")
    return text if len(text) <= _PROMPT_CHARACTERS else f"{text[:_PROMPT_CHARACTERS]}…"


def escaped(text: str) -> str:
    """Text escaped for HTML and SVG, without control characters."""
    return html.escape(visible(text))


MAX_PICTURE_TOKENS = 5000
"""Tokens of one picture; more would be too high to scroll."""
SINGLE, BESIDE = 88, 58
"""Characters per line for one stream, and for two side by side."""
_PROMPT_LINES = 8
_LINE, _CHARACTER, _MARGIN = 20, 8.43, 2
"""Pixels of a line's height and of a character's width at 14 pixels; characters of margin around a column."""
_FONTS = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
_GROUNDS = {True: ("#ffffff", "#1c1c1c", "#5f5f5f"), False: ("#121212", "#e0e0e0", "#a8a8a8")}
"""Background, text and dimmed text of a light picture and of a dark one."""
_MARK = "#d03080"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line."""

    text: str
    kind: str = ""
    """CSS classes: `h3`, `h3 thought`, `quiet`."""
    about: str = ""
    """Tooltip."""
    is_difference: bool = False

    @property
    def columns(self) -> int:
        """Width in characters."""
        return cell_len(self.text)


@dataclass(slots=True)
class Lines:
    """Line wrapping at a width: a piece that does not fit moves to the next line, a longer one is split."""

    columns: int
    lines: list[list[Piece]] = field(default_factory=lambda: [[]])
    _used: int = 0

    def add(self, text: str, kind: str = "", about: str = "", *, is_difference: bool = False) -> None:
        """Append a text, which may contain line feeds."""
        for place, part in enumerate(visible(text).replace("\t", "    ").split("\n")):
            if place:
                self.end()
            for piece in _cut(part, self.columns):
                if self._used + cell_len(piece) > self.columns:
                    self.end()
                self.lines[-1].append(Piece(piece, kind, about, is_difference))
                self._used += cell_len(piece)

    def end(self) -> None:
        """End the line."""
        self.lines.append([])
        self._used = 0


def _cut(text: str, columns: int) -> Iterator[str]:
    """Parts of a text, each at most this many columns wide."""
    part, used = "", 0
    for character in text:
        wide = cell_len(character)
        if used + wide > columns:
            yield part
            part, used = "", 0
        part, used = part + character, used + wide
    if part:
        yield part


def draw(page: Page, title: str | None = None) -> str:
    """The page as SVG. title: as for `Page.html`. Raises `UsageError` for more tokens than a picture may have."""
    shown = page.visible_streams
    count = sum(len(stream.tokens) for stream in shown)
    if count > MAX_PICTURE_TOKENS:
        raise UsageError(
            f"{count:,} tokens are too many for one picture, which may have {MAX_PICTURE_TOKENS:,}",
            "choose streams:  --stream LABEL",
            "or write a page:  --to html",
        )
    equal = equal_tokens(shown)
    columns = SINGLE if len(shown) < 2 else BESIDE
    across = min(2, max(1, len(shown)))
    wide = across * columns + (across + 1) * _MARGIN
    head = Lines(wide - 2 * _MARGIN)
    head.add(page.title(title), "title")
    head.end()
    head.add(summary(shown, equal), "quiet")
    head.end()
    blocks = [_block(page, stream, equal, columns) for stream in shown]
    head.lines[-1] = [*_legend(page.heat, differs=equal is not None)]
    body, y = [*_drawn(head.lines, _MARGIN, 1)], len(head.lines) + 2
    for row in (blocks[first : first + across] for first in range(0, len(blocks), across)):
        for place, block in enumerate(row):
            body += _drawn(block, _MARGIN + place * (columns + _MARGIN), y)
        y += max(map(len, row)) + 1
    return _framed(page.title(title), body, round(wide * _CHARACTER), y * _LINE)


def _block(page: Page, stream: PageStream, equal: int | None, columns: int) -> list[list[Piece]]:
    """Lines of one stream: heading, prompt, tokens, ending."""
    name, prompt, answer, end = (Lines(columns) for _ in range(4))
    name.add(heading(stream), "quiet")
    prompt.add(stream.prompt, "quiet")
    if len(prompt.lines) > _PROMPT_LINES:
        prompt.lines[_PROMPT_LINES - 1 :] = [[Piece("…", "quiet")]]
    for number, token in enumerate(stream.tokens):
        answer.add(token.text, page.kinds(token), page.about(number, token), is_difference=number == equal)
    end.add(ending(stream), "quiet")
    asked = [*prompt.lines, []] if stream.prompt else []
    return [*name.lines, [], *asked, *answer.lines, [], *end.lines]


def _drawn(lines: Iterable[Sequence[Piece]], column: int, line: int) -> Iterator[str]:
    """SVG elements of lines, from this position on, in characters and lines."""
    for number, pieces in enumerate(lines):
        at = column
        for piece in pieces:
            yield from _piece(piece, at, line + number)
            at += piece.columns


def _piece(piece: Piece, column: int, line: int) -> Iterator[str]:
    x, wide, top = column * _CHARACTER, piece.columns * _CHARACTER, line * _LINE
    ink, ground = _colors(piece.kind)
    if ground:
        place = f'x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{_LINE}"'
        yield f'<rect class="{piece.kind}" {place} fill="{ground}"/>\n'
    if piece.is_difference:
        yield f'<rect x="{x:.1f}" y="{top + _LINE - 3}" width="{wide:.1f}" height="3" fill="{_MARK}"/>\n'
    about = f"<title>{escaped(piece.about)}</title>" if piece.about else ""
    place = f'x="{x:.1f}" y="{top + 15}" textLength="{wide:.1f}" lengthAdjust="spacingAndGlyphs"'
    if piece.text.strip() or about:
        yield f'<text class="{piece.kind}" fill="{ink}" {place}>{about}{escaped(piece.text)}</text>\n'


def _colors(kind: str) -> tuple[str, str]:
    """Text and background on a light page, for viewers without style sheets; no background if empty."""
    _, ink, quiet = _GROUNDS[True]
    thought = "thought" in kind
    if kind[:1] == "h":
        return scale(light=True, is_thought=thought)[int(kind[1])]
    return thought_ink(light=True) if thought else quiet if kind == "quiet" else ink, ""


def _legend(heat: HeatMode, *, differs: bool) -> Iterator[Piece]:
    yield Piece(f"{heat} ", "quiet")
    for label, step in legend(heat):
        yield Piece(f" {label} ", f"h{step}")
    if differs:
        yield Piece("  ", "quiet")
        yield Piece("first difference", "quiet", is_difference=True)


def _framed(title: str, body: Iterable[str], wide: int, high: int) -> str:
    """The complete SVG. On dark pages its style rules replace the colours of the elements."""
    dark_ground, dark_ink, dark_quiet = _GROUNDS[False]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" xml:space="preserve" width="{wide}" height="{high}"'
        f' viewBox="0 0 {wide} {high}">\n<title>{escaped(title)}</title>\n<style>\n'
        f"text {{ font: 14px {_FONTS}; white-space: pre }}\n.title {{ font-weight: bold }}\n"
        ".thought { font-style: italic }\n@media (prefers-color-scheme: dark) {\n"
        f".ground {{ fill: {dark_ground} }} text {{ fill: {dark_ink} }} .quiet {{ fill: {dark_quiet} }}\n"
        f".thought {{ fill: {thought_ink(light=False)} }}\n"
        f"{rules('rect{name} {{ fill: {ground} }} text{name} {{ fill: {ink} }}', light=False)}}}\n</style>\n"
        f'<rect class="ground" width="{wide}" height="{high}" rx="6" fill="{_GROUNDS[True][0]}"/>\n'
        f"{''.join(body)}</svg>\n"
    )
