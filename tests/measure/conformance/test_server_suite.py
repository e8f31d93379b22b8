"""Cases run against servers that do one thing wrong."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lmtool.core.errors import ConnectError, UsageError
from lmtool.measure.conformance.case import cases
from lmtool.measure.conformance.server_suite import ask_server, run_case
from lmtool.measure.conformance.server_under_test import ServerUnderTest
from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse
from lmtool.trace.outcomes import KnownFailures
from tests.measure.conformance.conftest import Say, msg, speaking, token

TIMEOUT = 0.5
Change = Callable[[list[str]], list[str]]


def right(frame: str) -> list[str]:
    """What a small server rightly answers: greedy tokens 10, 11, 12, ... of logprob -0.5."""
    command, _, text = frame.partition(" ")
    payload = json.loads(text)
    of = payload["stream_id"]
    if command == "MODEL_INFO":
        return [msg(of, model_info={"model": "m", "constructor": "none", "eos_token_ids": [2]})]
    if command == "SCORE":
        ids = payload["scored"]
        return [
            token(one, of, finish_reason="stop" if i + 1 == len(ids) else None, top_logprobs=...)
            for i, one in enumerate(ids)
        ]
    count = payload.get("max_tokens", 32)
    return [
        token(10 + i, of, finish_reason="length" if i + 1 == count else None, top_logprobs={str(10 + i): -0.5})
        for i in range(count)
    ]


def at(url: str, api_key: str | None = None) -> SocketEndpoint:
    """A server's address."""
    endpoint = parse(url, api_key)
    assert isinstance(endpoint, SocketEndpoint)
    return endpoint


async def outcome_of(name: str, change: Change) -> tuple[str, str]:
    """Verdict and messages of a case, for a server whose frames for streams are changed."""

    async def answer(frame: str, say: Say) -> None:
        frames = right(frame)
        for one in frames if frame.startswith("MODEL_INFO") else change(frames):
            await say.send(one)

    (case,) = [case for case in cases("server") if case.id == name]
    async with speaking(answer) as url:
        outcome, transcript = await run_case(at(url), await ask_server(at(url), 10.0), case, KnownFailures(), TIMEOUT)
    assert transcript.sent()
    return outcome.verdict, " · ".join(outcome.messages)


def entry(frame: str, **more: object) -> str:
    """The frame with its entry changed."""
    (one,) = json.loads(frame.partition(" ")[2])
    return f"TOKEN {json.dumps([{k: v for k, v in (one | more).items() if v is not ...}])}"


@pytest.mark.parametrize(
    "name",
    ["max-tokens", "one-ending-at-length", "token-fields", "payloads-are-lists", "score", "score-agrees-with-generate"],
)
async def test_a_server_that_is_right(name: str) -> None:
    """It passes."""
    assert await outcome_of(name, lambda frames: frames) == ("pass", "")


def other_scores(frames: list[str]) -> list[str]:
    """Scores, which have no alternatives, are off by 0.2."""
    return [entry(one, logprob=-0.7) if "top_logprobs" not in one else one for one in frames]


MUTATIONS: list[tuple[str, Change, str]] = [
    ("max-tokens", lambda f: f[:-2] + f[-1:], "6 tokens; expected 7"),
    ("score", lambda f: [f[1], f[0], *f[2:]], "expected [5, 6, 7, 8, 8, 7, 6, 5]"),
    ("score", lambda f: [*f[:-1], entry(f[-1], finish_reason=...)], "waited 0.5 s for the end of stream 1"),
    ("score-agrees-with-generate", other_scores, "logprobs -0.5 and -0.7; expected the same"),
    ("one-ending-at-length", lambda f: [*f, f[-1]], "expected exactly one ending, got 2"),
    ("one-ending-at-length", lambda f: [*f, f[0]], "1 entries came after its end"),
    ("max-tokens", lambda f: [f[0], *f], "8 tokens; expected 7"),
    ("token-fields", lambda f: [entry(f[0], finish_reason=...), *f[1:]], "finish_reason missing"),
    ("payloads-are-lists", lambda f: [one.replace("[{", "{").replace("}]", "}") for one in f], "neither a TOKEN list"),
    ("ids-come-back", lambda f: [entry(one, stream_id=1) for one in f], "the end of stream a b"),
]


@pytest.mark.parametrize(
    ("name", "change", "message"), MUTATIONS, ids=[f"{row[0]}: {row[2][:20]}" for row in MUTATIONS]
)
async def test_a_server_that_is_wrong(name: str, change: Change, message: str) -> None:
    """Dropped, swapped, doubled tokens, no finish_reason, other logprobs, two ends, late frames, crossed ids."""
    verdict, told = await outcome_of(name, change)
    assert verdict == "fail"
    assert message in told


async def test_meeting_a_server() -> None:
    """It tells its name; one that does not has to be named."""

    async def mute(frame: str, say: Say) -> None:
        if '"model"' in frame:
            await say.send(msg("who", model_info="<unknown>"))
        else:
            await say.close()

    async with speaking(mute) as url:
        with pytest.raises(UsageError, match="does not tell what it serves") as raised:
            await ask_server(at(url), TIMEOUT)
        assert "--model" in raised.value.hints[0]
        assert (await ask_server(at(url), 10.0, model="x", eos=3)) == ServerUnderTest("x", eos=3, ends=(3,), info={})
    with pytest.raises(ConnectError):
        await ask_server(at(url), TIMEOUT)


async def test_what_a_server_lacks_is_skipped() -> None:
    """A case that needs an extension is not run where it is not announced."""
    (case,) = [case for case in cases("server") if case.id == "cancel"]
    outcome, transcript = await run_case(at("ws://127.0.0.1:1/"), ServerUnderTest("m"), case, KnownFailures(), TIMEOUT)
    assert (outcome.verdict, transcript.messages) == ("skipped", [])
