"""Requests that go on from a token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lmtool.errors import UsageError
from lmtool.lmtp.codec import decode_request
from lmtool.trace.events import Blob, Frame, Parsed, Vocab
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


def test_an_empty_prompt() -> None:
    """What the model put in front of it stands in front of the branch."""
    made = view(generate(0.0, prompt=[]), ANSWER)
    made.state.bos = 1
    assert branch(made, 1, 99).prompt == (1, 11, 99)


HOLDS: list[tuple[dict[str, object], str]] = [
    ({"constraint": {"regex": "a+"}}, "its constraint"),
    ({"logits_processors": [{"name": "x"}]}, "its logits_processors"),
    ({"presence_penalty": 0.5}, "its presence_penalty"),
    ({"frequency_penalty": 0.5}, "its frequency_penalty"),
    ({"stop": ["bx"]}, "a stop text that may have begun"),
]


@pytest.mark.parametrize(("fields", "says"), HOLDS)
def test_what_depends_on_the_tokens_before(fields: dict[str, object], says: str) -> None:
    """Kept tokens become a prompt, which a constraint would not read: it is refused by name, never dropped."""
    made = view(Vocab(0.0, 0, {11: "ab"}), generate(0.0, **fields), ANSWER)  # type: ignore[arg-type] # fields
    for ask in (lambda: branch(made, 0, 11), lambda: ruled_out(made, 1, 12)):
        with pytest.raises(UsageError, match=says):
            ask()
    kept = ruled_out(made, 0, 11)
    asked = decode_request(generate(0.0, **fields).wire()).request  # type: ignore[arg-type, union-attr] # a GENERATE
    assert (kept.constraint, kept.logits_processors, kept.prompt) == (
        asked.constraint,
        asked.logits_processors,
        (5, 6, 7),
    )
    assert replace(kept.sampling, logit_bias={}, max_tokens=32, top_logprobs=1) == asked.sampling


@pytest.mark.parametrize(
    ("stop", "words", "refused"),
    [("bx", "ab", True), ("x", "ab", False), ("ab", "ab", True), ("bx", "b\n", False), ("x", None, True)],
)
def test_stop_texts(stop: str, words: str | None, refused: bool) -> None:
    """One that has not begun is found by the branch as well; where nobody spells the tokens that is not known."""
    made = view(Vocab(0.0, 0, {} if words is None else {99: words}), generate(0.0, stop=[stop]), ANSWER)
    if refused:
        with pytest.raises(UsageError, match="stop text"):
            branch(made, 0, 99)
    else:
        assert branch(made, 0, 99).sampling.stop == (stop,)


def test_parameters_that_count() -> None:
    """What is left of min_tokens; the seed, which begins anew; a repetition penalty, which counts prompts as well."""
    made = branch(view(generate(0.0, min_tokens=5, seed=3, repetition_penalty=1.5), ANSWER), 1, 99)
    assert (made.sampling.min_tokens, made.sampling.seed, made.sampling.repetition_penalty) == (3, 3, 1.5)
    assert branch(view(generate(0.0, min_tokens=1), ANSWER), 2, 99).sampling.min_tokens == 0


def test_an_alternative_that_ends_the_stream() -> None:
    """Nothing comes after an eos or stop id: a stream with it would have ended there."""
    made = view(generate(0.0, stop_token_ids=[98]), ANSWER)
    made.state.eos = frozenset([99])
    for ending, says in ((98, "stop_token_ids"), (99, "ends the text")):
        with pytest.raises(UsageError, match=says):
            branch(made, 1, ending)
    made = view(generate(0.0, ignore_eos=True), ANSWER)
    made.state.eos = frozenset([99])
    assert branch(made, 1, 99).prompt == (5, 6, 7, 11, 99)


def test_fields_that_are_not_known() -> None:
    """What a branch could not send again is told."""
    with pytest.raises(UsageError, match="the field typical_p"):
        ruled_out(view(generate(0.0, typical_p=0.5), ANSWER), 0, 11)


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
