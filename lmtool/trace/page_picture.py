"""The streams of a page as one picture (SVG): the same title, legend and colours, for documents that show images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len

from lmtool.core.errors import UsageError
from lmtool.core.logprobs.heat import legend
from lmtool.settings.terminal import visible
from lmtool.trace.page import ending, equal_tokens, escaped, heading, summary
from lmtool.trace.page_colors import rules, scale, thought_ink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lmtool.core.logprobs.heat import HeatMode
    from lmtool.trace.page import Page, PageStream

MAX_TOKENS = 5000
"""Of one picture: more would be higher than anybody scrolls."""
SINGLE, BESIDE = 88, 58
"""Characters of a line, of one stream and of two side by side."""
_PROMPT_LINES = 8
_LINE, _CHARACTER, _MARGIN = 20, 8.43, 2
"""Pixels of a line's height and of a character's width at 14 pixels; characters left and right of a column."""
_FONTS = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
_GROUNDS = {True: ("#ffffff", "#1c1c1c", "#5f5f5f"), False: ("#121212", "#e0e0e0", "#a8a8a8")}
"""Ground, text and quieter text of a light picture and of a dark one."""
_MARK = "#d03080"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line."""

    text: str
    kind: str = ""
    """Classes of the style sheet: `h3`, `h3 thought`, `quiet`."""
    about: str = ""
    """What a browser shows when one points at it."""
    is_difference: bool = False

    @property
    def columns(self) -> int:
        """Characters that it takes."""
        return cell_len(self.text)


@dataclass(slots=True)
class Lines:
    """Pieces in lines of a width; one that does not fit goes to the next line whole, a longer one is cut."""

    columns: int
    lines: list[list[Piece]] = field(default_factory=lambda: [[]])
    _used: int = 0

    def add(self, text: str, kind: str = "", about: str = "", *, is_difference: bool = False) -> None:
        """Go on with a text, which may have line feeds."""
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
    """A text in parts of at most this many columns."""
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
    """The picture of a page. title: as `Page.html`. Raises `UsageError` for more tokens than a picture may have."""
    shown = page.visible_streams
    count = sum(len(stream.tokens) for stream in shown)
    if count > MAX_TOKENS:
        raise UsageError(
            f"{count:,} tokens are too many for one picture, which may have {MAX_TOKENS:,}",
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
    """The lines of one stream: its name, its prompt, its tokens, how it ended."""
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
    """The elements of lines from this place on, in characters and lines."""
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
    """Text and ground on a light page, for programs that know no style sheets; the ground is empty for none."""
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
    """The whole picture: on dark pages its rules replace the colours that the elements have."""
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
