"""What the inspector says where there is no screen: a line an event, or a sentence when a stream ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.trace.conversation import Began, Conversation, StreamText
from lmtool.trace.description import describe
from lmtool.trace.events import Drop, Remark, Vocab
from lmtool.trace.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.trace.conversation import Produced, Step
    from lmtool.trace.events import Event
    from lmtool.trace.filter import Filter

LONGEST_TEXT = 2000
"""Characters of a stream's text that are read out."""


class PlainLines:
    """A line an event, as `lmtool trace show` prints them; `feed` is a `Feed`."""

    def __init__(self, put: Callable[[str], None], chosen: Filter | None = None) -> None:
        """put: takes each line. chosen: what to tell of; None tells everything."""
        self._put = put
        self._conversation = Conversation()
        self._selection = None if chosen is None else Selection(chosen, self._conversation)

    def feed(self, events: Sequence[Event]) -> None:
        """Tell these events."""
        for event in events:
            if isinstance(event, Vocab):
                self._conversation.follow(event)
                continue
            for line in describe(event, self._conversation, self._selection):
                self._put(line)

    def finish(self) -> None:
        """Nothing is left to tell."""


@dataclass(slots=True)
class _Told:
    """One stream as far as it has come."""

    kind: str
    began: float
    text: StreamText
    pieces: list[str] = field(default_factory=list)
    tokens: int = 0
    first: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    least: tuple[float, str, int] | None = None
    """Logprob, text and position of the least likely token."""


class Sentences:
    """Whole sentences, one stream after the other, for a reader that speaks; `feed` is a `Feed`."""

    def __init__(self, put: Callable[[str], None], chosen: Filter | None = None) -> None:
        """put: takes each line. chosen: a stream is told when one of its tokens is wanted; None tells all."""
        self._put = put
        self._conversation = Conversation()
        self._selection = None if chosen is None else Selection(chosen, self._conversation)
        self._running: dict[str, _Told] = {}
        self._wanted: set[str] = set()

    def feed(self, events: Sequence[Event]) -> None:
        """Tell what ends with these events."""
        for event in events:
            for step in self._conversation.follow(event):
                self._step(step)
            if isinstance(event, Remark):
                self._put(f"Note: {event.text}")
            elif isinstance(event, Drop):
                self._dropped(event)

    def finish(self) -> None:
        """Tell of the streams that have not ended."""
        for label in list(self._running):
            self._end(label, "has not ended", None)

    def _step(self, step: Step) -> None:
        if self._selection is not None and self._selection.wants(step):
            self._wanted.add(step.stream)
        if isinstance(step, Began):
            if step.kind != "MODEL_INFO":
                self._running[step.stream] = _Told(step.kind, step.time, StreamText(self._conversation))
            return
        told = self._running.setdefault(step.stream, _Told("unknown", step.time, StreamText(self._conversation)))
        self._token(told, step)
        if step.output.error is not None:
            self._end(step.stream, f"failed: {step.output.error}", step.time)
        elif step.output.last:
            self._end(step.stream, f"ended with {step.output.finish_reason}", step.time)

    def _token(self, told: _Told, step: Produced) -> None:
        output = step.output
        text = told.text.add(output)
        told.pieces.append(text)
        if output.token is None and not output.text:
            return
        told.first = told.first if told.tokens else step.time
        told.tokens += 1
        if output.logprob is not None:
            told.logprobs.append(output.logprob)
            if told.least is None or output.logprob < told.least[0]:
                named = self._conversation.text_of(output.token) if output.token is not None else text
                told.least = (output.logprob, named or text, told.tokens)

    def _dropped(self, event: Drop) -> None:
        for label in [label for label in self._running if label.partition("/")[0] == str(event.connection)]:
            self._end(label, "was cut off: the connection is gone", event.time)

    def _end(self, label: str, how: str, time: float | None) -> None:
        told = self._running.pop(label)
        if self._selection is not None and label not in self._wanted:
            return
        self._wanted.discard(label)
        self._put(" ".join(_sentences(label, told, how, time)))


def _sentences(label: str, told: _Told, how: str, time: float | None) -> list[str]:
    said = [f"Stream {label}, {told.kind}, {how}."]
    counted = "1 token" if told.tokens == 1 else f"{told.tokens} tokens"
    span = None if time is None else time - told.first
    rate = f", {(told.tokens - 1) / span:.0f} a second" if span and told.tokens > 1 else ""
    said.append(f"{counted[0].upper()}{counted[1:]}{rate}.")
    if told.tokens:
        said.append(f"The first one came after {1000 * (told.first - told.began):.0f} milliseconds.")
    if told.logprobs:
        said.append(f"Perplexity {math.exp(min(-sum(told.logprobs) / len(told.logprobs), 700)):.1f}.")
    if told.least is not None:
        share = 100 * math.exp(min(told.least[0], 0.0))
        said.append(f"Least likely: token {told.least[2]}, {told.least[1]!r}, with {share:.2g} percent.")
    text = "".join(told.pieces).strip()
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} (and more)"
    flat = " ".join(cut.split())
    return [*said, f"Text: {flat}"] if flat else said
