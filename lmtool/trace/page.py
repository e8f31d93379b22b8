"""Streams of traces as one HTML page: coloured tokens, their alternatives, keys; nothing is loaded from elsewhere."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.core.logprobs.distribution import Distribution, bits, perplexity, probability
from lmtool.core.logprobs.heat import heat_value, legend, step_of
from lmtool.core.logprobs.numbers import figure, format_probability
from lmtool.settings.terminal import visible
from lmtool.trace.answers import Answers, StreamText
from lmtool.trace.diff import first_difference
from lmtool.trace.page_colors import on_both_grounds
from lmtool.trace.page_template import PAGE, SCRIPT, STYLE
from lmtool.trace.stream_events import RequestStarted, Stream, new_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lmtool.core.logprobs.heat import HeatMode
    from lmtool.trace.events import Event
    from lmtool.trace.stream_events import OutputEvent

MAX_TOKENS = 50_000
"""Of one page; a browser is slow with more."""
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
    """Streams of one trace or several, in their order."""

    heat: HeatMode = "prob"
    labels: frozenset[str] = frozenset()
    """Of the streams to show; empty: all."""
    columns: list[PageStream] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    """Texts of token ids."""
    _count: int = 0
    _source: str = ""

    def read(self, events: Iterable[Event], source: str = "") -> None:
        """Take the events of a trace. Raises `UsageError` for more tokens than a page may have.

        source: what its streams are said to be of, such as the file; empty: nothing.
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
        """Streams that have something to show."""
        return [stream for stream in self.columns if stream.tokens or stream.ended is not None]

    def title(self, title: str | None = None) -> str:
        """The page's title: this one, or one made of the first prompt."""
        shown = self.visible_streams
        name = title or (" ".join(shown[0].prompt.split()) if shown else "") or "lmtool trace"
        return name if len(name) <= _TITLE_CHARACTERS else f"{name[:_TITLE_CHARACTERS]}…"

    def html(self, title: str | None = None) -> str:
        """The page. title: None for one made of the first prompt."""
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
        """Names of a token's looks: the step of its heat, `h0` to `h7`, where it has one, and `thought`."""
        own: int | str | bytes = token.text if token.id is None else token.id
        distribution = Distribution.of(own, token.logprob, token.alternatives) if token.alternatives else None
        step = step_of(self.heat, heat_value(self.heat, token.logprob, distribution, None))
        return " ".join([*([] if step is None else [f"h{step}"]), *(["thought"] if token.is_thought else [])])

    def about(self, number: int, token: PageToken) -> str:
        """What pointing at a token shows: its figures, then an alternative a line."""
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
    """How many tokens two streams have in common at their beginning; None for any other number of streams."""
    if len(streams) != 2:
        return None
    return first_difference(*([(token.id, token.text) for token in stream.tokens] for stream in streams))


def heading(stream: PageStream) -> str:
    """Where a stream comes from, its label, its model."""
    return " ".join(filter(None, (stream.source, stream.label, stream.model)))


def summary(streams: Sequence[PageStream], equal: int | None) -> str:
    """How many streams and tokens; of two, how far they are equal (`equal_tokens`)."""
    count = sum(len(stream.tokens) for stream in streams)
    parts = [f"{len(streams)} stream{'s' * (len(streams) != 1)}", f"{count} tokens"]
    if equal is not None:
        same = len(streams[0].tokens) == len(streams[1].tokens) == equal
        parts.append("equal" if same else f"equal for {equal} tokens")
    return " · ".join(parts)


def ending(stream: PageStream) -> str:
    """How many tokens, how it ended, its perplexity."""
    parts = [f"{len(stream.tokens)} tokens", stream.error or stream.finish_reason or "not finished"]
    logprobs = [token.logprob for token in stream.tokens if token.logprob is not None]
    mean = perplexity(sum(logprobs), len(logprobs)) if len(logprobs) == len(stream.tokens) else None
    return " · ".join([*parts, *([] if mean is None else [f"perplexity {figure(mean)}"])])


def _prompt(started: RequestStarted, answers: Answers[PageStream]) -> str:
    """The prompt as text, as far as the trace tells it; of a conversation its last message."""
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
    """The text for HTML and SVG, with nothing that acts or hides."""
    return html.escape(visible(text))
