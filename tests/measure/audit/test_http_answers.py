"""Answers of OpenAI-compatible servers as observations."""

from __future__ import annotations

import json

from lmtool.measure.audit.evidence import Count, Question, Token
from lmtool.measure.audit.http_answers import HttpReply, model_names, read_answer

ASKED = Question("Hi")


def reply(value: object, status: int = 200) -> HttpReply:
    """A whole answer."""
    return HttpReply(3, status, "application/json", json.dumps(value).encode())


def entry(name: str, logprob: float, *top: tuple[str, float]) -> dict[str, object]:
    """A token of a chat's logprobs."""
    own = {"token": name, "logprob": logprob, "bytes": list(b"x")}
    return own | {"top_logprobs": [{"token": one, "logprob": value, "bytes": list(b"x")} for one, value in top]}


def test_tokens_by_id() -> None:
    """A name `token_id:N` is an id, in both forms of logprobs, whatever bytes stand beside it."""
    logprobs = {"content": [entry("token_id:7", -0.5, ("token_id:7", -0.5), ("token_id:9", -2.0))]}
    choice = {"index": 0, "message": {"content": "x"}, "logprobs": logprobs, "finish_reason": "stop", "token_ids": [7]}
    answer = read_answer(reply({"choices": [choice], "prompt_token_ids": [1, 2]}), ASKED)
    assert answer.only.tokens == (Token(7, -0.5, ((7, -0.5), (9, -2.0))),)
    assert (answer.only.ids, answer.prompt_ids, answer.only.endings) == ((7,), (1, 2), 1)


def test_what_cannot_come() -> None:
    """-9999 stands for minus infinity: such an alternative is none."""
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [{"a": -0.1, "b": -9999.0}]}
    answer = read_answer(reply({"choices": [{"index": 0, "text": "a", "logprobs": logprobs}]}), ASKED)
    assert answer.only.tokens[0].alternatives == (("a", -0.1),)


def test_streams() -> None:
    """A stream's chunks are one answer; endings are counted, the last usage counts."""
    chunks = [
        {
            "choices": [
                {"index": 0, "text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{}]}}
            ]
        },
        {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
    ]  # fmt: skip
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    answer = read_answer(HttpReply(1, 200, "text/event-stream", body.encode()), ASKED)
    assert (answer.only.text, answer.only.endings, answer.count) == ("ab", 2, Count(1, 2, 3))
    assert [token.name for token in answer.only.tokens] == ["a"]


def test_prompt_logprobs() -> None:
    """VLLM's entries are by id; the prompt's ids tell which of them is the token's own."""
    entries = [None, {"8": {"logprob": -0.1}, "5": {"logprob": -2.5}}]
    choice = {"index": 0, "text": "", "prompt_token_ids": [4, 5], "prompt_logprobs": entries, "finish_reason": "length"}
    answer = read_answer(reply({"choices": [choice]}), ASKED)
    assert answer.prompt == (None, Token(5, -2.5, ((8, -0.1), (5, -2.5)), ordered=False))


def test_refusals() -> None:
    """Errors of every form, pages of proxies, and answers of nothing are refusals in the server's words."""
    for found, words in (
        (reply({"error": {"message": "no such field"}}, 400), "no such field (HTTP 400)"),
        (reply({"detail": "not here"}, 404), "not here (HTTP 404)"),
        (HttpReply(1, 502, "text/html", b"<h1>bad   gateway</h1>"), "HTTP 502: <h1>bad gateway</h1>"),
        (HttpReply(1, 200, "", b"", "the answer broke off"), "the answer broke off"),
        (reply({"choices": []}), "the answer has no choices"),
        (reply([1]), "the answer has no choices"),
    ):
        assert read_answer(found, ASKED).refusal == words


def test_models() -> None:
    """The names that a server lists; anything else is no name."""
    assert model_names(b'{"data": [{"id": "m"}, {"id": 3}, 4]}') == ["m"]
    assert model_names(b"<html>") == []
