"""Requests of streams, read again."""

from __future__ import annotations

import pytest

from lmtool.errors import UsageError
from lmtool.trace.events import Frame, Parsed
from lmtool.tui.lines import Spool
from lmtool.tui.recorded_request import context_of, ids_of, prompt_of, request_of
from lmtool.tui.view import View
from lmtool.types import ChatMessage
from tests.trace.conftest import generate, token, tokens
from tests.tui.folding import asked, chunk, sse
from tests.tui.sequences import score


def view(*events: object) -> View:
    """A view of these events."""
    spool = Spool()
    spool.feed(events)  # type: ignore[arg-type] # events
    return View(spool.state, spool)


def test_what_a_stream_follows() -> None:
    """Ids as they were sent, however many; a text; messages."""
    long = list(range(1000))
    for prompt, expected in ((long, tuple(long)), ("a text", "a text")):
        made = view(generate(0.0, prompt=prompt))
        assert prompt_of(made, request_of(made, made.state.streams[0])) == expected
        assert context_of(made, made.state.streams[0]) == expected
    payload = {"messages": [{"role": "user", "content": "Hi"}], "stream_id": 1}
    made = view(Frame(0.0, ">", 1, Parsed("GENERATE", payload, "py")))
    assert context_of(made, made.state.streams[0]) == (ChatMessage("user", "Hi"),)


def test_an_empty_prompt() -> None:
    """GENERATE begins it with the model's bos; before SCORE there is nothing."""
    made, scored = view(generate(0.0, prompt=[])), view(score([], [1]))
    assert context_of(made, made.state.streams[0]) == ""
    for one in (made, scored):
        one.state.bos = 9
    assert context_of(made, made.state.streams[0]) == (9,)
    assert context_of(scored, scored.state.streams[0]) == ""


def test_an_http_request() -> None:
    """Of its body counts what a model is told; it has no ids to be asked again."""
    made, other = view(asked(0.0), sse(0.1, chunk(" a"))), view(asked(0.0, prompt="other"))
    assert context_of(made, made.state.streams[0]) == context_of(made, made.state.streams[0])
    assert context_of(made, made.state.streams[0]) != context_of(other, other.state.streams[0])
    with pytest.raises(UsageError, match="no ids"):
        request_of(made, made.state.streams[0])


def test_what_is_not_known() -> None:
    """A request that was redacted or never seen, and tokens without ids, cannot be asked again."""
    for made, says in (
        (view(tokens(0.1, token(1))), "was not recorded"),
        (view(generate(0.0, prompt={"$redacted": "prompt", "n": 3})), "cannot be sent again"),
    ):
        with pytest.raises(UsageError, match=says):
            request_of(made, made.state.streams[0])
        assert context_of(made, made.state.streams[0]) is None
    made = view(generate(0.0), tokens(0.1, {"stream_id": 1, "text": "no id", "finish_reason": None}))
    with pytest.raises(UsageError, match="have no ids"):
        ids_of(made, made.state.streams[0], 1)
