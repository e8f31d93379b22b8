"""Fields that vLLM has beside OpenAI's, each against the engine on the embedded model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import jsonschema
import pydantic
import pytest

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
LONG = list(range(300, 400))
"""More ids than a chunk of the prefix cache has."""


@pytest.fixture(scope="module")
def http(embedded: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=embedded.replace("ws://", "http://").rstrip("/"), timeout=120) as client:
        yield client


def post(http: httpx2.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json={"temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(http: httpx2.Client, **body: Any) -> Any:
    return post(http, "/v1/chat/completions", **{"messages": FRANCE, **body})


def streamed(http: httpx2.Client, path: str, **body: Any) -> list[Any]:
    answer = http.post(path, json={"temperature": 0, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def tokens(http: httpx2.Client, text: str) -> list[int]:
    found: list[int] = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return found


def refused(http: httpx2.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


class TestTokenIds:
    """`return_token_ids`, `prompt_token_ids`, `return_tokens_as_token_ids`."""

    def test_of_a_chat(self, http: httpx2.Client) -> None:
        """Of prompt and answer, eos included; streamed they are the same; the ids are the text."""
        whole = chat(http, return_token_ids=True)
        [choice] = whole["choices"]
        assert tokens(http, PARIS) == choice["token_ids"][:-1]
        assert len(choice["token_ids"]) == whole["usage"]["completion_tokens"]
        assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
        events = streamed(http, "/v1/chat/completions", messages=FRANCE, return_token_ids=True)
        assert [event.get("prompt_token_ids") for event in events if "prompt_token_ids" in event] == [
            whole["prompt_token_ids"]
        ]
        ids = [token for event in events for token in event["choices"][0].get("token_ids", [])]
        assert ids == choice["token_ids"]
        assert "token_ids" not in chat(http)["choices"][0]

    def test_of_completions(self, http: httpx2.Client) -> None:
        """Each choice has those of its own prompt, streamed in its first event."""
        ask: dict[str, Any] = {"prompt": [[542, 522, 262], [41, 86]], "max_tokens": 3, "n": 2, "return_token_ids": True}
        choices = post(http, "/v1/completions", **ask, seed=1)["choices"]
        assert [choice["prompt_token_ids"] for choice in choices] == [[542, 522, 262]] * 2 + [[41, 86]] * 2
        assert all(0 < len(choice["token_ids"]) <= 3 for choice in choices)
        events = [event["choices"][0] for event in streamed(http, "/v1/completions", **ask, seed=1)]
        for choice in choices:
            own = [event for event in events if event["index"] == choice["index"]]
            assert own[0]["prompt_token_ids"] == choice["prompt_token_ids"]
            assert not any("prompt_token_ids" in event for event in own[1:])
            assert [token for event in own for token in event.get("token_ids", [])] == choice["token_ids"]
            assert "".join(event["text"] for event in own) == choice["text"]

    def test_of_the_other_routes(self, http: httpx2.Client) -> None:
        """On responses and messages they stand beside the answer, streamed in the last event."""
        ids = chat(http, return_token_ids=True)["choices"][0]["token_ids"]
        asked: dict[str, Any] = {"input": FRANCE[0]["content"], "return_token_ids": True}
        assert post(http, "/v1/responses", **asked)["token_ids"] == ids
        assert streamed(http, "/v1/responses", **asked)[-1]["response"]["token_ids"] == ids
        asked = {"messages": FRANCE, "max_tokens": 30, "return_token_ids": True}
        assert post(http, "/v1/messages", **asked)["token_ids"] == ids
        assert streamed(http, "/v1/messages", **asked)[-2]["token_ids"] == ids

    def test_as_a_prompt(self, http: httpx2.Client) -> None:
        """The ids of a prompt in place of messages give the same answer on every route."""
        prompt = chat(http, return_token_ids=True)["prompt_token_ids"]
        found = post(http, "/v1/chat/completions", prompt_token_ids=prompt)
        assert found["choices"][0]["message"]["content"] == PARIS
        found = post(http, "/v1/responses", prompt_token_ids=prompt)
        assert found["output"][0]["content"][0]["text"] == PARIS
        found = post(http, "/v1/messages", prompt_token_ids=prompt, max_tokens=30)
        assert found["content"][0]["text"] == PARIS
        assert refused(http, "/v1/chat/completions", prompt_token_ids=[10**6])["code"] == "unknown_token"

    def test_in_logprobs(self, http: httpx2.Client) -> None:
        """Tokens and alternatives are named by their ids; bytes and offsets are those of the texts."""
        ask: dict[str, Any] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        [choice] = chat(http, **ask, logprobs=True, top_logprobs=2)["choices"]
        entries = choice["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in choice["token_ids"]]
        assert bytes(entries[0]["bytes"]).decode() == "The"
        assert entries[0]["top_logprobs"][0]["token"] == entries[0]["token"]
        plain, named = (
            post(http, "/v1/completions", prompt="The capital of", max_tokens=4, logprobs=2, **more)["choices"][0]
            for more in ({}, ask)
        )
        assert named["logprobs"]["tokens"] == [f"token_id:{token}" for token in named["token_ids"]]
        assert named["logprobs"]["text_offset"] == plain["logprobs"]["text_offset"]
        assert all(name.startswith("token_id:") for top in named["logprobs"]["top_logprobs"] for name in top)
        assert [sorted(top.values()) for top in named["logprobs"]["top_logprobs"]] == [
            sorted(top.values()) for top in plain["logprobs"]["top_logprobs"]
        ]
        events = streamed(http, "/v1/completions", prompt="The capital of", max_tokens=4, logprobs=2, **ask)
        offsets = [offset for e in events for offset in (e["choices"][0]["logprobs"] or {}).get("text_offset", [])]
        assert offsets == plain["logprobs"]["text_offset"]


class TestPrompts:
    """How the prompt is made."""

    def test_an_answer_that_is_gone_on_with(self, http: httpx2.Client) -> None:
        """The prompt ends with the last message, and the answer is the rest of it."""
        begun = [*FRANCE, {"role": "assistant", "content": "The capital of France"}]
        found = chat(http, messages=begun, continue_final_message=True, return_token_ids=True)
        assert found["choices"][0]["message"]["content"] == " is Paris."
        whole = chat(http, return_token_ids=True)["prompt_token_ids"]
        assert found["prompt_token_ids"] == whole + tokens(http, "The capital of France")

    def test_without_what_an_answer_begins_with(self, http: httpx2.Client) -> None:
        """`add_generation_prompt` false ends the prompt behind the last message."""
        whole = chat(http, return_token_ids=True)["prompt_token_ids"]
        cut = chat(http, add_generation_prompt=False, return_token_ids=True, max_tokens=1)["prompt_token_ids"]
        assert cut == whole[: len(cut)]
        assert whole[len(cut) :] == tokens(http, "<|im_start|>assistant\n")

    def test_truncated(self, http: httpx2.Client) -> None:
        """The last ids are kept, of ids, of a text and of a chat; -1 keeps as many as leave room for the answer."""
        ask: dict[str, Any] = {"max_tokens": 1, "return_token_ids": True}

        def prompt(**more: Any) -> list[int]:
            found: list[int] = post(http, "/v1/completions", **ask, **more)["choices"][0]["prompt_token_ids"]
            return found

        assert prompt(prompt=LONG, truncate_prompt_tokens=7) == LONG[-7:]
        assert prompt(prompt=LONG, truncate_prompt_tokens=200) == LONG
        assert len(prompt(prompt=LONG * 9, truncate_prompt_tokens=-1)) == 511
        text = "".join(f"{number} little mice. " for number in range(20))
        ids = tokens(http, text)
        assert prompt(prompt=text, truncate_prompt_tokens=9) == ids[-9:]
        assert prompt(prompt=text * 2000, truncate_prompt_tokens=9) == ids[-9:]
        assert prompt(prompt=text, truncate_prompt_tokens=len(ids) + 5) == ids
        whole = chat(http, **ask)["prompt_token_ids"]
        found = chat(http, **ask, truncate_prompt_tokens=5)
        assert (found["prompt_token_ids"], found["usage"]["prompt_tokens"]) == (whole[-5:], 5)
        echoed = post(http, "/v1/completions", prompt=text, truncate_prompt_tokens=9, echo=True, max_tokens=0)
        assert echoed["choices"][0]["text"] == text[-len(echoed["choices"][0]["text"]) :]

    def test_documents(self, http: httpx2.Client) -> None:
        """A template that shows none refuses them; as a variable by another name they change nothing."""
        problem = refused(http, "/v1/chat/completions", messages=FRANCE, documents=[{"text": "a"}])
        assert "shows no documents" in problem["message"]
        assert chat(http, documents=[])["choices"][0]["message"]["content"] == PARIS
        assert chat(http, chat_template_kwargs={"enable_thinking": False}, reasoning_effort="high")["choices"]


class TestTokens:
    """Which tokens may come."""

    def test_bad_words(self, http: httpx2.Client) -> None:
        """A word does not come, neither first nor behind a blank; other answers do."""
        text = chat(http, bad_words=["Paris"], max_tokens=20)["choices"][0]["message"]["content"]
        assert text
        assert "Paris" not in text
        assert chat(http, bad_words=["Rome"])["choices"][0]["message"]["content"] == PARIS
        first = chat(http, bad_words=["The"], max_tokens=5, return_token_ids=True)["choices"][0]["token_ids"]
        assert tokens(http, "The") != first[:1]

    @pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"presence_penalty": 1.0}, {"top_p": 0.9}])
    def test_allowed_token_ids(self, http: httpx2.Client, more: dict[str, Any]) -> None:
        """No other id comes, whatever the temperature."""
        allowed = [*tokens(http, " yes no maybe"), 0]
        for seed in range(3):
            ask = {"temperature": 1.5, "seed": seed, "max_tokens": 12, "return_token_ids": True, **more}
            [choice] = chat(http, allowed_token_ids=allowed, **ask)["choices"]
            assert set(choice["token_ids"]) <= set(allowed)
        assert refused(http, "/v1/chat/completions", messages=FRANCE, allowed_token_ids=[10**6])["param"] == (
            "allowed_token_ids"
        )

    def test_what_a_form_forces_is_not_allowed(self, http: httpx2.Client) -> None:
        """A form that needs an id which is barred ends the answer with an error, and is not broken."""
        form = {"choice": ["Paris"]}
        problem = refused(http, "/v1/chat/completions", messages=FRANCE, structured_outputs=form, bad_words=["Paris"])
        assert problem["message"]
        assert chat(http, structured_outputs=form, bad_words=["Rome"])["choices"][0]["message"]["content"] == "Paris"

    def test_logprobs_of_ids(self, http: httpx2.Client) -> None:
        """The alternatives are these, with the logprobs that they have among the most likely ones; no token differs."""
        ids = [*tokens(http, "The"), *tokens(http, " Paris"), 5]
        ask: dict[str, Any] = {"logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
        named, likely = (
            chat(http, **ask, **more)["choices"][0] for more in ({"logprob_token_ids": ids}, {"top_logprobs": 20})
        )
        assert named["token_ids"] == likely["token_ids"]
        for token, one, other in zip(
            named["token_ids"], named["logprobs"]["content"], likely["logprobs"]["content"], strict=True
        ):
            found = {entry["token"]: entry["logprob"] for entry in one["top_logprobs"]}
            assert set(found) == {f"token_id:{name}" for name in {*ids, token}}
            known = {entry["token"]: entry["logprob"] for entry in other["top_logprobs"]}
            assert all(abs(known[name] - value) < 1e-5 for name, value in found.items() if name in known)
        whole = post(http, "/v1/completions", prompt="The capital", max_tokens=2, logprobs=0, logprob_token_ids=[5, 6])
        assert all(2 <= len(top) <= 3 for top in whole["choices"][0]["logprobs"]["top_logprobs"])
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": FRANCE})):
            assert refused(http, path, logprob_token_ids=[5], **body)["param"] == "logprob_token_ids"

    @pytest.mark.parametrize("route", ["chat", "text"])
    def test_the_stop_string(self, http: httpx2.Client, route: str) -> None:
        """It is part of the text where that is asked for, whole or streamed."""
        path, ask = "/v1/chat/completions", {"messages": FRANCE, "stop": ["of France", "zebra"]}
        if route == "text":
            path, ask = "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20}
            ask["stop"] = [post(http, path, **ask)["choices"][0]["text"][9:14]]
        cut, kept = (
            post(http, path, **ask, **more)["choices"][0] for more in ({}, {"include_stop_str_in_output": True})
        )
        texts = [choice["text"] if route == "text" else choice["message"]["content"] for choice in (cut, kept)]
        assert texts[1] == texts[0] + kept["stop_reason"]
        assert kept["finish_reason"] == "stop"
        events = streamed(http, path, **ask, include_stop_str_in_output=True)
        parts = [event["choices"][0] for event in events]
        assert "".join(p["text"] if route == "text" else p["delta"].get("content") or "" for p in parts) == texts[1]


class TestRequests:
    """What is no matter of tokens."""

    def test_cache_salt(self, http: httpx2.Client) -> None:
        """What was computed under one is used again under no other; the answers are the same."""

        def cached(**salt: str) -> int:
            found = post(http, "/v1/completions", prompt=LONG, max_tokens=2, **salt)
            count: int = found["usage"]["prompt_tokens_details"]["cached_tokens"]
            return count

        mine, yours = (uuid.uuid4().hex for _ in range(2))
        assert [cached(cache_salt=mine), cached(cache_salt=yours)] == [0, 0]
        assert cached(cache_salt=mine) >= 64
        one, other = (post(http, "/v1/completions", prompt=LONG, max_tokens=5, **s) for s in ({}, {"cache_salt": "c"}))
        assert one["choices"] == other["choices"]

    def test_request_id_and_priority(self, http: httpx2.Client) -> None:
        """The id is part of the answer's own."""
        assert chat(http, request_id="mine", priority=-5)["id"] == "chatcmpl-mine"
        assert post(http, "/v1/responses", input="Hi", request_id="mine")["id"] == "resp_mine"

    def test_an_object_by_schema(self, http: httpx2.Client) -> None:
        """`json_object` with a schema holds it."""
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
        form = {"type": "json_object", "schema": {**schema, "additionalProperties": False}}
        text = chat(http, response_format=form, temperature=1.3, seed=3, max_tokens=60)["choices"][0]["message"]
        jsonschema.validate(json.loads(text["content"]), schema)

    def test_what_is_not_there(self, http: httpx2.Client) -> None:
        """Embeddings and ranking are refused by name, with what to do."""
        for path, word in (("/v1/embeddings", "embedding"), ("/v1/rerank", "rank"), ("/rerank", "rank")):
            problem = refused(http, path, input="a", query="b", documents=["c"])
            assert word in problem["message"]
            assert problem["code"] == "unsupported_model"

    def test_a_second_turn_of_litellm(self, http: httpx2.Client) -> None:
        """An answer goes back with all that other clients put into it."""
        answer = chat(http)["choices"][0]["message"]
        answer |= {"provider_specific_fields": {"refusal": None}, "function_call": None, "annotations": []}
        found = chat(http, messages=[*FRANCE, answer, {"role": "user", "content": "And of Italy?"}])
        assert found["choices"][0]["message"]["content"]


class Person(pydantic.BaseModel):
    """A form."""

    name: str
    age: int


def test_a_parsed_message(http: httpx2.Client) -> None:
    """Anthropic's own client gets an object of the form that it asks for, and sends its turns back."""
    with anthropic.Anthropic(base_url=str(http.base_url), api_key="none", max_retries=0) as client:
        found = client.messages.parse(
            model="lmtool-tiny", max_tokens=120, messages=[{"role": "user", "content": "Who?"}], output_format=Person
        )
        assert isinstance(found.parsed_output, Person) or found.stop_reason == "max_tokens"
        answer: Any = {"role": "assistant", "content": found.content}
        after = client.messages.create(
            model="lmtool-tiny", max_tokens=5, messages=[{"role": "user", "content": "Who?"}, answer, *FRANCE]
        )
        assert after.content[0].type == "text"
