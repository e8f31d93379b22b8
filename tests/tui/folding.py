"""States, measures and requests for tests of what is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.trace.events import Parsed, Piece, Request
from lmtool.tui.lines import Spool
from lmtool.tui.measures import Measures
from lmtool.tui.state import State

if TYPE_CHECKING:
    from lmtool.trace.events import Event


def fed(*events: Event) -> State:
    """A state that took these events."""
    state = State()
    state.feed(events)
    return state


def measures(*events: Event) -> Measures:
    """Of the tokens of these events."""
    spool = Spool()
    spool.feed(events)
    return Measures(spool.state, spool)


def sse(moment: float, value: object, connection: int = 1) -> Piece:
    """A server-sent event."""
    return Piece(moment, "sse", connection, Parsed("data: ", value, "py"))


def chunk(text: str, index: int = 0, **choice: object) -> dict[str, object]:
    """A chunk of a streamed completion."""
    return {"choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": None, **choice}]}


def asked(moment: float, path: str = "/v1/completions", **body: object) -> Request:
    """A request for a completion."""
    payload = {"model": "m", "prompt": "Once", "max_tokens": 9, "stream": True, **body}
    return Request(moment, 1, "POST", path, {}, Parsed("", payload, "py"))
