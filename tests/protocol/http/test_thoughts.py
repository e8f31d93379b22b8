"""Thoughts apart from answers over HTTP: 3 APIs, schema, regex, tool, streamed or not, thinking on, off, absent, cut.

Each request runs through the real engine, text model and constraints; only the logits follow a script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.constraint import json_schema
from lmtool.core.reasoning import EFFORTS, Reasoning
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams
from lmtool.inference.tiny.path import MODEL_DIR
from tests.protocol.http.thinking import (
    HELLO,
    READERS,
    SCHEMA,
    TEMPLATE,
    Found,
    Scripted,
    asked_to_think,
    body_of,
    chat_answer,
    scripted,
)

THOUGHT = "So, so, so < </ {}\n<tool_call>so, so, so"
ROUTES = pytest.mark.parametrize("path", READERS)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[bool, Scripted]]:
    """With speculation and jump-forward, and without."""
    with (
        scripted(speculation=True, jump_forward=True) as fast,
        scripted(speculation=False, jump_forward=False) as plain,
    ):
        yield {True: fast, False: plain}


def check_form(form: str, found: Found) -> None:
    """A finished answer is held to its form, whatever the model wanted to say."""
    value = json.loads(found.arguments if form == "tool" and found.arguments is not None else found.text)
    if form == "regex":
        assert re.fullmatch("[a-c]{2}-[0-9]", value)
    else:
        assert value["a"] in {"one", "two"}
        assert isinstance(value["b"], bool)
    assert (found.text == "") == (form == "tool")


@ROUTES
@pytest.mark.parametrize("form", ["schema", "regex", "tool"])
@pytest.mark.parametrize("fast", [True, False])
def test_every_finished_answer_is_held(servers: dict[bool, Scripted], path: str, form: str, fast: bool) -> None:
    """And the thought is never part of it."""
    server = servers[fast]
    for thinking in ("on", "off", "absent", "up to the model", "cut", "cut by its budget"):
        begun = "<think>\n" if thinking == "up to the model" else ""
        thinks = thinking not in {"off", "absent"}
        wish = "No! No form."
        if thinking == "absent":  # what is no answer from the start may begin a thought
            named = '{"a":"'
            wish = {"regex": '"', "schema": named, "tool": named if path == "messages" else "["}[form] + wish
        server.says(f"{begun}{THOUGHT}\n</think>\n\n{wish}" if thinks else wish)
        more = asked_to_think(path, {"up to the model": "absent"}.get(thinking, thinking))
        if thinking == "cut":
            more[{"responses": "max_output_tokens"}.get(path, "max_tokens")] = 8
        if thinking == "cut by its budget":
            more = asked_to_think(path, "on") | {"thinking_token_budget": 5}
            more.pop("thinking", None)
            if path != "responses":
                more["chat_template_kwargs"] = {"enable_thinking": True}
        body = body_of(path, form) | more
        found = READERS[path](server.post(path, body))
        assert found == READERS[path](server.post(path, body | {"stream": True})), thinking
        assert "think>" not in found.text
        assert "So" not in found.text
        if thinking == "cut":
            assert (found.reason, found.text, found.arguments) == ("length", "", None)
            assert found.thought
            assert THOUGHT.startswith(found.thought)
            continue
        assert found.reason == ("tool_calls" if form == "tool" else "stop"), thinking
        check_form(form, found)
        if thinking == "cut by its budget":
            assert 0 < len(found.thought) < len(THOUGHT)
            assert THOUGHT.startswith(found.thought)
        else:
            assert found.thought == (THOUGHT if thinks else "")


@ROUTES
@pytest.mark.parametrize("stream", [True, False])
def test_without_a_form(servers: dict[bool, Scripted], path: str, stream: bool) -> None:
    """Text behind the thought is the answer; blanks between them belong to neither."""
    server = servers[True]
    body = body_of(path, "", stream=stream)
    server.says("<think>\nHm.\n\n</think>\n\nYes,\n no.")
    assert READERS[path](server.post(path, body)) == Found("Hm.", "Yes,\n no.", None, "stop")
    server.says("Yes: </think>, <think>.")
    assert READERS[path](server.post(path, body)) == Found("", "Yes: </think>, <think>.", None, "stop")
    server.says("Hm.")
    ended = READERS[path](server.post(path, body | asked_to_think(path, "on")))
    assert ended == Found("Hm.", "", None, "stop")


class TestChat:
    """What chat completions have of their own."""

    def test_whole_and_streamed(self, servers: dict[bool, Scripted]) -> None:
        """`reasoning_content` beside `content`, its tokens counted, those of the answer alone in `logprobs.content`."""
        server = servers[True]
        server.says("<think>\nHm, hm.\n</think>\n\nYes.")
        body = body_of("chat/completions", "", logprobs=True, top_logprobs=1, return_token_ids=True)
        whole = server.post("chat/completions", body)
        [choice] = whole["choices"]
        assert choice["message"] == {
            "role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Hm, hm.",
        }  # fmt: skip
        said = "".join(entry["token"] for entry in choice["logprobs"]["content"])
        thought = "".join(entry["token"] for entry in choice["logprobs"]["reasoning_content"])
        assert said.startswith("Yes.")
        assert thought.endswith("Hm, hm.\n</think>\n\n")
        used = whole["usage"]
        reasoning = used["completion_tokens_details"]["reasoning_tokens"]
        assert reasoning == len(choice["logprobs"]["reasoning_content"])
        assert used["completion_tokens"] == len(choice["token_ids"])
        events = server.post("chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
        assert events[-1]["usage"] == used
        logprobs = [event["choices"][0]["logprobs"] for event in events[:-1] if event["choices"][0]["logprobs"]]
        assert [one for found in logprobs for one in found["content"]] == choice["logprobs"]["content"]
        ids = [token for event in events[:-1] for token in event["choices"][0].get("token_ids", ())]
        assert ids == choice["token_ids"]

    def test_a_thought_that_is_not_shown(self, servers: dict[bool, Scripted]) -> None:
        """`include_reasoning: false` leaves it out; it is thought and counted all the same."""
        server = servers[True]
        server.says("<think>\nHm.\n</think>\n\nYes.")
        body = body_of("chat/completions", "", include_reasoning=False, logprobs=True)
        whole = server.post("chat/completions", body)
        assert "reasoning_content" not in whole["choices"][0]["message"]
        assert set(whole["choices"][0]["logprobs"]) == {"content", "refusal"}
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
        assert "Hm" not in json.dumps(server.post("chat/completions", body | {"stream": True}))

    def test_stop_strings_are_of_the_answer(self, servers: dict[bool, Scripted]) -> None:
        """One in the thought does not cut it."""
        server = servers[True]
        server.says("<think>\nHm. Yes.\n</think>\n\nNo. Yes. Hm.")
        found = chat_answer(server.post("chat/completions", body_of("chat/completions", "", stop=["Yes"])))
        assert found == Found("Hm. Yes.", "No. ", None, "stop")

    def test_effort_is_a_budget(self, servers: dict[bool, Scripted]) -> None:
        """Where the template does not tell the model; `thinking_token_budget` prevails, -1 is no limit."""
        server = servers[True]
        server.says("Yes.")

        def budget(**more: Any) -> Any:
            server.post("chat/completions", body_of("chat/completions", "", **more))
            thought = server.requests[-1].thought_marks
            return None if thought is None else thought.budget

        assert budget(reasoning_effort="low") == 1024
        assert budget(reasoning_effort="high") is None
        assert budget(reasoning_effort="low", thinking_token_budget=9) == 9
        assert budget(thinking_token_budget=-1) is None
        assert budget(thinking={"type": "enabled", "budget_tokens": 7}) == 7
        assert budget(thinking={"type": "adaptive"}, reasoning_effort="minimal") == 128

    def test_the_last_answer_is_gone_on_with(self, servers: dict[bool, Scripted]) -> None:
        """A prefilled answer, or thought, leaves open or closed what its marks say."""
        server = servers[True]
        begun = [*HELLO, {"role": "assistant", "content": "<think>\nHm, "}]
        body = body_of("chat/completions", "") | {"messages": begun, "continue_final_message": True}
        server.says("so.\n</think>\n\nYes.")
        for more in ({}, {"return_token_ids": True}):
            found = chat_answer(server.post("chat/completions", body | more))
            assert found == Found("so.", "Yes.", None, "stop")

    def test_a_long_prefill_behind_an_opened_thought(self, servers: dict[bool, Scripted]) -> None:
        """The thought that the template opens goes on, however long what it begins with is."""
        server = servers[True]
        begun = [*HELLO, {"role": "assistant", "content": "Let me see what that may be, word by word. " * 9}]
        body = body_of("chat/completions", "") | {"messages": begun, "continue_final_message": True}
        server.says("so.\n</think>\n\nYes.")
        for more in ({}, {"return_token_ids": True}):
            asked = body | more | {"chat_template_kwargs": {"enable_thinking": True}}
            assert chat_answer(server.post("chat/completions", asked)) == Found("so.", "Yes.", None, "stop")


def special_marks(folder: Path) -> Path:
    """The embedded model's tokenizer, whose marks around calls are special tokens that never show as text."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        settings = json.loads((MODEL_DIR / name).read_text())
        for token in settings.get("added_tokens", ()):
            token["special"] = True
        (folder / name).write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("between", ["", "\n\n"])
def test_a_call_right_behind_the_thought(tmp_path: Path, between: str) -> None:
    """Its mark begins the answer, also where that is a special token and no text has told that the thought is over."""
    function = {"name": "f", "parameters": SCHEMA}
    tools: dict[str, object] = {
        "chat/completions": {"type": "function", "function": function},
        "responses": {"type": "function", **function},
        "messages": {"name": "f", "input_schema": SCHEMA},
    }
    with scripted(folder=special_marks(tmp_path)) as server:
        server.says(
            f'<think>\nHm.\n</think>{between}<tool_call>\n{{"name": "f", "arguments": {{"a":1}}}}\n</tool_call>'
        )
        for path, tool in tools.items():
            for stream in (False, True):
                found = READERS[path](server.post(path, body_of(path, "", stream=stream, tools=[tool])))
                assert found == Found("Hm.", "", '{"a":1}', "tool_calls")


def test_thoughts_that_are_sent_back(servers: dict[bool, Scripted]) -> None:
    """They stand in the prompt where the template shows them, from each API's form."""
    server = servers[True]
    server.says("Yes.")
    again = {"role": "user", "content": "And?"}
    call = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {
            "messages": [*HELLO, {"role": "assistant", "content": "No.", "reasoning_content": "Hm."}, again]
        },
        "messages": {
            "messages": [*HELLO, {"role": "assistant", "content": [call, {"type": "text", "text": "No."}]}, again],
            "max_tokens": 5,
        },
        "responses": {
            "input": [
                *HELLO,
                {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"type": "message", "role": "assistant", "content": "No."},
                again,
            ]
        },
    }  # fmt: skip
    prompts = []
    for path, body in bodies.items():
        server.post(path, body)
        prompts.append(server.tokenizer.decode(server.requests[-1].prompt))  # type: ignore[arg-type]
    assert prompts[0] == "user\nHello\nassistant\n<think>\nHm.\n</think>\n\nNo.\nuser\nAnd?\nassistant\n"
    assert set(prompts) == {prompts[0]}
    first = server.post("responses", {"input": "Hello", "reasoning": {"effort": "high"}})
    assert first["reasoning"] == {"effort": "high", "summary": None}
    server.says("<think>Hm.</think>Yes.")
    first = server.post("responses", {"input": "Hello", "temperature": 0})
    assert [item["type"] for item in first["output"]] == ["reasoning", "message"]
    assert first["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    server.post("responses", {"input": "And?", "previous_response_id": first["id"]})
    assert "<think>\nHm.\n</think>\n\nYes." in server.tokenizer.decode(server.requests[-1].prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["auto", "concise", "detailed"])
def test_a_summary_of_the_thought(servers: dict[bool, Scripted], kind: str) -> None:
    """Who asks for one finds the thought in the item's `summary`, streamed by its events, and can send it back."""
    server = servers[True]
    server.says("<think>Hm.</think>Yes.")
    body = {"input": "Hello", "temperature": 0, "reasoning": {"summary": kind}}
    whole = server.post("responses", body)
    assert whole["reasoning"] == {"effort": None, "summary": kind}
    thought, answer = whole["output"]
    assert (thought["summary"], thought["content"]) == ([{"type": "summary_text", "text": "Hm."}], [])
    assert answer["content"][0]["text"] == "Yes."
    events = server.post("responses", body | {"stream": True})
    told = [event for event in events if "reasoning" in event["type"]]
    added, *deltas, text, done = told
    assert [one["type"].removeprefix("response.reasoning_summary_") for one in told] == [
        "part.added", *["text.delta"] * len(deltas), "text.done", "part.done",
    ]  # fmt: skip
    assert {(one["summary_index"], one["output_index"], one["item_id"]) for one in told} == {(0, 0, added["item_id"])}
    assert "".join(one["delta"] for one in deltas) == text["text"] == done["part"]["text"] == "Hm."
    assert events[-1]["response"]["output"][0]["summary"] == thought["summary"]
    for more in ({"input": [*HELLO, *whole["output"], *HELLO]}, {"previous_response_id": whole["id"]}):
        server.post("responses", body | more)
        assert "<think>\nHm.\n</think>\n\nYes." in server.tokenizer.decode(server.requests[-1].prompt)  # type: ignore[arg-type]
    assert server.refused("responses", body | {"reasoning": {"summary": "long"}})["param"] == "reasoning.summary"


def test_exact_ids_behind_an_opened_thought(servers: dict[bool, Scripted]) -> None:
    """The next prompt begins with the last one and its answer: the mark that the template wrote stands there again."""
    server = servers[True]
    server.says("Hm.\n</think>\n\nYes.")
    again = {"role": "user", "content": "And?"}
    common = {"chat_template_kwargs": {"enable_thinking": True}, "return_token_ids": True}

    def prompt_of(path: str, **more: Any) -> tuple[list[int], Any]:
        answer = server.post(path, body_of(path, "", **common) | more)
        return list(server.requests[-1].prompt), answer  # type: ignore[arg-type]

    followed: dict[str, Callable[[Any], tuple[list[int], list[dict[str, Any]]]]] = {
        "chat/completions": lambda found: (
            found["choices"][0]["token_ids"],
            [
                {
                    "messages": [
                        *HELLO,
                        found["choices"][0]["message"] | {"token_ids": found["choices"][0]["token_ids"]},
                        again,
                    ]
                }
            ],
        ),
        "messages": lambda found: (
            found["token_ids"],
            [{"messages": [*HELLO, {name: found[name] for name in ("role", "content", "token_ids")}, again]}],
        ),
        "responses": lambda found: (
            found["output"][1]["token_ids"],
            [{"input": [*HELLO, *found["output"], again]}, {"input": "And?", "previous_response_id": found["id"]}],
        ),
    }
    for path, follow in followed.items():
        prompt, found = prompt_of(path)
        ids, bodies = follow(found)
        for body in bodies:
            known = prompt + ids
            assert prompt_of(path, **body)[0][: len(known)] == known
        plain = {"role": "assistant", "token_ids": server.tokenizer.encode_continuation("Yes, <think>.")}
        if path == "chat/completions":
            for turn in (plain, {"role": "assistant", "content": "Hm.</think>Yes."}):  # ids that close none, and a text
                server.post(path, body_of(path, "", **common) | {"messages": [*HELLO, turn, again]})
                sent = server.tokenizer.decode(server.requests[-1].prompt)  # type: ignore[arg-type]
                assert "assistant\n<think>" not in sent.removesuffix("<think>\n")


def test_an_effort_that_is_none(servers: dict[bool, Scripted]) -> None:
    """It is refused by the name that its API has for it, with the word that is near; all of these words are known."""
    server = servers[True]
    server.says("Yes.")
    asked: dict[str, Callable[[str], dict[str, Any]]] = {
        "chat/completions": lambda word: {"reasoning_effort": word},
        "responses": lambda word: {"reasoning": {"effort": word}},
        "messages": lambda word: {"output_config": {"effort": word}},
    }
    names = {
        "chat/completions": "reasoning_effort",
        "responses": "reasoning.effort",
        "messages": "output_config.effort",
    }
    for path, effort in asked.items():
        message = server.refused(path, body_of(path, "") | effort("hihg"))["message"]
        assert f"{names[path]} is 'hihg'" in message
        assert "did you mean high?" in message
    for word in EFFORTS:
        assert server.post("chat/completions", body_of("chat/completions", "", reasoning_effort=word))
    with scripted(TEMPLATE + "{{ reasoning_effort }}") as heeding:
        heeding.says("Yes.")
        heeding.post("chat/completions", body_of("chat/completions", "", reasoning_effort="a bit"))
        assert heeding.tokenizer.decode(heeding.requests[-1].prompt).endswith("a bit")  # type: ignore[arg-type]


def test_a_model_that_does_not_think() -> None:
    """To demand a thought is refused; effort and budgets, which only bound one, are not. Its text is as it is."""
    template = TEMPLATE.replace("think>", "mark>")
    with scripted(template) as server:
        server.says("<think>Hm.</think>Yes.")
        for path in ("messages", "chat/completions"):
            error = server.refused(path, body_of(path, "", thinking={"type": "enabled", "budget_tokens": 5}))
            assert "thinking is enabled, but lmtool-tiny does not think" in error["message"]
            found = server.post(path, body_of(path, "", thinking={"type": "disabled"}, thinking_token_budget=0))
            assert READERS[path](found).text == "<think>Hm.</think>Yes."
        body = body_of("chat/completions", "", reasoning_effort="low", include_reasoning=False)
        assert chat_answer(server.post("chat/completions", body)).text == "<think>Hm.</think>Yes."
        body = {"prompt": "Hi", "max_tokens": 60, "temperature": 0, "thinking_token_budget": 5}
        assert server.post("completions", body)["choices"][0]["text"] == "<think>Hm.</think>Yes."
        assert server.requests[-1].thought_marks is None


@pytest.mark.parametrize("fast", [True, False])
async def test_a_stream_goes_on_wherever_it_was_cut(servers: dict[bool, Scripted], fast: bool) -> None:
    """Behind ids that count as generated: the same ids, numbers, thought and answer, bit for bit."""
    server = servers[fast]
    server.says(f"{THOUGHT}\n</think>\n\nNo! No form.")
    prompt = ChatPrompt((ChatMessage("user", "Hello"),), chat_template_kwargs={"enable_thinking": True})
    for budget in (7, None):
        request = GenerateRequest(
            "s",
            prompt,
            SamplingParams(max_tokens=200, temperature=0.4, seed=3),
            text=True,
            constraint=json_schema(SCHEMA),
            reasoning=Reasoning(budget),
        )
        whole = [output async for output in stream(server.model, request)]
        assert whole[-1].finish_reason == "stop", whole[-1]
        ids = [output.token for output in whole if output.token is not None]
        for cut in range(1, len(ids)):
            rest = [output async for output in stream(server.model, replace(request, generated=tuple(ids[:cut])))]
            assert [output.token for output in rest] == ids[cut:]
            assert [output.logprob for output in rest] == [output.logprob for output in whole[cut:]]
            for part in ("reasoning", "text"):
                texts = ["".join(getattr(one, part) or "" for one in outputs) for outputs in (whole, whole[:cut], rest)]
                assert texts[0] == texts[1] + texts[2]


def test_completions_have_no_thoughts(servers: dict[bool, Scripted]) -> None:
    """A text is gone on with as it is."""
    server = servers[True]
    server.says("<think>Hm.</think>Yes.")
    body = {"prompt": "Hi", "max_tokens": 60, "temperature": 0}
    for more in ({}, {"thinking_token_budget": -1}, {"include_reasoning": True}):
        [choice] = server.post("completions", body | more)["choices"]
        assert choice["text"] == "<think>Hm.</think>Yes."
    for name, value in (("thinking_token_budget", 5), ("thinking_token_budget", 0), ("include_reasoning", False)):
        error = server.refused("completions", body | {name: value})
        assert error["param"] == name
        assert "send messages to /v1/chat/completions" in error["message"]
