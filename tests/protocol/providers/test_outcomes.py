"""How calls end: each failure of an upstream has its outcome, whatever the API, streamed and whole."""

from __future__ import annotations

import json

import pytest

from lmtool.core.outcomes import OK, Outcome
from lmtool.core.types import ChatMessage
from lmtool.net.access.secret import Secret
from lmtool.protocol.providers.answer_events import AnswerFailed
from lmtool.protocol.providers.chat_request import ChatRequest
from lmtool.protocol.providers.outcomes import (
    CONTEXT_TOO_LONG,
    EMPTY,
    ERROR_IN_ANSWER,
    MALFORMED,
    RESET,
    outcome_of_failure,
    outcome_of_status,
    retry_after,
)
from lmtool.protocol.providers.provider import Settings
from tests.fake_upstream import BAD, FakeUpstream
from tests.protocol.providers.exchange import NOW, exchange

KEY = "sk-canary-0123456789"
REFUSED_KEY = Outcome("key_refused", "key refused")
EXPECTED = {
    "429 in seconds": Outcome("rate_limit", "rate limit", 30.0),
    "429 with a date": Outcome("rate_limit", "rate limit", 30.0),
    "429 alone": Outcome("rate_limit", "rate limit"),
    "401": REFUSED_KEY,
    "403": REFUSED_KEY,
    "500": Outcome("fault", "status 500"),
    "529": Outcome("fault", "status 529"),
    "400": Outcome("refused", "status 400"),
    "400 context": CONTEXT_TOO_LONG,
    "404": Outcome("refused", "status 404"),
    "reset": RESET,
    "reset in the body": RESET,
    "half a body": RESET,
    "malformed": MALFORMED,
    "html": MALFORMED,
    "empty": EMPTY,
    "no choices": EMPTY,
    "an error in the stream": ERROR_IN_ANSWER,
}
APIS = {"openai": "", "anthropic": "", "ollama": "", "cohere": "/v2", "cohere v1": "/v1"}


@pytest.mark.parametrize("api", APIS)
async def test_every_failure_of_every_api(api: str) -> None:
    """A whole answer and a stream that fail in the same way have the same outcome, and no word of the upstream's."""
    async with FakeUpstream() as upstream:
        settings = Settings(upstream.url + APIS[api], Secret(KEY))
        for stream in (False, True):
            chat = ChatRequest((ChatMessage("user", "Hi"),), stream=stream)
            found = {}
            for name, behaviour in BAD.items():
                upstream.plan.append(behaviour)
                found[name], answer, _ = await exchange(api.split(maxsplit=1)[0], chat, settings)
                assert KEY not in repr(found[name])
                assert not answer.finished or name == "empty"
            assert found == EXPECTED
            assert (await exchange(api.split(maxsplit=1)[0], chat, settings))[0] == OK
    assert {one.key for one in upstream.received} == {KEY}


def test_the_table_names_every_failure() -> None:
    """What the fake can do wrong is in the table above."""
    assert EXPECTED.keys() == BAD.keys()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "ok"), (204, "ok"), (302, "fault"), (402, "key_refused"), (408, "fault"), (413, "refused"), (422, "refused"),
     (451, "refused"), (500, "fault"), (503, "fault")],
)  # fmt: skip
def test_other_statuses(status: int, kind: str) -> None:
    """What is about the request is refused; timeouts, redirects and servers' troubles are faults."""
    assert outcome_of_status(status, {}, b"", NOW).kind == kind


def test_a_server_that_is_full() -> None:
    """A 503 that says when it will be better is a rest, as a 429; other faults are such whatever they say."""
    assert outcome_of_status(503, {"retry-after": "7"}, b"", NOW) == Outcome("rate_limit", "status 503", 7.0)
    assert outcome_of_status(500, {"retry-after": "7"}, b"", NOW) == Outcome("fault", "status 500")


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "too long", "code": "context_length_exceeded"}}',
        b'{"object": "error", "message": "This model\'s maximum context length is 8 tokens.", "code": 400}',
        b'{"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}',
        b'{"message": "too many tokens: total must be at most 8"}',
        b'{"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}',
        b'{"error": {"type": "exceed_context_size_error", "message": "the request exceeds"}}',
        b'[{"error": {"message": "exceeds the available context size"}}]',
    ],
)
def test_contexts_that_are_too_long(body: bytes) -> None:
    """Each provider's own way of saying it is known; in a stream as well."""
    assert outcome_of_status(400, {}, body, NOW) == CONTEXT_TOO_LONG
    assert outcome_of_failure(AnswerFailed("no", "context_overflow")) == CONTEXT_TOO_LONG


@pytest.mark.parametrize(
    ("sentence", "numbers"),
    [
        ("prompt is too long: 215000 tokens > 200000 maximum", (215000, 200000)),
        ("input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000, decrease it", (200001, 200000)),
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 10000", (10000, 8192)),
        ("maximum context length is 8,192 tokens. However, you requested 10,244 tokens (6148 in", (10244, 8192)),
        ("maximum context length is 4096 tokens. However, your request has 5000 input tokens", (5000, 4096)),
        ("the request exceeds the available context size (4096 tokens), try increasing it", (4097, 4096)),
        ("request (5000 tokens) exceeds the available context size (4096 tokens)", (5000, 4096)),
        ("The input token count (1200) exceeds the maximum number of tokens allowed (1000).", (1200, 1000)),
        ("too long: at least 9 tokens > 8 maximum; this model's maximum context length is 8 tokens (m-70)", (9, 8)),
        ("Your input exceeds the context window of this model. Please adjust your input", (0, 0)),
        ("maximum context length is 99999999999999 tokens", (0, 0)),
    ],
)
def test_numbers_of_an_overflow(sentence: str, numbers: tuple[int, int]) -> None:
    """Tokens of the prompt and their limit are taken from the sentence; without the first one the limit is passed."""
    body = json.dumps({"error": {"message": sentence, "code": "context_length_exceeded"}}).encode()
    outcome = outcome_of_status(400, {}, body, NOW)
    assert (outcome, outcome.overflow) == (CONTEXT_TOO_LONG, numbers)
    assert outcome_of_failure(AnswerFailed(sentence, "context_overflow")).overflow == numbers


def test_rate_limits_inside_a_stream() -> None:
    """An error event may say what a status would have said."""
    assert outcome_of_failure(AnswerFailed("slow down", "rate_limit_error")).kind == "rate_limit"
    assert outcome_of_failure(AnswerFailed("busy", "overloaded_error")) == ERROR_IN_ANSWER


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:29:00 GMT"}, 60.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:29:00 -0000"}, 60.0),
        ({"retry-after": "Wed, 21 Oct 2020 07:28:00 GMT"}, 0.0),
        ({"retry-after": "30", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "30s"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 99 Foo 2026"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds or an HTTP date; what is neither counts as absent."""
    assert retry_after(headers, NOW) == seconds
