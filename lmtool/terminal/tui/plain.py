"""Output without a screen: a line per event, or sentences when a stream ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.logprobs.distribution import perplexity, probability
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.measures import Measures, Selection, StreamFacts
from lmtool.trace.answers import Answers, StreamText
from lmtool.trace.description import describe, line_of
from lmtool.trace.events import Remark, Vocab
from lmtool.trace.stream_events import RequestStarted, Stream, new_stream, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.trace.events import Event
    from lmtool.trace.filter import Facts, Filter
    from lmtool.trace.stream_events import OutputEvent, StreamEvent

LONGEST_TEXT = 2000
"""Characters of a stream's text that are printed."""


class _FilteredOutput:
    """Base of both outputs. A live filter tests events in a state, so that it means the same as on a screen."""

    def __init__(self, put: Callable[[str], None], expression: Filter | None, selection: Selection | None) -> None:
        self._put = put
        self._store = EventStore() if expression is not None and selection is None else None
        self._selection = selection
        if expression is not None and self._store is not None:
            self._selection = Selection(expression, Measures(self._store.state, self._store))

    def _store_events(self, events: Sequence[Event]) -> None:
        if self._store is not None:
            self._store.feed(events)


class PlainLines(_FilteredOutput):
    """Prints a line per event, as `lmtool trace show` does; `feed` is a `Feed`."""

    def __init__(
        self, put: Callable[[str], None], expression: Filter | None = None, *, selection: Selection | None = None
    ) -> None:
        """put: takes each line. expression: a live filter; selection: the filter of a file that was read before.

        Without either everything is printed. Live events are printed as soon as the filter lets them through: where it
        tests how streams end, that may be at the end.
        """
        super().__init__(put, expression, selection)
        self._answers = Answers(stream_of)
        self._undecided: dict[int, list[tuple[Facts, str]]] = {}
        """Lines of running streams that wait for the end of their stream, which decides whether they match."""

    def feed(self, events: Sequence[Event]) -> None:
        """Print these events."""
        self._store_events(events)
        for event in events:
            if self._selection is not None:
                for step in self._answers.follow(event):
                    self._print(self._selection, step)
            elif isinstance(event, Vocab):
                self._answers.follow(event)
            else:
                for line in describe(event, self._answers):
                    self._put(line)
        if self._undecided:
            self._print_ended()

    def _print(self, selection: Selection, step: StreamEvent) -> None:
        facts, line = selection.facts(step), line_of(step, self._answers)
        index = step.stream.index
        if selection.filter.token(facts):
            self._put(line)
        elif self._store is not None and "state" in selection.filter.names and index >= 0:
            self._undecided.setdefault(index, []).append((facts, line))

    def _print_ended(self) -> None:
        assert self._selection is not None
        streams = self._selection.measures.state.streams
        for index in [index for index in self._undecided if streams[index].ended is not None]:
            of_stream = self._selection.of_stream(index)
            for facts, line in self._undecided.pop(index):
                if self._selection.filter.token(of_stream if isinstance(facts, StreamFacts) else facts):
                    self._put(line)

    def finish(self) -> None:
        """Nothing is left to print."""


@dataclass(slots=True, eq=False)
class _SpokenStream(Stream):
    """One stream so far."""

    request: str = "unknown"
    text: StreamText | None = None
    thought: list[str] = field(default_factory=list)
    """Pieces of the model's thought before its answer."""
    pieces: list[str] = field(default_factory=list)
    tokens: int = 0
    first: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    least: tuple[float, str, int] | None = None
    """Logprob, text and position of the least likely token."""


class Sentences(_FilteredOutput):
    """Prints sentences, one stream after the other, for screen readers; `feed` is a `Feed`."""

    def __init__(
        self, put: Callable[[str], None], expression: Filter | None = None, *, selection: Selection | None = None
    ) -> None:
        """As `PlainLines`: a stream is printed when it or one of its tokens passes."""
        super().__init__(put, expression, selection)
        self._answers = Answers(self._new_stream)
        self._running: dict[int, _SpokenStream] = {}

    def _new_stream(self, started: RequestStarted, index: int, choice: int) -> _SpokenStream:
        request = started.kind if started.has_request else "unknown"
        stream = new_stream(
            _SpokenStream, started, index, choice, request=request, text=StreamText(self._answers.vocabulary)
        )
        if index >= 0:
            self._running[index] = stream
        return stream

    def feed(self, events: Sequence[Event]) -> None:
        """Print the streams that end with these events."""
        self._store_events(events)
        for event in events:
            for step in self._answers.follow(event):
                if not isinstance(step, RequestStarted) and step.stream.index in self._running:
                    self._output(self._running[step.stream.index], step)
            if isinstance(event, Remark):
                self._put(f"Note: {event.text}")

    def finish(self) -> None:
        """Print the streams that have not ended."""
        for stream in list(self._running.values()):
            self._end(stream, "has not ended", None)

    def _output(self, stream: _SpokenStream, output: OutputEvent) -> None:
        assert stream.text is not None
        text = stream.text.add(output)
        (stream.thought if output.is_thought else stream.pieces).append(text)
        if output.counts:
            stream.first = stream.first if stream.tokens else output.time
            stream.tokens += 1
        if output.logprob is not None:
            stream.logprobs.append(output.logprob)
            if stream.least is None or output.logprob < stream.least[0]:
                stream.least = (output.logprob, self._answers.text_of(output) or text, stream.tokens)
        if stream.cut:
            self._end(stream, f"was cut off: {stream.error}", output.time)
        elif output.last:
            how = f"failed: {output.error}" if output.error is not None else f"ended with {output.finish_reason}"
            self._end(stream, how, output.time)

    def _end(self, stream: _SpokenStream, how: str, time: float | None) -> None:
        del self._running[stream.index]
        if self._selection is None or self._selection.passes_any(stream.index):
            self._put(" ".join(_sentences(stream, how, time)))


def _sentences(stream: _SpokenStream, how: str, time: float | None) -> list[str]:
    sentences = [f"Stream {stream.label}, {stream.request}, {how}."]
    counted = "1 token" if stream.tokens == 1 else f"{stream.tokens} tokens"
    span = None if time is None else time - stream.first
    rate = f", {(stream.tokens - 1) / span:.0f} a second" if span and stream.tokens > 1 else ""
    sentences.append(f"{counted[0].upper()}{counted[1:]}{rate}.")
    if stream.tokens:
        sentences.append(f"The first one came after {1000 * (stream.first - stream.started_at):.0f} milliseconds.")
    if (ppl := perplexity(sum(stream.logprobs), len(stream.logprobs))) is not None:
        sentences.append(f"Perplexity {ppl:.1f}.")
    if stream.least is not None:
        share = 100 * probability(stream.least[0])
        sentences.append(f"Least likely: token {stream.least[2]}, {stream.least[1]!r}, with {share:.2g} percent.")
    texts = {"Thought": _flat(stream.thought), "Text": _flat(stream.pieces)}
    return [*sentences, *(f"{name}: {text}" for name, text in texts.items() if text)]


def _flat(pieces: list[str]) -> str:
    text = "".join(pieces).strip()
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} (and more)"
    return " ".join(cut.split())
