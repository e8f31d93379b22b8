"""Requests that go on from a token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lmtool.errors import UsageError
from lmtool.trace.events import Blob, Frame, Parsed
from lmtool.trace.header import Header
from lmtool.trace.writer import TraceWriter
from lmtool.tui.branching import RULED_OUT, branch, ruled_out
from lmtool.tui.lines import Spool, TraceFile
from lmtool.tui.view import View
from tests.trace.conftest import generate, token, tokens
from tests.tui.folding import asked, chunk, sse

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.trace.events import Event

ANSWER = tokens(0.1, token(11), token(12), token(13))


def view(*events: Event) -> View:
    """A view of these events."""
    spool = Spool()
    spool.feed(events)
    return View(spool.state, spool)


def test_a_branch() -> None:
    """The prompt, the tokens before, and another token; the parameters of the stream, and its remaining length."""
    made = branch(view(generate(0.0, max_tokens=20, temperature=0.7), ANSWER), 1, 99)
    assert made.prompt == (5, 6, 7, 11, 99)
    assert (made.sampling.temperature, made.sampling.max_tokens, made.model) == (0.7, 18, "m")
    assert made.sampling.top_logprobs == 5
    assert made.sampling.logit_bias == {}


def test_ruled_out() -> None:
    """The same place again, where the token cannot come; what was biased before stays so."""
    made = ruled_out(view(generate(0.0, logit_bias={"4": 2.0}), ANSWER), 2, 13)
    assert made.prompt == (5, 6, 7, 11, 12)
    assert made.sampling.logit_bias == {4: 2.0, 13: RULED_OUT}


def test_a_branch_is_never_empty() -> None:
    """At the end of a stream there is still something to see."""
    assert branch(view(generate(0.0, max_tokens=3), ANSWER), 2, 9).sampling.max_tokens == 8


def test_a_branch_of_given_text() -> None:
    """A SCORE can be gone on from as well: its tokens are those of the given text."""
    score = Frame(
        0.0, ">", 1, Parsed("SCORE", {"model": "m", "prompt": [5], "scored": [11, 12, 13], "stream_id": 1}, "py")
    )
    assert branch(view(score, ANSWER), 1, 9).prompt == (5, 11, 9)


def test_a_prompt_in_a_blob(tmp_path: Path) -> None:
    """A prompt that a trace keeps as a blob is whole again."""
    writer = TraceWriter(tmp_path / "a.jsonl", Header(json="py"))
    for event in (Blob(0.0, 0, "ab", [1, 2, 3]), generate(0.0, prompt={"$blob": "ab"}), ANSWER):
        writer.write(event)
    writer.close(1.0)
    file = TraceFile(tmp_path / "a.jsonl")
    file.load(1.0)
    assert branch(View(file.state, file, live=False), 0, 9).prompt == (1, 2, 3, 9)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ((asked(0.0), sse(0.1, chunk(" a")), sse(0.2, chunk(" b"))), "no ids"),
        (
            (replace(generate(0.0), content=Parsed("GENERATE", {"prompt": "text", "stream_id": 1}, "py")), ANSWER),
            "as text",
        ),
        ((generate(0.0, prompt={"$redacted": "prompt", "n": 3}), ANSWER), "cannot be sent again"),
        ((ANSWER,), "was not recorded"),
    ],
)
def test_what_cannot_be_branched(events: tuple[Event, ...], says: str) -> None:
    """Where ids or the request are not known, a sentence says so."""
    with pytest.raises(UsageError, match=says):
        branch(view(*events), 1, 9)
