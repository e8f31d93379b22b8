"""Answers in OpenAI's form."""

from __future__ import annotations

from lmtool.core.types import TokenOutput, Usage
from lmtool.protocol.http.answers import Answer
from lmtool.protocol.http.openai.replies import Reply, chat_logprobs, prompt_logprobs, text_logprobs
from lmtool.protocol.http.tools.feed import Delta

REPLY = Reply("chat", "id", 5, "m")


class Bytes:
    """Token n is the byte n; 200 is half a character."""

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token(self, token_id: int) -> str:
        return "<end>"


def output(token: int, text: str, **more: object) -> TokenOutput:
    return TokenOutput(0, token, -0.5, ((token, -0.5), (66, -1.0)), text, **more)  # type: ignore[arg-type]


def test_a_whole_answer() -> None:
    """Text, ending and counts; the tokens that were cached are told."""
    answer = Answer(0, None)
    answer.add(output(65, "A"))
    answer.add(output(66, "B", finish_reason="stop", usage=Usage(3, 2, 1), warnings=("w",)))
    whole = REPLY.whole([answer], Usage(3, 2, 1), None)
    (choice,) = whole["choices"]  # type: ignore[misc]
    assert choice["message"] == {"role": "assistant", "content": "AB", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert whole["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip
    assert whole["warnings"] == ["w"]


def test_half_a_character() -> None:
    """Chat logprobs give its bytes; completions spell them out, as OpenAI does."""
    content = chat_logprobs([output(200, "")], Bytes(), 1)["content"]
    assert content[0]["bytes"] == [200]  # type: ignore[index]
    assert content[0]["token"] == "\ufffd"  # type: ignore[index]
    assert text_logprobs([output(200, "")], Bytes(), 0)["tokens"] == ["bytes:\\xc8"]


def test_offsets_and_alternatives() -> None:
    """Offsets count characters; as many alternatives as were asked for; none is null."""
    told = text_logprobs([TokenOutput(0, 67), output(65, "A")], Bytes(), 1, 10)
    assert told["text_offset"] == [10, 11]
    assert told["token_logprobs"] == [None, -0.5]
    assert told["top_logprobs"] == [None, {"A": -0.5}]
    assert text_logprobs([output(65, "A")], Bytes(), 0)["top_logprobs"] is None


def test_special_tokens_are_named() -> None:
    """One that adds nothing to the text shows what it is called; the chosen token is among the alternatives."""
    end = TokenOutput(0, 300, -3.0, ((65, -0.5),))
    assert chat_logprobs([end], Bytes(), 1)["content"][0]["token"] == "<end>"
    assert text_logprobs([end], Bytes(), 1)["top_logprobs"] == [{"A": -0.5, "<end>": -3.0}]


def test_ranks_of_a_prompt() -> None:
    """Equally likely tokens share the better one; of a token beyond the best that were asked for it is not known."""
    tied = TokenOutput(0, 68, -4.0, ((65, -0.5), (66, -0.5), (67, -1.0), (68, -4.0)))
    first, entry = prompt_logprobs([TokenOutput(0, 65), tied], Bytes(), 3)
    assert first is None
    assert entry is not None
    assert {name: told["rank"] for name, told in entry.items()} == {"65": 1, "66": 1, "67": 3, "68": None}


def test_chunks() -> None:
    """The first one says who speaks, the last one why it ended, one behind it counts."""
    assert REPLY.start(1)["choices"][0]["delta"] == {"role": "assistant", "content": ""}  # type: ignore[index]
    ended = Answer(1, None, ended="length")
    last = REPLY.chunks(ended, [], None)[0]["choices"][0]
    assert (last["delta"], last["finish_reason"], last["index"]) == ({}, "length", 1)
    assert REPLY.usage(Usage(1, 2))["choices"] == []
    (text,) = Reply("text", "id", 5, "m").chunks(Answer(0, None), [Delta("x")], None)
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "x")  # type: ignore[index]
