"""Calls in every form on every API: whole, streamed, and cut off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from lmtool.protocol.http.models import ApiConfig
from tests.protocol.http.saying import MARK, Letters, SayingModel, application
from tests.protocol.http.tools.formats.test_grammars import ARGUMENTS, FORMS, PARAMETERS, answer

HELLO = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "weather", "parameters": PARAMETERS}
ROUTES: Mapping[str, dict[str, Any]] = {
    "chat/completions": {"messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}]},
    "responses": {"input": "Hi", "tools": [{"type": "function", **FUNCTION}]},
    "messages": {"messages": HELLO, "tools": [{"name": "weather", "input_schema": PARAMETERS}]},
}
LIMITS = {"chat/completions": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}


def client(form: str, text: str) -> TestClient:
    """A server whose model writes calls in this form, and this text."""
    model = SayingModel(text, letters=Letters())
    return TestClient(application(model, ApiConfig(tool_call_parser=form)))


def whole(route: str, body: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]], str]:
    """Text, calls and why it ended, of an answer in one piece."""
    if route == "responses":
        text = "".join(part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"])
        calls = [(item["name"], item["arguments"]) for item in body["output"] if item["type"] == "function_call"]
        return text, calls, body["status"]
    if route == "messages":
        text = "".join(part["text"] for part in body["content"] if part["type"] == "text")
        used = [part for part in body["content"] if part["type"] == "tool_use"]
        return text, [(part["name"], json.dumps(part["input"])) for part in used], body["stop_reason"]
    [choice] = body["choices"]
    made = choice["message"].get("tool_calls") or []
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in made]
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


def streamed(route: str, text: str) -> str:
    """The arguments that a stream of events told, one after the other."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if route == "responses":
        return "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta"))
    if route == "messages":
        return "".join(event.get("delta", {}).get("partial_json", "") for event in events)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls") or [])


@pytest.mark.parametrize("form", FORMS)
def test_calls_on_every_api(form: str) -> None:
    """Each API tells the same calls, whole and streamed; forced ones are constrained in the model's own form."""
    with client(form, answer(form)) as http:
        for route, body in ROUTES.items():
            asked = {"model": "sayer", LIMITS[route]: 999, **body}
            said, calls, ended = whole(route, http.post(f"/v1/{route}", json=asked).json())
            assert (said, ended) == (
                "",
                {"chat/completions": "tool_calls", "messages": "tool_use"}.get(route, "completed"),
            )
            assert [(name, json.loads(arguments)) for name, arguments in calls] == [("weather", json.loads(ARGUMENTS))]
            told = streamed(route, http.post(f"/v1/{route}", json={**asked, "stream": True}).text)
            assert json.loads(told) == json.loads(ARGUMENTS)


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_must_be(form: str) -> None:
    """It is constrained in the model's own form, and read from that."""
    model = SayingModel(answer(form), letters=Letters())
    with TestClient(application(model, ApiConfig(tool_call_parser=form))) as http:
        chosen = {"chat/completions": "required", "responses": "required", "messages": {"type": "any"}}
        for route, body in ROUTES.items():
            forced = {"model": "sayer", LIMITS[route]: 999, **body, "tool_choice": chosen[route]}
            _, calls, _ = whole(route, http.post(f"/v1/{route}", json=forced).json())
            assert [name for name, _ in calls] == ["weather"]
    kinds = {getattr(request, "constraint").kind for request in model.requests}  # noqa: B009  # of one of two kinds
    assert kinds == {"structural_tag"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES)
def test_a_call_that_is_cut(form: str, route: str) -> None:
    """The answer ended at its limit, and nothing of the call is text."""
    text = answer(form)
    ends = {"chat/completions": "length", "responses": "incomplete", "messages": "max_tokens"}
    with client(form, text) as http:
        length = len(text.replace(MARK, "x"))
        for limit in (length - 8, length // 2, 4):
            body = {"model": "sayer", **ROUTES[route], LIMITS[route]: limit}
            answered = http.post(f"/v1/{route}", json=body)
            said, _, ended = whole(route, answered.json())
            assert (said, ended) == ("", ends[route]), text[:limit]
