"""States, views, streams and requests for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.terminal.tui.alignment import Side
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.measures import Measures
from lmtool.terminal.tui.state import State
from lmtool.terminal.tui.view import View
from lmtool.trace.codec import Header
from lmtool.trace.events import Frame, JsonText, Piece, Request, Vocab
from tests.terminal.tui.scripted import conversation
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.terminal.tui.documents.document import Document
    from lmtool.terminal.tui.runs import Line
    from lmtool.trace.events import Event


def fed(*events: Event) -> State:
    """A state that took these events."""
    state = State()
    state.feed(events)
    return state


def measures(*events: Event) -> Measures:
    """Of the tokens of these events."""
    spool = EventStore()
    spool.feed(events)
    return Measures(spool.state, spool)


def sse(moment: float, value: object, connection: int = 1) -> Piece:
    """A server-sent event."""
    return Piece(moment, "sse", connection, JsonText("data: ", value, "py"))


def chunk(text: str, index: int = 0, **choice: object) -> dict[str, object]:
    """A chunk of a streamed completion."""
    return {"choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": None, **choice}]}


def asked(moment: float, path: str = "/v1/completions", **body: object) -> Request:
    """A request for a completion."""
    payload = {"model": "m", "prompt": "Once", "max_tokens": 9, "stream": True, **body}
    return Request(moment, 1, "POST", path, {}, JsonText("", payload, "py"))


WORDS: Mapping[int, str | bytes] = {1: "a", 2: "b", 3: "c", 4: "d", 5: "x", 6: "y", 7: "z", 8: "ab"}


Token = tuple[int, float, dict[str, float]]


def plain(*ids: int) -> list[Token]:
    """Tokens without alternatives, the n-th of logprob -n."""
    return [(one, -float(i), {}) for i, one in enumerate(ids, 1)]


def score(prompt: object, scored: Sequence[int], stream_id: int = 1) -> Frame:
    """One SCORE frame."""
    payload = {"model": "m", "prompt": prompt, "scored": list(scored), "stream_id": stream_id, "top_logprobs": 3}
    return Frame(0.0, ">", 1, JsonText("SCORE", payload, "py"))


def side(
    *brought: Token,
    words: Mapping[int, str | bytes] = WORDS,
    ask: Event | None = None,
    tokenizer: str | None = None,
    **request: object,
) -> Side:
    """A stream of its own trace. tokenizer: the hash that the trace's header has. request: fields of the GENERATE."""
    spool = EventStore(State(Header(model={"tokenizer": {"sha256": tokenizer}} if tokenizer else {})))
    events: list[Event] = [Vocab(0.0, 0, words), ask or generate(0.0, **request)]  # type: ignore[arg-type] # fields of the payload
    spool.feed([*events, *[tokens(0.1, token(i, logprob=p, top_logprobs=top)) for i, p, top in brought]])
    return Side(View(spool.state, spool), spool.state.streams[0])


def sides(*streams: tuple[Event, Sequence[Token]]) -> list[Side]:
    """Streams of one trace; the n-th has the id n."""
    spool = EventStore()
    spool.feed([Vocab(0.0, 0, WORDS), *(ask for ask, _ in streams)])
    for number, (_, brought) in enumerate(streams, 1):
        spool.feed([tokens(0.1, token(i, number, logprob=p, top_logprobs=top)) for i, p, top in brought])
    view = View(spool.state, spool)
    return [Side(view, stream) for stream in spool.state.streams]


def view_of(events: Sequence[Event] | None = None) -> View:
    """A view that has seen these events."""
    spool = EventStore()
    spool.feed(conversation() if events is None else events)
    return View(spool.state, spool)


def text(line: Line) -> str:
    """A line without styles."""
    return "".join(run.text for run in line)


def rows(document: Document, columns: int) -> list[str]:
    """All lines of a document."""
    return [text(document.line(y, columns)).rstrip() for y in range(document.height(columns))]
