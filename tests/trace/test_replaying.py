"""Recordings sent again, and everything found in the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.errors import FileError, UsageError
from lmtool.trace import replaying
from lmtool.trace.codec import Header
from lmtool.trace.comparison import Tolerance
from lmtool.trace.events import Drop, Event, Frame, JsonText, Open, Request, Vocab
from lmtool.trace.exchanges import exchanges
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.replaying import (
    ReplayOptions,
    as_scores,
    judge_speed,
    refuse_redacted,
    replay,
    replay_to_mock,
    save_replay,
    speed_figures,
    unscored,
    with_model,
)
from tests.trace.conftest import generate, token, tokens


def test_what_a_header_asks_for() -> None:
    """Level, tolerances and limits are the header's where nothing else is said."""
    header = Header(verify={"level": "ids", "tol_logprob": 0.05, "ttft_ms": 9, "sampled": "shape"})
    asked = ReplayOptions.of(header)
    assert (asked.level, asked.tolerance, asked.limits["ttft_ms"], asked.score) == ("ids", Tolerance(0.05), 9, False)
    said = ReplayOptions.of(header, level="shape", tol_logprob=0.5, tie_eps=0.1, timeout=3, speed=2)
    assert said == ReplayOptions("shape", Tolerance(0.5, 0.1), header.verify, 3, False, 2)
    assert ReplayOptions.of(Header(verify={"level": "unheard of"})).level == "numbers"


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
        Request(2, 1, "POST", "/", {}, JsonText("", {"model": "m", "n": 1}, "py")),
        Frame(3, ">", 1, "no JSON"),
    ]
    first, answer, request, last = with_model(events, "other")
    assert isinstance(first, Frame)
    assert isinstance(first.content, JsonText)
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
    from lmtool.core.streams import stream
    from lmtool.core.types import ScoreRequest
    from lmtool.protocol.lmtp.client import LmtpClient

    async with LmtpClient(served) as client:
        (scored,) = [one async for one in stream(client, ScoreRequest(1, tuple(STORY), (432,)))]
    assert scored.logprob is not None
    target, demand = parse_target(served), ReplayOptions(tolerance=Tolerance(1e-3))
    good, _ = await replay(sampled(scored.logprob), target, demand)
    assert [(one.kind, one.verdict) for one in good] == [
        ("GENERATE", "pass"),
        ("SCORE of a sampled stream", "pass"),
    ]
    bad, _ = await replay(sampled(scored.logprob - 0.01), target, demand)
    (finding,) = bad[1].findings
    assert str(finding).startswith("fail (numbers) stream 1/1 token 0: expected logprob -")
    ids, _ = await replay(sampled(-9), target, ReplayOptions("ids"))
    assert {one.verdict for one in ids} == {"pass"}


async def test_time(served: str) -> None:
    """At level time the limits are looked at."""
    recorded: list[Event] = [
        generate(0, model=None, prompt=STORY, max_tokens=3),
        tokens(1, token(432) | {"finish_reason": "length"}),
    ]
    found, _ = await replay(recorded, parse_target(served), ReplayOptions("time", limits={"ttft_ms": 0.001}))
    assert any(finding.level == "time" for one in found for finding in one.findings)


def test_with_what_the_recording_knew(tmp_path: Path) -> None:
    """The trace has the recording's title and its words for the ids that came, large masks once."""
    path = tmp_path / "a.lmtp.jsonl"
    recorded = [Vocab(0, 0, {5: "Hello", 7: b"\xf0\x9f", 99: "never"})]
    mask = {str(i): -100 for i in range(2000)}
    save_replay(
        path,
        Header(title="t", redacted=("headers",)),
        recorded,
        [Open(0, 1), generate(1, logit_bias=mask), tokens(2, token(7))],
    )
    reader = TraceReader(path)
    events = list(reader)
    assert (reader.header.title, reader.header.redacted) == ("t", ())
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    words = {i: text for event in events if isinstance(event, Vocab) for i, text in event.tokens.items()}
    assert (words[5], words[7]) == ("Hello", b"\xf0\x9f")
    assert path.stat().st_size < 40_000


def test_a_replay_is_written_whole(tmp_path: Path) -> None:
    """What is replaced stays as it was, under its other names, until the replay is complete."""
    path, kept = tmp_path / "a.lmtp.jsonl", tmp_path / "kept"
    path.write_text("mine")
    kept.hardlink_to(path)
    with pytest.raises(ValueError, match="a replay that breaks off"):
        save_replay(path, Header(), [], Unfinished([Open(0, 1)]))
    assert (path.read_text(), len(list(tmp_path.iterdir()))) == ("mine", 2)
    save_replay(path, Header(), [], [Open(0, 1)])
    assert (len(list(TraceReader(path))), kept.read_text()) == (2, "mine")


class Unfinished(list[Event]):
    """Events that end with an error."""

    def __iter__(self) -> Iterator[Event]:
        """The events, then the error."""
        yield from super().__iter__()
        raise ValueError("a replay that breaks off")


def test_nothing_came(tmp_path: Path) -> None:
    """Even nothing is a trace."""
    save_replay(tmp_path / "a.lmtp.jsonl", Header(), [], [])
    assert len(list(TraceReader(tmp_path / "a.lmtp.jsonl"))) == 1
    with pytest.raises(FileError, match="cannot write"):
        save_replay(tmp_path / "no/a.lmtp.jsonl", Header(), [], [])


def two_sampled(**more: Any) -> list[Event]:
    """A sampled stream of two tokens."""
    return [
        generate(0, 1, **{"temperature": 0.8, **more}),
        tokens(1, token(7, 1, -1.5)),
        tokens(2, token(8, 1, -2.5) | {"finish_reason": "length"}),
    ]


def test_what_was_drawn_is_scored() -> None:
    """The recorded tokens are scored after the recorded prompt; expected are the logprobs that they had."""
    (_, asked, *answers) = as_scores(exchanges(two_sampled()))
    assert isinstance(asked, Frame)
    assert asked.content == JsonText(
        "SCORE", {"model": "m", "prompt": [5, 6, 7], "scored": [7, 8], "stream_id": 1}, "py"
    )
    values = [one.content.value[0] for one in answers if isinstance(one, Frame) and isinstance(one.content, JsonText)]  # type: ignore[index]
    assert [(one["token"], one["logprob"], one["finish_reason"]) for one in values] == [
        (7, -1.5, None),
        (8, -2.5, "stop"),
    ]


def test_what_can_be_repeated_is_not_scored() -> None:
    """Greedy streams, and sampled ones with a seed, are compared token by token instead."""
    assert as_scores(exchanges(two_sampled(temperature=0))) == []
    assert as_scores(exchanges(two_sampled(seed=3))) == []


def test_what_cannot_be_scored_is_told() -> None:
    """Logprobs of another distribution than SCORE's, and prompts that are not there, are left out with the reason."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"logit_bias": {"1": 5}}, "biased"),
        ({"logprobs_mode": "processed", "temperature": 0.8}, "processed"),
        ({"constraint": {"regex": "a"}}, "biased"),
        ({"prompt": []}, "empty"),
        ({"prompt": {"$redacted": "prompt", "n": 3}}, "redacted"),
    ]
    for fields, word in cases:
        recorded = exchanges(two_sampled(**fields))
        assert as_scores(recorded) == []
        ((_, reason),) = unscored(recorded)
        assert word in reason


def test_a_text_prompt_stays_one() -> None:
    """A prompt that was a text is one again, and the entries are asked for without texts."""
    asked = as_scores(exchanges(two_sampled(prompt="Once")))[1]
    assert isinstance(asked, Frame)
    assert isinstance(asked.content, JsonText)
    assert asked.content.value == {"model": "m", "prompt": "Once", "scored": [7, 8], "stream_id": 1, "text": False}


CAME = exchanges([generate(1), tokens(1.1, token(7)), tokens(1.2, token(8)), tokens(1.5, token(9))])


def test_figures() -> None:
    """Time to the first token, the longest usual gap, tokens a second since the request."""
    assert speed_figures(CAME[0]) == pytest.approx({"ttft_ms": 100, "gap_p99_ms": 300, "tokens_per_second": 6})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, []),
        ({"ttft_ms": 200, "gap_p99_ms": 400, "tokens_per_second": 5}, []),
        ({"ttft_ms": 50}, ["fail (time) stream 1/1: expected ttft_ms 50, got 100.0"]),
        ({"tokens_per_second": 7}, ["fail (time) stream 1/1: expected tokens_per_second 7, got 6.0"]),
        ({"level": "time"}, []),
    ],
)
def test_limits(limits: dict[str, object], found: list[str]) -> None:
    """Only what a recording limits is judged."""
    assert [str(one) for one in judge_speed(CAME, limits)] == found


def test_nothing_to_measure() -> None:
    """A stream without a token has no figures."""
    assert speed_figures(exchanges([generate(0)])[0]) == {}  # type: ignore[arg-type]


def message(**entry: Any) -> Frame:
    """One MSG."""
    return Frame(3, "<", 1, JsonText("MSG", [entry], "py"))


TOP = {"top_logprobs": {"7": -0.5}}
RECORDED: list[Event] = [
    generate(0, 1, max_tokens=3),
    generate(0, 2),
    tokens(1, token(7, 1, **TOP), token(7, 2, **TOP)),
    tokens(2, token(7, 1, **TOP) | {"finish_reason": "length"}),
    tokens(2, {"stream_id": 2, "error": "no more"}),
    Frame(2, ">", 1, JsonText("MODEL_INFO", {"model": "m", "stream_id": 3}, "py")),
    message(stream_id=3, model_info={"model": "m", "constructor": "x"}),
    Frame(4, ">", 1, "GENERATE nonsense"),
    Frame(5, "<", 1, JsonText("MSG", [{"stream_id": None, "error": "nonsense"}], "py")),
    generate(6, 5, max_tokens=100),
    tokens(7, token(7, 5, **TOP)),
    Drop(8, 1, {"by": "client"}),
]


async def test_both_clients_get_what_was_recorded() -> None:
    """Raw frames are answered byte for byte; our client hands over each token, error, answer and loss."""
    made, came = await replay_to_mock(RECORDED)
    assert [(one.kind, one.verdict) for one in made] == [
        ("GENERATE", "pass"),
        ("GENERATE", "pass"),
        ("MODEL_INFO", "pass"),
        ("", "pass"),
        ("GENERATE", "pass"),
        ("GENERATE by lmtool", "pass"),
        ("GENERATE by lmtool", "pass"),
        ("MODEL_INFO by lmtool", "pass"),
        ("GENERATE by lmtool", "pass"),
    ]
    assert isinstance(came[-1], Drop)


async def test_recorded_faults_are_repeated_not_blamed() -> None:
    """What is wrong in a recording is no fault of the mock server."""
    recorded: list[Event] = [generate(0), tokens(1, token(7) | {"finish_reason": "odd"})]
    made, _ = await replay_to_mock(recorded)
    assert made[0].verdict == "pass"


async def test_a_client_that_reads_otherwise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each output is compared with the recorded entry: another number in the recording is a failure with its place."""
    recorded = exchanges(
        [generate(0), tokens(1, token(7, **TOP)), tokens(2, token(8, **TOP) | {"finish_reason": "stop"})]
    )
    original = replaying._entry_facts
    monkeypatch.setattr(
        replaying, "_entry_facts", lambda entry: original(entry) | ({"token": 9} if entry["token"] == 8 else {})
    )
    (found,) = await replaying._ask_with_our_client(recorded, 5.0)
    assert str(found.findings[0]) == "fail (ids) stream 1/1 token 1: expected token 9, got 8"
