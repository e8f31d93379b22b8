"""Streams and what happens to them, as data."""

from __future__ import annotations

import pytest

from lmtool.protocol.providers.answer_reader import api_of
from lmtool.trace.stream_events import OutputEvent, RequestStarted, stream_of


def started(kind: str = "GENERATE", **payload: object) -> RequestStarted:
    """A request."""
    method, _, path = kind.partition(" ")
    return RequestStarted(0.5, 1, "1/3", kind, payload, api_of(method, path))


@pytest.mark.parametrize(
    ("request_", "prompt", "length"),
    [
        (started(prompt=[1, 2]), [1, 2], 2),
        (started(prompt="text"), "text", None),
        (started(message="text", chat_history=[]), "text", None),
        (started(message={"role": "user", "content": "text"}), "text", None),
        (started("POST /v1/chat/completions", messages=[{"role": "user"}]), [{"role": "user"}], 1),
        (started("POST /v1/responses", input="text"), "text", None),
        (started(prompt={"$redacted": "prompt", "n": 12}), {"$redacted": "prompt", "n": 12}, 12),
        (started(prompt=[1, "a"]), [1, "a"], 2),
        (started(), None, None),
    ],
)
def test_prompts(request_: RequestStarted, prompt: object, length: int | None) -> None:
    """Ids, text or messages under each API's own name; a redacted one has its length."""
    assert (request_.prompt, request_.prompt_length) == (prompt, length)


def test_labels_of_choices() -> None:
    """The first choice has the request's label, further ones their number behind it."""
    first, second = stream_of(started(model="m"), 0, 0), stream_of(started(model="m"), 1, 1)
    assert (first.label, second.label, second.index, second.model, second.started_at) == ("1/3", "1/3.1", 1, "m", 0.5)


@pytest.mark.parametrize(
    ("reason", "error", "cut", "phase"),
    [
        ("stop", None, False, "stop"),
        ("length", None, False, "length"),
        ("cancelled", None, False, "cancelled"),
        ("tool_calls", None, False, "stop"),
        ("content_filter", None, False, "stop"),
        ("error", None, False, "error"),
        (None, "no", False, "error"),
        (None, "the connection ended", True, "unfinished"),
    ],
)
def test_how_streams_end(reason: str | None, error: str | None, cut: bool, phase: str) -> None:
    """One word for each; whatever else a server calls it, the stream is over. The first ending counts."""
    stream = stream_of(started(), 0, 0)
    assert [stream.phase_at(9.0, produced=produced) for produced in (False, True)] == ["waiting", "running"]
    stream.end(1.0, reason, error, cut=cut)
    stream.end(2.0, "stop", None)
    assert (stream.phase_at(1.0, produced=True), stream.phase_at(0.9, produced=True)) == (phase, "running")


def test_what_counts_as_a_token() -> None:
    """A token, named or not, and text without one; no ending on its own."""
    stream = stream_of(started(), 0, 0)
    counted = [OutputEvent(0.0, stream, 5), OutputEvent(0.0, stream, text="a"), OutputEvent(0.0, stream, logprob=-1.0)]
    assert all(one.counts for one in counted)
    ending = OutputEvent(0.0, stream, text="", finish_reason="stop")
    assert (ending.counts, ending.last) == (False, True)
    assert OutputEvent(0.0, stream, 5, top={"top_logprobs": {"5": -1}}).alternatives == ((5, -1.0),)
