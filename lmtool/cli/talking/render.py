"""How arriving tokens look: plain or tinted text, interleaved lanes, a table, JSON lines, one JSON object."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lmtool.cli.output import RESET, Output, visible
from lmtool.cli.talking import heat
from lmtool.cli.talking.cells import pad, shorten
from lmtool.cli.talking.lanes import Lanes, Piece
from lmtool.cli.talking.stats import Record, as_json, stats_line, token_event
from lmtool.cli.talking.talk import Arrival
from lmtool.logprobs.distribution import bits, format_probability, probability
from lmtool.types import ModelInfo, TokenOutput

Spell = Callable[[int], str]
"""Text of a token id."""


class View(Protocol):
    """Shows streams as they come."""

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Show what arrived together; flushed."""

    def close(self) -> None:
        """Show what can only be shown at the end."""


@dataclass(frozen=True, slots=True)
class Ink:
    """Puts styled text on stdout, as far as styles are welcome there."""

    out: Output
    depth: heat.Depth

    @classmethod
    def of(cls, out: Output) -> Ink:
        """Decide from the environment."""
        return cls(out, heat.depth_of(os.environ, color=out.color, terminal=out.terminal))

    def styled(self, text: str, style: str) -> str:
        """Make a model's text safe where a terminal reads it, in a style that no line feed carries on."""
        shown = visible(text) if self.out.terminal else text
        if not style or self.depth == "none":
            return shown
        return "\n".join(f"\x1b[{style}m{line}{RESET}" if line else "" for line in shown.split("\n"))

    def write(self, pieces: Sequence[Piece]) -> None:
        """Put pieces on stdout, all at once, flushed."""
        text = "".join(self.styled(*piece) for piece in pieces)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Tint:
    """Which style a token's text has; without a mode, none."""

    depth: heat.Depth
    mode: heat.HeatMode | None = None
    vocab_size: int | None = None

    def style(self, output: TokenOutput) -> str:
        """SGR parameters for a token."""
        step = heat.step(output, self.mode, self.vocab_size) if self.mode else None
        return "" if step is None else heat.style(step, self.depth)

    def legend(self) -> list[Piece]:
        """Return one line that explains the styles; nothing where there are none."""
        if self.mode is None or self.depth == "none":
            return []
        pieces: list[Piece] = [(f"{self.mode} ", "2")]
        for label, step in heat.legend(self.mode):
            pieces += [(f" {label} ", heat.style(step, self.depth)), (" ", "")]
        return [*pieces[:-1], ("\n", "")]


@dataclass(slots=True)
class TextView:
    """The text of one stream, token by token, nothing else; on a terminal a line feed at the end."""

    ink: Ink
    tint: Tint
    echo: str = ""
    """Shown in front of the text."""
    _written: str = ""

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write the text that came."""
        pieces: list[Piece] = [(self.echo, "2")] if self.echo else []
        pieces += [(output.text, self.tint.style(output)) for _, _, output in arrivals if output.text]
        self.echo = ""
        self._written = (self._written + "".join(text for text, _ in pieces))[-1:]
        self.ink.write(pieces)

    def close(self) -> None:
        """Leave a terminal's cursor at the beginning of a line."""
        if self.ink.out.terminal and self._written not in {"", "\n"}:
            self.ink.write([("\n", "")])


@dataclass(slots=True)
class HeldView:
    """Holds everything back, and shows it in another view at the end (`--no-stream`)."""

    inner: View
    _held: list[Arrival] = field(default_factory=list)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Keep what came."""
        self._held += arrivals

    def close(self) -> None:
        """Show it all."""
        if self._held:
            self.inner.show(sorted(self._held, key=lambda arrival: arrival[0].index))
        self.inner.close()


@dataclass(slots=True)
class LanesView:
    """Several streams on one column of lines, each line labelled with its stream."""

    ink: Ink
    tint: Tint
    lanes: Lanes

    @classmethod
    def of(cls, ink: Ink, tint: Tint, count: int) -> LanesView:
        """Make the view of streams 1 to count. Lines wrap on a terminal only."""
        lanes = Lanes(columns=columns() if ink.out.terminal else None, always_label=True)
        for index in range(1, count + 1):
            lanes.open(index, f"{index:>{len(str(count))}}")
        return cls(ink, tint, lanes)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write what the lanes let through."""
        for record, _, output in arrivals:
            self.lanes.push(record.index, safe(self.ink, output.text or ""), self.tint.style(output))
            if output.last:
                self.lanes.close(record.index)
        self.ink.write(self.lanes.drain())

    def close(self) -> None:
        """End a line that was cut."""
        if self.lanes.column:
            self.ink.write([("\n", "")])


def safe(ink: Ink, text: str) -> str:
    """Make text such that what is counted in columns is what is written: controls as signs, tabs as blanks."""
    return visible(text).replace("\t", "    ") if ink.out.terminal else text


@dataclass(slots=True)
class TableView:
    """One row a token: id, text, probability, bits, rank, alternatives."""

    ink: Ink
    tint: Tint
    spell: Spell | None = None
    """Texts of alternatives; without it they are shown as ids."""
    several: bool = False
    """Whether rows say whose they are."""
    _begun: bool = False
    _counts: dict[int, int] = field(default_factory=dict)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write the rows of what came."""
        pieces: list[Piece] = []
        if not self._begun:
            self._begun = True
            head = f"{'  ' if self.several else ''}  #      id  token             p   bits  rank  alternatives"
            pieces.append((f"{head}\n", "1"))
        for record, _, output in arrivals:
            if output.token is not None:
                pieces += self._row(record, output)
        self.ink.write(pieces)

    def close(self) -> None:
        """Do nothing: every row is complete."""

    def _row(self, record: Record, output: TokenOutput) -> list[Piece]:
        place = self._counts.get(record.index, 0)
        self._counts[record.index] = place + 1
        whose = f"{record.index:>2}" if self.several else ""
        token = pad(shorten(self._token(output), 14), 14)
        rank = heat.distribution(output, record.top_logprobs).rank
        p = "" if output.logprob is None else format_probability(probability(output.logprob))
        surprisal = "" if output.logprob is None else f"{bits(output.logprob):.1f}"
        figures = f"  {p:>5}  {surprisal:>5}  {'' if rank is None else str(rank):>4}  "
        left = f"{whose}{place:>3}  {output.token:>6}  "
        room = columns() - len(left) - 14 - len(figures) if self.ink.out.terminal else None
        rest = self._alternatives(output)
        rest = rest if room is None else shorten(rest, max(0, room))
        return [(left, ""), (token, self.tint.style(output)), (f"{figures}{rest}".rstrip() + "\n", "")]

    def _token(self, output: TokenOutput) -> str:
        if output.text:
            return repr(output.text)
        return self._spelled(output.token) if output.token is not None else ""

    def _alternatives(self, output: TokenOutput) -> str:
        top = output.top_logprobs or ()
        return "  ".join(f"{self._spelled(i)}{format_probability(probability(logprob))}" for i, logprob in top)

    def _spelled(self, token: int) -> str:
        return f"#{token} " if self.spell is None else repr(self.spell(token)) + " "


@dataclass(slots=True)
class JsonLinesView:
    """One line of JSON an event, in the fields of LMTP's TOKEN, with text and time."""

    ink: Ink

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Write the events."""
        lines = [json.dumps(token_event(*arrival), ensure_ascii=False) + "\n" for arrival in arrivals]
        self.ink.out.write("".join(lines))

    def close(self) -> None:
        """Do nothing: every line is complete."""


@dataclass(slots=True)
class JsonView:
    """One JSON object at the end; a list of them for several streams."""

    ink: Ink
    info: ModelInfo
    count: int = 1
    _records: dict[int, Record] = field(default_factory=dict)

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Remember the streams."""
        self._records.update({record.index: record for record, _, _ in arrivals})

    def close(self) -> None:
        """Write the object."""
        found = [as_json(self._records[i], self.info.model) for i in sorted(self._records)]
        shown = found[0] if self.count == 1 and found else found
        self.ink.out.line(json.dumps(shown, ensure_ascii=False))


@dataclass(slots=True)
class RawView:
    """The server's frames as they are, one a line."""

    ink: Ink
    frames: deque[str]
    """What was received and is not yet written, of every kind."""

    def show(self, arrivals: Sequence[Arrival]) -> None:  # noqa: ARG002 - the frames have it all
        """Write the frames."""
        lines = "".join(f"{frame}\n" for frame in self.frames)
        self.frames.clear()
        self.ink.out.write(lines)

    def close(self) -> None:
        """Write what bore no token."""
        self.show(())


def stats_lines(records: Sequence[Record]) -> list[str]:
    """One line a stream; labelled where there are several."""
    if len(records) == 1:
        return [stats_line(records[0])]
    return [f"{record.index}│ {stats_line(record)}" for record in records]


def columns() -> int:
    """Width of the terminal, at least what a label and a few characters need."""
    return max(20, shutil.get_terminal_size().columns)
