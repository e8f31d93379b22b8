"""Chat completions and completions."""

from __future__ import annotations

import pytest

from lmtool.protocol.providers.answer_events import ChoiceFinished, ChunkToken, TextDelta, TokenUsage, ToolCallDelta
from lmtool.protocol.providers.openai_completions import read


def told(choice: dict[str, object]) -> list[object]:
    """The events of a chunk with one choice."""
    return list(read({"choices": [choice]}))


def test_a_chunk_of_several_choices() -> None:
    """Each choice has its own number; several tokens may come in one chunk."""
    logprobs = {"content": [{"token": "H", "logprob": -0.1}, {"token": "i", "logprob": -0.2}]}
    chunk = {
        "choices": [
            {"index": 1, "delta": {"content": "Hi"}, "logprobs": logprobs, "finish_reason": None},
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"},
            9,
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }
    assert list(read(chunk)) == [
        TextDelta(1, "Hi", (ChunkToken("H", -0.1), ChunkToken("i", -0.2))),
        ChoiceFinished(0, "stop", "END"),
        TokenUsage(3, 2, 1),
    ]


def test_choices_without_a_number() -> None:
    """They are numbered by their places."""
    assert [event.choice for event in read({"choices": [{"text": "a"}, {"text": "b"}]})] == [0, 1]  # type: ignore[union-attr]


def test_completions() -> None:
    """Their text stands in the choice itself."""
    columns = {"tokens": [" a"], "token_logprobs": [-0.5], "top_logprobs": [{" a": -0.5}], "text_offset": [0]}
    token = ChunkToken(" a", -0.5, {" a": -0.5})
    assert told({"index": 0, "text": " a", "logprobs": columns, "finish_reason": "length"}) == [
        TextDelta(0, " a", (token,)),
        ChoiceFinished(0, "length"),
    ]


def test_a_token_that_completes_no_text() -> None:
    """It is told with no text."""
    found = told(
        {"delta": {"content": ""}, "logprobs": {"content": [{"token": "\ufffd", "bytes": [240], "logprob": -1}]}}
    )
    assert found == [TextDelta(0, "", (ChunkToken(b"\xf0", -1.0),))]


def test_kinds_of_text() -> None:
    """Reasoning has two names; tokens go with the first text of a chunk; parts are texts one after the other."""
    token = (ChunkToken("a", -1.0),)
    logprobs = {"content": [{"token": "a", "logprob": -1}]}
    assert told({"delta": {"reasoning": "a", "content": "b", "refusal": "c"}, "logprobs": logprobs}) == [
        TextDelta(0, "a", token, "reasoning"), TextDelta(0, "b"), TextDelta(0, "c", (), "refusal"),
    ]  # fmt: skip
    assert told({"delta": {"reasoning_content": "a"}}) == [TextDelta(0, "a", (), "reasoning")]
    parts = [{"type": "text", "text": "a"}, 5, {"type": "text", "text": "b"}]
    assert told({"message": {"content": parts}}) == [TextDelta(0, "a"), TextDelta(0, "b")]


def test_tokens_of_a_thought() -> None:
    """Ours are listed apart; in vLLM's one list the answer's begin where its text does, behind the mark."""

    def listed(*pieces: str) -> list[dict[str, object]]:
        return [{"token": piece, "logprob": -1} for piece in pieces]

    def tokens(*pieces: str) -> tuple[ChunkToken, ...]:
        return tuple(ChunkToken(piece, -1.0) for piece in pieces)

    message = {"reasoning_content": "A b", "content": "B b"}
    apart = {"reasoning_content": listed("A", " b", "</think>"), "content": listed("B", " b", "<eos>")}
    together = {"content": listed("A", " b", "</think>", "B", " b", "<eos>")}
    for logprobs in (apart, together):
        assert told({"message": message, "logprobs": logprobs}) == [
            TextDelta(0, "A b", tokens("A", " b", "</think>"), "reasoning"),
            TextDelta(0, "B b", tokens("B", " b", "<eos>")),
        ]
    assert told({"delta": {}, "logprobs": {"reasoning_content": listed("</think>")}}) == [
        TextDelta(0, "", tokens("</think>"), "reasoning")
    ]


def test_tool_calls() -> None:
    """Name and id come first, then arguments; the older form is one call."""
    call = {"index": 1, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert told({"delta": {"tool_calls": [call]}}) == [ToolCallDelta(0, 1, "c1", "f", "")]
    assert told({"delta": {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}}) == [
        ToolCallDelta(0, 1, None, None, "{}")
    ]
    older = {"message": {"function_call": {"name": "f", "arguments": "{}"}}, "finish_reason": "function_call"}
    assert told(older) == [ToolCallDelta(0, 0, None, "f", "{}"), ChoiceFinished(0, "tool_calls")]


@pytest.mark.parametrize(
    "value",
    [{}, {"choices": 7}, {"choices": [None]}, {"choices": [{"delta": 5, "logprobs": 3, "index": "0", "text": "x"}]}],
)
def test_odd_chunks(value: dict[str, object]) -> None:
    """Whatever stands in place of what is expected counts as absent."""
    assert list(read(value)) == []
