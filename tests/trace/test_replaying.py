"""Recordings sent again, and everything found in the answers."""

from __future__ import annotations

import pytest

from lmtool.errors import UsageError
from lmtool.trace.diff import Tolerance
from lmtool.trace.events import Event, Frame, Parsed, Request
from lmtool.trace.header import Header
from lmtool.trace.proxy import parse_target
from lmtool.trace.replaying import Demand, demand_of, refuse_redacted, renamed, replay
from tests.trace.conftest import generate, token, tokens


def test_what_a_header_asks_for() -> None:
    """Level, tolerances and limits are the header's where nothing else is said."""
    header = Header(verify={"level": "ids", "tol_logprob": 0.05, "ttft_ms": 9, "sampled": "shape"})
    asked = demand_of(header)
    assert (asked.level, asked.tolerance, asked.limits["ttft_ms"], asked.score) == ("ids", Tolerance(0.05), 9, False)
    said = demand_of(header, level="shape", tol_logprob=0.5, tie_eps=0.1, patience=3, speed=2)
    assert said == Demand("shape", Tolerance(0.5, 0.1), header.verify, 3, False, 2)
    assert demand_of(Header(verify={"level": "unheard of"})).level == "numbers"


def test_redacted_prompts_cannot_be_sent() -> None:
    """A recording without its prompts is refused, naming the request."""
    events = [generate(0.5, prompt={"$redacted": "prompt", "n": 3})]
    with pytest.raises(UsageError, match=r"at 0\.500 s on connection 1 has a redacted prompt"):
        refuse_redacted(events)
    refuse_redacted([generate(0)])


def test_another_model() -> None:
    """Requests ask for the other model; everything else stays."""
    events: list[Event] = [
        generate(0),
        tokens(1, token(7)),
        Request(2, 1, "POST", "/", {}, Parsed("", {"model": "m", "n": 1}, "py")),
        Frame(3, ">", 1, "no JSON"),
    ]
    first, answer, request, last = renamed(events, "other")
    assert isinstance(first, Frame)
    assert isinstance(first.content, Parsed)
    assert first.content.value == {"model": "other", "prompt": [5, 6, 7], "stream_id": 1}
    assert isinstance(request, Request)
    assert request.wire_body() == b'{"model": "other", "n": 1}'
    assert (answer, last) == (events[1], events[3])


STORY = [1, 403, 407, 261, 378]


def sampled(served_logprob: float) -> list[Event]:
    """A stream that was drawn by chance, with this logprob for the stories model's most likely next token."""
    entry = token(432, 1, served_logprob, top_logprobs={"432": served_logprob})
    return [
        generate(0, model=None, prompt=STORY, temperature=1.5, max_tokens=1),
        tokens(1, entry | {"finish_reason": "length"}),
    ]


async def test_what_was_sampled_is_scored(served: str) -> None:
    """A drawn stream is checked by the server's score of its tokens: off by 0.01 is found; other tokens are not."""
    from lmtool.interfaces import stream
    from lmtool.lmtp.client import LmtpClient
    from lmtool.types import ScoreRequest

    async with LmtpClient(served) as client:
        (scored,) = [one async for one in stream(client, ScoreRequest(1, tuple(STORY), (432,)))]
    assert scored.logprob is not None
    target, demand = parse_target(served), Demand(tolerance=Tolerance(1e-3))
    good = await replay(sampled(scored.logprob), target, demand)
    assert [(one.kind, one.verdict) for one in good.comparisons] == [
        ("GENERATE", "pass"),
        ("SCORE of a sampled stream", "pass"),
    ]
    bad = await replay(sampled(scored.logprob - 0.01), target, demand)
    (finding,) = bad.comparisons[1].findings
    assert str(finding).startswith("fail (numbers) stream 1/1 token 0: expected logprob -")
    assert (await replay(sampled(-9), target, Demand("ids"))).verdict == "pass"


async def test_time(served: str) -> None:
    """At level time the limits are looked at."""
    recorded: list[Event] = [
        generate(0, model=None, prompt=STORY, max_tokens=3),
        tokens(1, token(432) | {"finish_reason": "length"}),
    ]
    found = (await replay(recorded, parse_target(served), Demand("time", limits={"ttft_ms": 0.001}))).comparisons
    assert any(finding.level == "time" for one in found for finding in one.findings)
