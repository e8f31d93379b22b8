"""What the inspector says where there is no screen: a line an event, or a sentence when a stream ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.trace.answers import Answers, StreamText
from lmtool.trace.description import describe, line_of
from lmtool.trace.events import Remark, Vocab
from lmtool.trace.stream_events import RequestStarted, Stream, new_stream, stream_of
from lmtool.tui.facts import StreamFacts
from lmtool.tui.lines import Spool
from lmtool.tui.measures import Measures
from lmtool.tui.sieve import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.trace.events import Event
    from lmtool.trace.filter import Facts, Filter
    from lmtool.trace.stream_events import OutputEvent, StreamEvent

LONGEST_TEXT = 2000
"""Characters of a stream's text that are read out."""


class _FilteredOutput:
    """What both forms share: where a filter is to be live, events go into a state of their own before they are told.

    So a filter means here what it means on a screen.
    """

    def __init__(self, put: Callable[[str], None], chosen: Filter | None, selection: Selection | None) -> None:
        self._put = put
        self._spool = Spool() if chosen is not None and selection is None else None
        self._selection = selection
        if chosen is not None and self._spool is not None:
            self._selection = Selection(chosen, Measures(self._spool.state, self._spool))

    def _take(self, events: Sequence[Event]) -> None:
        if self._spool is not None:
            self._spool.feed(events)


class PlainLines(_FilteredOutput):
    """A line an event, as `lmtool trace show` prints them; `feed` is a `Feed`."""

    def __init__(
        self, put: Callable[[str], None], chosen: Filter | None = None, *, selection: Selection | None = None
    ) -> None:
        """put: takes each line. chosen: what to tell of, live; selection: the same of a file that was read before.

        Without either everything is told. What is live is told as soon as the filter lets it through: if it asks how
        streams end, that may be at the end.
        """
        super().__init__(put, chosen, selection)
        self._answers = Answers(stream_of)
        self._undecided: dict[int, list[tuple[Facts, str]]] = {}
        """Lines of running streams, that their ends decide about."""

    def feed(self, events: Sequence[Event]) -> None:
        """Tell these events."""
        self._take(events)
        for event in events:
            if self._selection is not None:
                for step in self._answers.follow(event):
                    self._tell(self._selection, step)
            elif isinstance(event, Vocab):
                self._answers.follow(event)
            else:
                for line in describe(event, self._answers):
                    self._put(line)
        if self._undecided:
            self._tell_ended()

    def _tell(self, selection: Selection, step: StreamEvent) -> None:
        facts, line = selection.facts(step), line_of(step, self._answers)
        index = step.stream.index
        if selection.filter.token(facts):
            self._put(line)
        elif self._spool is not None and "state" in selection.filter.names and index >= 0:
            self._undecided.setdefault(index, []).append((facts, line))

    def _tell_ended(self) -> None:
        assert self._selection is not None
        streams = self._selection.measures.state.streams
        for index in [index for index in self._undecided if streams[index].ended is not None]:
            of_stream = self._selection.of_stream(index)
            for facts, line in self._undecided.pop(index):
                if self._selection.filter.token(of_stream if isinstance(facts, StreamFacts) else facts):
                    self._put(line)

    def finish(self) -> None:
        """Nothing is left to tell."""


@dataclass(slots=True, eq=False)
class _Told(Stream):
    """One stream as far as it has come."""

    request: str = "unknown"
    text: StreamText | None = None
    pieces: list[str] = field(default_factory=list)
    tokens: int = 0
    first: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    least: tuple[float, str, int] | None = None
    """Logprob, text and position of the least likely token."""


class Sentences(_FilteredOutput):
    """Whole sentences, one stream after the other, for a reader that speaks; `feed` is a `Feed`."""

    def __init__(
        self, put: Callable[[str], None], chosen: Filter | None = None, *, selection: Selection | None = None
    ) -> None:
        """As `PlainLines`: a stream is told when it or one of its tokens is wanted."""
        super().__init__(put, chosen, selection)
        self._answers = Answers(self._new_stream)
        self._running: dict[int, _Told] = {}

    def _new_stream(self, started: RequestStarted, index: int, choice: int) -> _Told:
        request = started.kind if started.has_request else "unknown"
        told = new_stream(_Told, started, index, choice, request=request, text=StreamText(self._answers.vocabulary))
        if index >= 0:
            self._running[index] = told
        return told

    def feed(self, events: Sequence[Event]) -> None:
        """Tell what ends with these events."""
        self._take(events)
        for event in events:
            for step in self._answers.follow(event):
                if not isinstance(step, RequestStarted) and step.stream.index in self._running:
                    self._output(self._running[step.stream.index], step)
            if isinstance(event, Remark):
                self._put(f"Note: {event.text}")

    def finish(self) -> None:
        """Tell of the streams that have not ended."""
        for told in list(self._running.values()):
            self._end(told, "has not ended", None)

    def _output(self, told: _Told, output: OutputEvent) -> None:
        assert told.text is not None
        text = told.text.add(output)
        told.pieces.append(text)
        if output.counts:
            told.first = told.first if told.tokens else output.time
            told.tokens += 1
        if output.logprob is not None:
            told.logprobs.append(output.logprob)
            if told.least is None or output.logprob < told.least[0]:
                told.least = (output.logprob, self._answers.text_of(output) or text, told.tokens)
        if told.cut:
            self._end(told, f"was cut off: {told.error}", output.time)
        elif output.last:
            how = f"failed: {output.error}" if output.error is not None else f"ended with {output.finish_reason}"
            self._end(told, how, output.time)

    def _end(self, told: _Told, how: str, time: float | None) -> None:
        del self._running[told.index]
        if self._selection is None or self._selection.wants_any(told.index):
            self._put(" ".join(_sentences(told, how, time)))


def _sentences(told: _Told, how: str, time: float | None) -> list[str]:
    said = [f"Stream {told.label}, {told.request}, {how}."]
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
