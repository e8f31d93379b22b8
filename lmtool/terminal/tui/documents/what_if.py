"""What-if: the current token under other sampling parameters, and the seed's first different draw."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from lmtool.core.logprobs.numbers import format_probability
from lmtool.core.logprobs.uniform import uniform
from lmtool.core.logprobs.what_if import Knobs, draw, what_if
from lmtool.terminal.tui.documents.document import Document
from lmtool.terminal.tui.runs import Run, fitted, flow, pad, width

if TYPE_CHECKING:
    from lmtool.core.logprobs.distribution import Distribution
    from lmtool.core.logprobs.what_if import Chance, Draw, WhatIf
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View

NAMES = ("temperature", "top-p", "top-k", "min-p")
SCALES: tuple[tuple[float, ...], ...] = (
    tuple(i / 20 for i in range(41)),
    tuple(i / 50 for i in range(51)),
    (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 200, 0),
    tuple(i / 50 for i in range(51)),
)
"""Values of each slider from left to right; the last of top-k is off."""
PLACES = 1000
"""Places of a slider that a click can mean."""
_HEADS = 12
"""Columns of a slider's name."""
_UNSEEN = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logits_processors", "min_tokens")
_NEUTRAL = {"repetition_penalty": 1}


def recorded_knobs(stream: Stream) -> Knobs:
    """Sampling parameters of a stream's request, with the protocol's defaults."""

    def number(name: str, default: float) -> float:
        value = stream.payload.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    temperature = number("temperature", 0.0 if stream.api is None else 1.0)
    return Knobs(temperature, number("top_p", 1.0), int(number("top_k", 0)), number("min_p", 0.0))


def why_unknown(stream: Stream) -> str:
    """Reason that other parameters cannot be tried on the recording; empty if they can."""
    if stream.divided_by_temperature:
        return "its logprobs are divided by the temperature, and no distribution's"
    if stream.logprobs_mode == "processed":
        return "its logprobs are those after temperature and truncation: ask for  logprobs_mode=raw"
    return ""


def why_no_draws(stream: Stream) -> str:
    """Reason that a seed's draws under other parameters are unknown; empty if they are known."""
    if stream.kind != "GEN":
        return "nothing was drawn" if stream.kind == "SCORE" else "tokens without ids: the order of a draw is not known"
    if type(stream.payload.get("seed")) is not int:
        return "the request had no seed"
    if stream.prompt_tokens is None:
        return "how many tokens the prompt has is not known, and draws depend on it"
    for name in _UNSEEN:
        if stream.payload.get(name) not in (None, 0, _NEUTRAL.get(name, 0), [], False):
            return f"{name} changes what is sampled, and is not in these numbers"
    if stream.logprobs_mode == "raw" and (stream.biased or stream.constraint):
        return "logit_bias or a constraint is not in raw numbers: ask for  logprobs_mode=biased"
    return ""


class WhatIfDocument(Document):
    """Four sliders, the current token's remaining alternatives, and the stream's first different draw."""

    def __init__(self, view: View, stream: Stream, glyphs: Glyphs) -> None:
        self._view, self._glyphs, self.stream = view, glyphs, stream
        self.recorded = recorded_knobs(stream)
        self.knobs = self.recorded
        self.slider = 0
        self._distributions: dict[int, Distribution[int | str | bytes]] = {}
        self._steps: list[Draw[int] | None] = []
        """Draws of the seed under these parameters, of the positions examined so far."""
        self._agrees = 0
        """Positions that were looked at under the recorded parameters."""
        self.no_draws = why_unknown(stream) or why_no_draws(stream)
        self._lines: list[Line] = []

    @property
    def values(self) -> tuple[float, float, float, float]:
        """Values of the sliders."""
        knobs = self.knobs
        return knobs.temperature, knobs.top_p, float(knobs.top_k), knobs.min_p

    def set_value(self, slider: int, value: float) -> None:
        """Move a slider to a value."""
        temperature, top_p, top_k, min_p = (value if i == slider else own for i, own in enumerate(self.values))
        self.knobs = Knobs(temperature, top_p, int(top_k), min_p)
        self._steps = []

    def step(self, steps: int) -> None:
        """Move the chosen slider by this many values of its scale."""
        scale = SCALES[self.slider]
        place = _place(scale, self.values[self.slider])
        self.set_value(self.slider, scale[min(len(scale) - 1, max(0, place + steps))])

    def reset(self) -> None:
        """Reset to the parameters of the request."""
        self.knobs, self._steps = self.recorded, []

    def move(self, rows: int) -> None:
        """Move to another slider."""
        self.slider = min(len(SCALES) - 1, max(0, self.slider + rows))

    def click(self, target: int) -> None:
        """Move a slider to the clicked position."""
        self.slider, place = divmod(target, PLACES + 1)
        scale = SCALES[self.slider]
        self.set_value(self.slider, scale[round(place / PLACES * (len(scale) - 1))])

    # What is known.

    def distribution(self, row: int) -> Distribution[int | str | bytes]:
        """Recorded distribution of a token."""
        if row not in self._distributions:
            self._distributions[row] = self._view.measures.distribution(row)
        return self._distributions[row]

    def _what_if(self, row: int, knobs: Knobs) -> WhatIf[int | str | bytes] | None:
        return what_if(self.distribution(row), knobs, self._view.state.vocab_size)

    def _draw(self, position: int, knobs: Knobs) -> Draw[int] | None:
        row = self.stream.rows[position]
        step = self._what_if(row, knobs)
        seed, before = self.stream.payload.get("seed"), self.stream.prompt_tokens
        if step is None or not isinstance(seed, int) or before is None:
            return None
        return draw(step, uniform(seed, before + position))  # type: ignore[arg-type] # a GENERATE's alternatives are ids

    def advance(self, seconds: float) -> bool:
        """Examine further positions of the stream for about this long; False if none was left."""
        count = self.stream.count(self._view.token_count)
        until = time.perf_counter() + seconds
        worked = False
        while not self.no_draws and time.perf_counter() < until:
            if self._agrees < count:
                self._check_recorded(self._agrees)
                self._agrees += 1
            elif len(self._steps) < count:
                self._steps.append(self._draw(len(self._steps), self.knobs))
            else:
                break
            worked = True
        return worked

    def _check_recorded(self, position: int) -> None:
        """Give up on draws of a server that draws differently from the engine."""
        drawn = self._draw(position, self.recorded)
        own = self._view.state.tokens.ids[self.stream.rows[position]]
        if drawn is not None and own not in drawn.possible and not drawn.other:
            self.no_draws = f"this server draws in another way: its token #{position} is not the one of its seed here"

    def first_other(self) -> int | None:
        """First position where another token would certainly have been drawn; None if none is known yet."""
        ids, rows = self._view.state.tokens.ids, self.stream.rows
        for position, drawn in enumerate(self._steps):
            if drawn is not None and drawn.token is not None and drawn.token != ids[rows[position]]:
                return position
        return None

    # What is drawn.

    def height(self, columns: int) -> int:
        """Lines there are now, made here for `line`."""
        row = self._view.token
        lines = [self._slider(i, columns) for i in range(len(SCALES))]
        why = why_unknown(self.stream)
        step = None if row is None or why else self._what_if(row, self.knobs)
        if why:
            lines += flow([Run(why, "error")], columns)
        elif step is None or row is None:
            lines.append([Run("no alternatives were sent: ask for some with  top_logprobs=20", "dim")])
        else:
            lines += self._verdict(step, row, columns) + self._chances(step, row, columns)
        self._lines = [fitted(line, columns) for line in lines]
        return len(self._lines)

    def _slider(self, i: int, columns: int) -> Line:
        scale, value, was = SCALES[i], self.values[i], recorded_values(self.recorded)[i]
        here = i == self.slider
        room = max(8, min(60, columns - _HEADS - 12))
        knob = round(_place(scale, value) / (len(scale) - 1) * (room - 1))
        mark = round(_place(scale, was) / (len(scale) - 1) * (room - 1))
        label = "off" if (i == 2 and not value) or (i == 1 and value >= 1) or (i == 3 and not value) else f"{value:g}"
        line: Line = [
            Run(self._glyphs.cursor if here else " ", "accent"),
            Run(pad(NAMES[i], _HEADS), "accent" if here else ""),
            Run(f"{pad(label, 6, right=True)} ", "title"),
        ]
        for place in range(room):
            sign = self._glyphs.knob if place == knob else self._glyphs.mark if place == mark else self._glyphs.line
            style = "accent" if place == knob else "dim"
            line.append(Run(sign, style, i * (PLACES + 1) + round(PLACES * place / (room - 1))))
        return line

    def _verdict(self, step: WhatIf[int | str | bytes], row: int, columns: int) -> list[Line]:
        stay = sum(one.stays is True for one in step.chances)
        maybe = sum(one.stays is None for one in step.chances)
        words = [Run(f"{stay} of {len(step.chances)} sent tokens stay", "title")]
        words += [Run(f"{maybe} more may", "accent")] if maybe else []
        exact = "exact" if step.is_exact else "bounds: what was not sent is not known"
        words.append(Run(exact, "ok" if step.is_exact else "accent"))
        return [*flow(words, columns), *self._drawn(row, columns)]

    def _drawn(self, row: int, columns: int) -> list[Line]:
        """The seed's draw here, and its first different draw in the stream."""
        if self.no_draws:
            return flow([Run(f"draws are not known: {self.no_draws}", "dim")], columns)
        state, seed = self._view.state, self.stream.payload.get("seed")
        drawn = self._draw(self._view.position(row), self.knobs)
        if drawn is None or drawn.token is None:
            here = "cannot be told from what was sent"
        elif drawn.token == state.tokens.ids[row]:
            here = "draws the same token"
        else:
            here = f"draws {self._view.measures.quote(drawn.token)}"
        words = [Run(f"seed {seed} {here}", "accent" if " draws '" in f" {here}" else "")]
        first, count = self.first_other(), self.stream.count(self._view.token_count)
        open_ = sum(one is None or one.token is None for one in self._steps[: first if first is not None else None])
        if first is not None:
            token = self._view.measures.quote(self._steps[first].token or 0)  # type: ignore[union-attr] # `first_other` found it
            words.append(Run(f"first other token of the stream: #{first} {token}", "title"))
        elif len(self._steps) >= count:
            words.append(Run("the stream goes the same way" if not open_ else "no other token is sure", "title"))
        else:
            words.append(Run(f"looked at {len(self._steps)} of {count}", "dim"))
        if open_:
            words.append(Run(f"{open_} before it not known" if first is not None else f"{open_} not known", "dim"))
        return flow(words, columns)

    def _chances(self, step: WhatIf[int | str | bytes], row: int, columns: int) -> list[Line]:
        name = self._view.measures.name(row)
        texts = [self._view.measures.quote(one.token) for one in step.chances if one.token is not None]
        wide = min(max(len("other"), *map(width, texts)), max(8, columns // 3))
        room = max(3, columns - wide - 26)
        parts = list(zip([*texts, "other"], [*step.chances, step.other], strict=True))
        return [
            self._chance(text, one, (wide, room), chosen=one.token == name) for text, one in parts if one is not None
        ]

    def _chance(self, text: str, one: Chance[int | str | bytes], size: tuple[int, int], *, chosen: bool) -> Line:
        wide, room = size
        after = f"{_p(one.high)}" if one.is_exact else f"{_p(one.low)}…{_p(one.high)}"
        style = "dim" if one.stays is False else "bold" if chosen else ""
        sure, maybe = round(one.low * room), round(one.high * room)
        sign = self._glyphs.chosen if chosen else self._glyphs.error if one.stays is False else " "
        return [
            Run(f" {pad(text, wide)} ", style),
            Run(pad(_p(one.before), 5, right=True), "dim"),
            Run(f" {self._glyphs.arrow} ", "dim"),
            Run(pad("cut" if one.stays is False else after, 11), style),
            Run(f"{sign} ", "accent" if chosen else "dim"),
            Run(self._glyphs.blocks[8] * sure, "bar chosen" if chosen else "bar"),
            Run(self._glyphs.rule * (maybe - sure), "dim"),
        ]


def recorded_values(knobs: Knobs) -> tuple[float, float, float, float]:
    """The values of the sliders for these parameters."""
    return knobs.temperature, knobs.top_p, float(knobs.top_k), knobs.min_p


def _place(scale: tuple[float, ...], value: float) -> int:
    """Index of the nearest value on a scale; on a scale that ends with 0, 0 means off."""
    if scale[-1] == 0:
        return len(scale) - 1 if value <= 0 else min(bisect_left(scale[:-1], value), len(scale) - 2)
    return min(range(len(scale)), key=lambda i: abs(scale[i] - value))


def _p(p: float) -> str:
    return format_probability(p)
