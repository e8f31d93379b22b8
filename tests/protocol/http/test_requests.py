"""Requests as read from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from lmtool.core.types import ChatMessage, ChatPrompt
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.openai.requests import chat, completion
from lmtool.protocol.http.requests import Call
from lmtool.protocol.http.responses.requests import read as responses

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def test_chat() -> None:
    """Messages are kept as they are; defaults are OpenAI's; the newer name of the limit counts."""
    body = {
        "model": "m",
        "messages": HELLO,
        "max_completion_tokens": 7,
        "max_tokens": 3,
        "stop": "x",
        "seed": 1,
        "n": 2,
    }
    call = chat(body)
    assert call.prompts == (ChatPrompt((ChatMessage("user", "Hello"),)),)
    assert (call.sampling.max_tokens, call.sampling.temperature, call.sampling.stop) == (7, 1.0, ("x",))
    assert (call.seed(0), call.seed(1), call.logprobs) == (1, 2, None)
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert chat({"messages": [{"role": "user", "content": parts}]}).prompts == call.prompts


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), ([1, 2], ((1, 2),)), (["a", "b"], ("a", "b")), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_prompts(prompt: object, prompts: tuple[object, ...]) -> None:
    """A text, ids, or lists of either."""
    assert completion({"prompt": prompt}).prompts == prompts
    assert completion({"prompt": prompt}).sampling.max_tokens == 16


@pytest.mark.parametrize(
    "spelling",
    [
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": '{"type": "object"}'},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}},
    ],
)
def test_every_spelling_of_a_constraint(spelling: dict[str, object]) -> None:
    """vLLM's, its older one, and OpenAI's are one constraint."""
    found = chat({"messages": HELLO, **spelling}).constraint
    assert found is not None
    assert (found.kind, found.text, found.strict) == ("json_schema", '{"type":"object"}', True)


def test_structural_tags() -> None:
    """With structures and triggers, or in the newer form."""
    parts = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": ""}], "triggers": ["<a"]}
    tag = {"begin": "<a>", "content": {"type": "json_schema", "json_schema": SCHEMA}}
    newer = {"format": {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag]}}
    one, other = (chat({"messages": HELLO, "response_format": {"type": "structural_tag", **x}}) for x in (parts, newer))
    assert one.constraint is not None
    assert other.constraint is not None
    assert (one.constraint.kind, json.loads(one.constraint.text)) == ("structural_tag", parts)
    assert (other.constraint.kind, json.loads(other.constraint.text)) == ("structural_tag", newer)


def test_an_object_by_schema() -> None:
    """`json_object` may have a schema, as in llama.cpp's server: it is the form."""
    found = chat(
        {"messages": HELLO, "response_format": {"type": "json_object", "schema": {"required": ["a"]}}}
    ).constraint
    assert found is not None
    assert (found.kind, found.text) == ("json_schema", '{"required":["a"]}')


def test_text_is_no_constraint() -> None:
    """`response_format` may say that anything goes."""
    assert chat({"messages": HELLO, "response_format": {"type": "text"}}).constraint is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HELLO, "tools": [{}]}, "tools[0].function"),
        ({"messages": HELLO, "functions": [{}]}, "functions"),
        ({"messages": HELLO, "modalities": ["audio"]}, "modalities"),
        ({"messages": HELLO, "n": 0}, "n"),
        ({"messages": HELLO, "n": 3, "best_of": 2}, "best_of"),
        ({"messages": HELLO, "n": 2, "best_of": 3, "stream": True}, "best_of"),
        ({"messages": HELLO, "prompt_logprobs": 3, "stream": True}, "prompt_logprobs"),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": HELLO, "stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"messages": HELLO, "logit_bias": {"a": 1}}, "logit_bias"),
        ({"messages": HELLO, "guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": HELLO, "guided_choice": []}, "guided_choice"),
        ({"messages": HELLO, "temprature": 1}, "temprature"),
        ({"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
         "response_format.json_schema.schema"),
        ({"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": HELLO, "allowed_token_ids": []}, "allowed_token_ids"),
        ({"messages": HELLO, "bad_words": [""]}, "bad_words[0]"),
        ({"messages": HELLO, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"messages": HELLO, "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"messages": HELLO, "cache_salt": ""}, "cache_salt"),
        ({"messages": HELLO, "request_id": 5}, "request_id"),
        ({"messages": HELLO, "chat_template": "x"}, "chat_template"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, object], param: str) -> None:
    """400, and the member to blame."""
    with pytest.raises(ApiError) as raised:
        chat(body)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": ["a"] * 100, "best_of": 2}, "best_of"),
        ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({"prompt": "a", "stop_token_ids": ["x"]}, "stop_token_ids[0]"),
        ({"prompt": "a", "stop_token_ids": list(range(65))}, "stop_token_ids"),
    ],
)
def test_what_is_wrong_with_a_completion(body: dict[str, object], param: str) -> None:
    """400, and the member to blame."""
    with pytest.raises(ApiError) as raised:
        completion(body)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize(
    ("read", "body", "member"),
    [
        (chat, {"messages": HELLO, "logprobs": True}, "top_logprobs"),
        (completion, {"prompt": "a"}, "logprobs"),
        (completion, {"prompt": "a"}, "prompt_logprobs"),
        (responses, {"input": "a"}, "top_logprobs"),
    ],
)
def test_the_limit_of_alternatives(read: Callable[..., object], body: dict[str, object], member: str) -> None:
    """20, or what the server was started with; above it the member is refused by name."""
    for most, wanted in ((None, 20), (3, 3), (100, 100), (0, 0)):
        reader = read if most is None else partial(read, max_logprobs=most)
        reader({**body, member: wanted})
        with pytest.raises(ApiError, match=f"{member} is {wanted + 1}; expected a whole number from 0 to {wanted}"):
            reader({**body, member: wanted + 1})


def test_answers_without_a_seed_differ() -> None:
    """Without a seed each stream draws its own."""
    assert Call(None, ("a",), completion({"prompt": "a"}).sampling, n=2).seed(1) is None


def test_logits_processors() -> None:
    """They are named with their arguments; what names none is refused with the field."""
    named = completion({"prompt": "a", "logits_processors": [{"name": "x", "args": {"y": 1}}]}).logits_processors
    assert [(one.name, dict(one.arguments)) for one in named] == [("x", {"y": 1})]
    assert completion({"prompt": "a"}).logits_processors == ()
    with pytest.raises(ApiError) as raised:
        completion({"prompt": "a", "logits_processors": [{"args": {}}]})
    assert raised.value.param == "logits_processors"


@pytest.mark.parametrize(
    ("body", "mode"),
    [({}, "biased"), ({"logprobs": 0}, "raw"), ({"best_of": 1}, "biased"), ({"best_of": 2}, "raw")],
)
def test_the_models_own_numbers(body: dict[str, object], mode: str) -> None:
    """They are computed where they are told, or decide which answer is best; else a forced id need not wait."""
    assert completion({"prompt": "a", **body}).sampling.logprobs_mode == mode


@pytest.mark.parametrize("read", [chat, completion, responses])
def test_fields_of_every_route(read: Callable[..., object]) -> None:
    """Those of vLLM mean the same on each."""
    body = {"messages": HELLO} if read is chat else {"prompt": "a"} if read is completion else {"input": "a"}
    found: Any = read(
        {
            **body,
            "cache_salt": "s", "request_id": "r", "priority": -3, "truncate_prompt_tokens": 7, "return_token_ids": True,
            "return_tokens_as_token_ids": True, "include_stop_str_in_output": True, "bad_words": ["x"],
            "allowed_token_ids": [1, 2], "deadline": 5, "logprob_token_ids": [4],
            **({"logprobs": True} if read is chat else {"logprobs": 0} if read is completion else {"top_logprobs": 1}),
        }
    )  # fmt: skip
    call: Call = found.call if read is responses else found
    assert (call.cache_salt, call.request_id, call.priority, call.truncate, call.deadline) == ("s", "r", -3, 7, 5)
    assert (call.return_token_ids, call.tokens_as_ids, call.include_stop) == (True, True, True)
    assert (call.bad_words, call.allowed_token_ids) == (("x",), (1, 2))
    assert (call.logprob_token_ids, call.logprobs) == ((4,), 2)
    assert call.without_ids() == "truncate_prompt_tokens"
    assert completion({"prompt": "a"}).without_ids() is None
