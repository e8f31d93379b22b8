"""What is kept of a request."""

from __future__ import annotations

import pytest

from lmtool.providers.answer_reader import api_of
from lmtool.trace.stream_events import RequestStarted
from lmtool.tui.requests import PROMPT_CHARACTERS, PROMPT_TOKENS, Digest, digest, parameters, stream_of


def asked(kind: str = "GENERATE", **payload: object) -> RequestStarted:
    """A request."""
    method, _, path = kind.partition(" ")
    return RequestStarted(0.5, 1, "1/3", kind, payload, api_of(method, path))


def test_fields_of_a_stream() -> None:
    """Small fields stay as they are; the prompt, the bias and what names the stream have places of their own."""
    began = asked(model="m", prompt=[1, 2], stream_id=3, max_tokens=7, temperature=0.5, logit_bias={"1": -100, "2": 3})
    stream = stream_of(began, 4, 0, 9, {})
    assert (stream.index, stream.label, stream.connection, stream.frame, stream.began) == (4, "1/3", 1, 9, 0.5)
    assert (stream.kind, stream.model, stream.prompt, stream.prompt_tokens, stream.max_tokens) == (
        "GEN",
        "m",
        (1, 2),
        2,
        7,
    )
    assert (stream.biased, stream.ruled_out, stream.payload) == (2, 1, {"max_tokens": 7, "temperature": 0.5})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", Digest(3, "abc")),
        ([1, 2], Digest(2, (1, 2))),
        (list(range(1000)), Digest(1000, tuple(range(1000 - PROMPT_TOKENS, 1000)))),
        ("x" * 9999, Digest(9999, "x" * PROMPT_CHARACTERS)),
        ([{"role": "user", "content": "Hi"}], Digest(1, "Hi")),
        ([{"content": [{"type": "text", "text": "H"}, {"type": "image"}, 5, {"text": "i"}]}], Digest(1, "Hi")),
        ([{"role": "user"}], Digest(1, "")),
        ([None], Digest(1, "")),
        ([], Digest(0, ())),
        ({"5": -100.5, "6": True, "7": "x", "8": -99}, Digest(4, "", 1)),
        (None, Digest(0)),
        (7, Digest(0)),
    ],
)  # fmt: skip
def test_large_values(value: object, expected: Digest) -> None:
    """Of a large value its size and its end are kept."""
    assert digest(value) == expected


def test_references() -> None:
    """A value that stands in a blob is told from it; one that no blob gives is empty."""
    began = asked(prompt={"$blob": "a"}, logit_bias={"$blob": "b"})
    stream = stream_of(began, 0, 0, 0, {"a": Digest(9, (8, 9))})
    assert (stream.prompt, stream.prompt_tokens, stream.biased) == ((8, 9), 9, 0)


def test_redacted_prompts() -> None:
    """Of a redacted prompt only the length is known."""
    stream = stream_of(asked(prompt={"$redacted": "prompt", "n": 12, "sha256": "x"}), 0, 0, 0, {})
    assert (stream.prompt, stream.prompt_tokens) == ("", 12)


@pytest.mark.parametrize(
    ("began", "expected"),
    [
        (asked(), 32),
        (asked(max_tokens="x"), None),
        (asked("SCORE", scored=[1, 2, 3]), 3),
        (asked("SCORE", scored="text"), None),
        (asked("POST /v1/chat/completions", max_completion_tokens=5), 5),
        (asked("POST /v1/completions"), None),
        (asked("POST /v1/responses", max_output_tokens=6), 6),
    ],
)
def test_how_many_tokens_there_may_be(began: RequestStarted, expected: int | None) -> None:
    """LMTP, GEN-2: 32 where a GENERATE does not say; a SCORE has as many as it was given."""
    assert stream_of(began, 0, 0, 0, {}).max_tokens == expected


def test_kinds() -> None:
    """LMTP's commands, and chats apart from completions of text."""
    paths = ["/v1/chat/completions", "/v1/responses", "/messages", "/v1/completions", "/api/generate"]
    kinds = ["GENERATE", "SCORE", *(f"POST {path}" for path in paths), "GET /v1/models"]
    found = [stream_of(asked(kind), 0, 0, 0, {}).kind for kind in kinds]
    assert found == ["GEN", "SCORE", "CHAT", "CHAT", "CHAT", "TEXT", "TEXT", ""]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"constraint": {"json": {}}}, "json"),
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, "regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"constraint": None}, None),
    ],
)
def test_constraints(payload: dict[str, object], expected: str | None) -> None:
    """What kind of constraint holds a stream; `text` is none."""
    assert stream_of(asked(**payload), 0, 0, 0, {}).constraint == expected


def test_a_few_words() -> None:
    """Parameters in short; a dash where there are none."""
    assert parameters({"temperature": 0.7, "seed": 4, "max_tokens": 3}, 10, "regex") == "t=.7 seed=4 bias 10 regex"
    assert parameters({"top_p": 1, "temperature": "hot"}, 0, None) == "p=1 t=hot"
    assert parameters({}, 0, None) == "-"
