"""Views of arriving tokens: coloured text, interleaved streams, a table, JSON lines, one JSON object, raw frames."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lmtool.core.logprobs.distribution import bits, probability
from lmtool.core.logprobs.heat import heat_value, legend, step_of
from lmtool.core.logprobs.numbers import format_probability
from lmtool.settings.terminal import RESET, Output, put, visible
from lmtool.terminal.chat import heat
from lmtool.terminal.chat.interleave import Interleaver, Piece, cell_width
from lmtool.terminal.chat.stream_record import StreamRecord, as_json, stats_line, token_event

if TYPE_CHECKING:
    from collections import deque

    from lmtool.core.types import ModelInfo, TokenOutput
    from lmtool.terminal.chat.options import OutputOptions
    from lmtool.terminal.chat.running_streams import Arrival

TokenText = Callable[[int], str]
"""Text of a token id."""


class View(Protocol):
    """Shows streams as they arrive."""

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Show outputs that arrived together; flushed."""

    def close(self) -> None:
        """Show the rest."""


@dataclass(frozen=True, slots=True)
class StyledOutput:
    """Writes styled text to stdout, as far as the terminal shows styles."""

    out: Output
    depth: heat.Depth

    @classmethod
    def of(cls, out: Output) -> StyledOutput:
        """Decide from the environment."""
        return cls(out, heat.depth_of(os.environ, color=out.color, terminal=out.terminal))

    def styled(self, text: str, style: str) -> str:
        """The text in a style that ends with each line, without control characters on a terminal."""
        safe_text = visible(text) if self.out.terminal else text
        if not style or self.depth == "none":
            return safe_text
        return "\n".join(f"\x1b[{style}m{line}{RESET}" if line else "" for line in safe_text.split("\n"))

    def write(self, pieces: Sequence[Piece]) -> None:
        """Write pieces at once, flushed."""
        text = "".join(self.styled(*piece) for piece in pieces)
        if text:
            put(text)


class TextStyler(Protocol):
    """Styles the text of one stream, token by token."""

    def pieces(self, text: str, output: TokenOutput) -> list[Piece]:
        """What can be drawn now. text: of the output, as it is shown."""

    def close(self) -> list[Piece]:
        """The rest, once the stream has ended."""


@dataclass(frozen=True, slots=True)
class TokenColorer:
    """Chooses a token's style by heat; without a mode, none."""

    depth: heat.Depth
    mode: heat.HeatMode | None = None
    vocab_size: int | None = None

    def style(self, output: TokenOutput) -> str:
        """SGR parameters for a token."""
        step = self._step(output)
        if output.reasoning is not None and not output.text:
            return heat.THOUGHT[self.depth] if step is None else heat.THOUGHT_STYLES[self.depth][step]
        return "" if step is None else heat.STYLES[self.depth][step]

    def _step(self, output: TokenOutput) -> int | None:
        if self.mode is None:
            return None
        known = heat.distribution(output) if output.top_logprobs else None
        return step_of(self.mode, heat_value(self.mode, output.logprob, known, self.vocab_size))

    def pieces(self, text: str, output: TokenOutput) -> list[Piece]:
        """The text in its token's style."""
        return [(text, self.style(output))] if text else []

    def close(self) -> list[Piece]:
        """Nothing: no text is held back."""
        return []

    def legend(self) -> list[Piece]:
        """One line that explains the styles; nothing where there are none."""
        if self.mode is None or self.depth == "none":
            return []
        pieces: list[Piece] = [(f"{self.mode} ", "2")]
        for label, step in legend(self.mode):
            pieces += [(f" {label} ", heat.STYLES[self.depth][step]), (" ", "")]
        return [*pieces[:-1], ("\n", "")]


def text_styler(styled: StyledOutput, display: OutputOptions, colorer: TokenColorer) -> TextStyler:
    """What styles the text of one more stream: Markdown where it is on and styles are visible, else heat."""
    if not display.markdown or styled.depth == "none":
        return colorer
    from lmtool.terminal.chat.markdown import MarkdownStyler

    return MarkdownStyler(styled.depth)


@dataclass(slots=True)
class ThoughtStyler:
    """Shows, on a terminal, the thought before an answer, in a style of its own; the answer by another styler."""

    styled: StyledOutput
    inner: TextStyler
    _thinking: bool = False

    def pieces(self, text: str, output: TokenOutput) -> list[Piece]:
        """See `TextStyler`."""
        pieces: list[Piece] = []
        if output.reasoning and self.styled.out.terminal:
            self._thinking = True
            colorer = self.inner if isinstance(self.inner, TokenColorer) else TokenColorer(self.styled.depth)
            pieces.append((safe(self.styled, output.reasoning), colorer.style(output)))
        if text and self._thinking:
            self._thinking = False
            pieces.append(("\n\n", ""))
        return [*pieces, *self.inner.pieces(text, output)]

    def close(self) -> list[Piece]:
        """See `TextStyler`."""
        return self.inner.close()


@dataclass(slots=True)
class TextView:
    """The text of one stream, token by token, and a line feed at the end; on a terminal also the thought before it."""

    styled: StyledOutput
    styler: TextStyler
    echo: str = ""
    """Shown in front of the text."""
    _written: str = ""

    def __post_init__(self) -> None:
        self.styler = ThoughtStyler(self.styled, self.styler)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write the text."""
        pieces: list[Piece] = [(self.echo, "2")] if self.echo else []
        self.echo = ""
        for _, _, output in arrivals:
            pieces += self.styler.pieces(output.text or "", output)
        self._write(pieces)

    def close(self) -> None:
        """End the last line, for a terminal's cursor and for readers of lines."""
        self._write(self.styler.close())
        if self._written not in {"", "\n"}:
            self.styled.write([("\n", "")])

    def _write(self, pieces: Sequence[Piece]) -> None:
        self._written = (self._written + "".join(text for text, _ in pieces))[-1:]
        self.styled.write(pieces)


@dataclass(slots=True)
class BufferedView:
    """Shows everything in another view at the end (`--no-stream`)."""

    inner: View
    _arrivals: list[Arrival] = field(default_factory=list)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Keep the outputs."""
        self._arrivals += arrivals

    def close(self) -> None:
        """Show them, stream by stream."""
        if self._arrivals:
            self.inner.show(sorted(self._arrivals, key=lambda arrival: arrival[0].index))
        self.inner.close()


@dataclass(slots=True)
class InterleavedView:
    """Several streams, interleaved line by line, each line labelled with its stream."""

    styled: StyledOutput
    stylers: Mapping[int, TextStyler]
    """Of each stream."""
    interleaver: Interleaver

    @classmethod
    def of(cls, styled: StyledOutput, new_styler: Callable[[], TextStyler], count: int) -> InterleavedView:
        """A view of streams 1 to count. Lines wrap on a terminal only."""
        interleaver = Interleaver(columns=columns() if styled.out.terminal else None, always_label=True)
        for index in range(1, count + 1):
            interleaver.open(index, f"{index:>{len(str(count))}}")
        stylers = {index: ThoughtStyler(styled, new_styler()) for index in range(1, count + 1)}
        return cls(styled, stylers, interleaver)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write what is ready."""
        for record, _, output in arrivals:
            styler = self.stylers[record.index]
            pieces = styler.pieces(safe(self.styled, output.text or ""), output)
            for piece in [*pieces, *(styler.close() if output.last else ())]:
                self.interleaver.push(record.index, *piece)
            if output.last:
                self.interleaver.close(record.index)
        self.styled.write(self.interleaver.drain())

    def close(self) -> None:
        """End an unfinished line."""
        if self.interleaver.column:
            self.styled.write([("\n", "")])


def safe(styled: StyledOutput, text: str) -> str:
    """The text as it will be counted in columns: control characters visible, tabs as spaces."""
    return visible(text).replace("\t", "    ") if styled.out.terminal else text


@dataclass(slots=True)
class TableView:
    """One row per token: id, text, probability, bits, rank, alternatives."""

    styled: StyledOutput
    colorer: TokenColorer
    token_text: TokenText | None = None
    """Text of an alternative; without it ids are shown."""
    several: bool = False
    """True if rows begin with the stream's number."""
    _begun: bool = False
    _counts: dict[int, int] = field(default_factory=dict)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write a row for each token."""
        pieces: list[Piece] = []
        if not self._begun:
            self._begun = True
            head = f"{'  ' if self.several else ''}  #      id  token             p   bits  rank  alternatives"
            pieces.append((f"{head}\n", "1"))
        for record, _, output in arrivals:
            if output.token is not None:
                pieces += self._row(record, output)
        self.styled.write(pieces)

    def close(self) -> None:
        """Do nothing: every row is complete."""

    def _row(self, record: StreamRecord, output: TokenOutput) -> list[Piece]:
        place = self._counts.get(record.index, 0)
        self._counts[record.index] = place + 1
        number = f"{record.index:>2}" if self.several else ""
        token = pad(shorten(self._token(output), 14), 14)
        rank = heat.distribution(output, record.top_logprobs).rank
        p = "" if output.logprob is None else format_probability(probability(output.logprob))
        surprisal = "" if output.logprob is None else f"{bits(output.logprob):.1f}"
        figures = f"  {p:>5}  {surprisal:>5}  {'' if rank is None else str(rank):>4}  "
        left = f"{number}{place:>3}  {output.token:>6}  "
        room = columns() - len(left) - 14 - len(figures) if self.styled.out.terminal else None
        top = ((i, format_probability(probability(logprob))) for i, logprob in output.top_logprobs or ())
        rest = "  ".join(f"{self._text_of(i)}{chance}" for i, chance in top)
        rest = rest if room is None else shorten(rest, max(0, room))
        return [(left, ""), (token, self.colorer.style(output)), (f"{figures}{rest}".rstrip() + "\n", "")]

    def _token(self, output: TokenOutput) -> str:
        if output.text:
            return repr(output.text)
        return self._text_of(output.token) if output.token is not None else ""

    def _text_of(self, token: int) -> str:
        return f"#{token} " if self.token_text is None else repr(self.token_text(token)) + " "


@dataclass(slots=True)
class JsonLinesView:
    """One line of JSON per event, in the fields of LMTP's TOKEN, with text and time."""

    styled: StyledOutput

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write the events."""
        lines = [json.dumps(token_event(*arrival), ensure_ascii=False) + "\n" for arrival in arrivals]
        self.styled.out.write("".join(lines))

    def close(self) -> None:
        """Do nothing: every line is complete."""


@dataclass(slots=True)
class JsonView:
    """One JSON object at the end; a list of them for several streams."""

    styled: StyledOutput
    info: ModelInfo
    count: int = 1
    _records: dict[int, StreamRecord] = field(default_factory=dict)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Remember the streams."""
        self._records.update({record.index: record for record, _, _ in arrivals})

    def close(self) -> None:
        """Write the object."""
        objects = [as_json(self._records[i], self.info.model) for i in sorted(self._records)]
        single = self.count == 1 and objects
        self.styled.out.line(json.dumps(objects[0] if single else objects, ensure_ascii=False))


@dataclass(slots=True)
class RawView:
    """The server's frames as they are, one per line."""

    styled: StyledOutput
    frames: deque[str]
    """Received and not yet written, of every kind."""

    def show(self, arrivals: Sequence[Arrival]) -> None:  # noqa: ARG002 - the frames have them all
        """Write the frames."""
        lines = "".join(f"{frame}\n" for frame in self.frames)
        self.frames.clear()
        self.styled.out.write(lines)

    def close(self) -> None:
        """Write frames without a token."""
        self.show(())


def stats_lines(records: Sequence[StreamRecord]) -> list[str]:
    """One line per stream, labelled where there are several."""
    if len(records) == 1:
        return [stats_line(records[0])]
    return [f"{record.index}│ {stats_line(record)}" for record in records]


def shorten(text: str, columns: int) -> str:
    """The text, or its beginning and `…`, in at most this many columns."""
    from rich.cells import set_cell_size

    return text if cell_width(text) <= columns else set_cell_size(text, max(0, columns - 1)).rstrip() + "…"[:columns]


def pad(text: str, columns: int) -> str:
    """The text with spaces behind it to this many columns."""
    return text + " " * (columns - cell_width(text))


def columns() -> int:
    """Width of the terminal; at least 20."""
    return max(20, shutil.get_terminal_size().columns)
