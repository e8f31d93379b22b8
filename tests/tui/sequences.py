"""Streams to be aligned, as recordings have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.trace.events import Frame, Parsed, Vocab
from lmtool.trace.header import Header
from lmtool.tui.alignment import Side
from lmtool.tui.lines import Spool
from lmtool.tui.state import State
from lmtool.tui.view import View
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.trace.events import Event

WORDS: Mapping[int, str | bytes] = {1: "a", 2: "b", 3: "c", 4: "d", 5: "x", 6: "y", 7: "z", 8: "ab"}
Token = tuple[int, float, dict[str, float]]


def plain(*ids: int) -> list[Token]:
    """Tokens without alternatives, the n-th of logprob -n."""
    return [(one, -float(i), {}) for i, one in enumerate(ids, 1)]


def score(prompt: object, scored: Sequence[int], stream_id: int = 1) -> Frame:
    """One SCORE frame."""
    payload = {"model": "m", "prompt": prompt, "scored": list(scored), "stream_id": stream_id, "top_logprobs": 3}
    return Frame(0.0, ">", 1, Parsed("SCORE", payload, "py"))


def side(
    *brought: Token,
    words: Mapping[int, str | bytes] = WORDS,
    ask: Event | None = None,
    tokenizer: str | None = None,
    **request: object,
) -> Side:
    """A stream of its own trace. tokenizer: the hash that the trace's header has. request: fields of the GENERATE."""
    spool = Spool(State(Header(model={"tokenizer": {"sha256": tokenizer}} if tokenizer else {})))
    events: list[Event] = [Vocab(0.0, 0, words), ask or generate(0.0, **request)]  # type: ignore[arg-type] # fields of the payload
    spool.feed([*events, *[tokens(0.1, token(i, logprob=p, top_logprobs=top)) for i, p, top in brought]])
    return Side(View(spool.state, spool), spool.state.streams[0])


def sides(*streams: tuple[Event, Sequence[Token]]) -> list[Side]:
    """Streams of one trace; the n-th has the id n."""
    spool = Spool()
    spool.feed([Vocab(0.0, 0, WORDS), *(ask for ask, _ in streams)])
    for number, (_, brought) in enumerate(streams, 1):
        spool.feed([tokens(0.1, token(i, number, logprob=p, top_logprobs=top)) for i, p, top in brought])
    view = View(spool.state, spool)
    return [Side(view, stream) for stream in spool.state.streams]
