"""What coding agents send, on every API: recorded requests, and each of their habits alone."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from lmtool.protocol.http import generation
from lmtool.protocol.http.tools.definitions import without_foreign_tools
from lmtool.protocol.http.unsupported import MESSAGES, RESPONSES, Table
from tests.protocol.http.agents import RECORDED, events_of, text_of, warnings_of
from tests.protocol.http.saying import Letters, SayingModel, application
from tests.protocol.http.thinking import Scripted, scripted

LEFT_OUT = "tools left out: namespace multi_agent_v1, web_search; models here can call tools of type function only"
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ROUTES = pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
ITEMS = (
    "{% for tool in tools or [] %}{{ '// ' + tool.function.description + ' ' + tool.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %} calls {{ c.function.name }}"
    "{% for name, value in c.function.arguments | items %} {{ name }}={{ value }}{% endfor %}{% endfor %};{% endfor %}"
)
"""A template that needs an object of arguments, and the description of a tool."""


def client(*texts: str, template: str | None = None) -> tuple[TestClient, SayingModel]:
    """A server whose model says these texts, and the model."""
    model = SayingModel(*texts, letters=None if template is None else Letters(template))
    return TestClient(application(model)), model


def post(http: TestClient, path: str, body: dict[str, Any], *, stream: bool = False) -> Any:
    """The answer, or the events of a streamed one."""
    answer = http.post(path if path.startswith("/") else f"/v1/{path}", json=body | {"stream": stream})
    assert answer.status_code == 200, answer.text
    return events_of(answer.text) if stream else answer.json()


def body_of(path: str, *tools: dict[str, Any]) -> dict[str, Any]:
    """A short request with these tools."""
    turns: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
    return ({"input": "Hi"} if path == "responses" else turns) | {"model": "sayer", "tools": list(tools)}


def function(path: str, name: str) -> dict[str, Any]:
    """A tool without description."""
    bare = {"name": name}
    return {
        "chat/completions": {"type": "function", "function": bare},
        "responses": {"type": "function", **bare},
        "messages": {**bare, "input_schema": {"type": "object"}},
    }[path]


def shown(model: SayingModel) -> str:
    """The prompt of the last request."""
    return bytes(model.letters.encode_prompt(model.requests[-1].prompt)).decode()


@STREAMED
@pytest.mark.parametrize(("path", "body"), RECORDED)
@pytest.mark.parametrize("template", [None, ITEMS], ids=["hermes", "items"])
def test_recorded_requests(path: str, body: dict[str, Any], template: str | None, *, stream: bool) -> None:
    """Each is answered, whole and streamed; what is left out of it is told."""
    http, model = client("Hello there.", template=template)
    answer = post(http, path, body, stream=stream)
    assert text_of(path, answer) == "Hello there."
    warned = [one for one in warnings_of(path, answer) if one.startswith("tools left out")]
    assert warned == ([LEFT_OUT] if path.endswith("responses") else [])
    assert "Say hello" in shown(model)
    if path.endswith("messages"):
        counted = http.post(f"{path}/count_tokens", json=body).json()
        assert counted["input_tokens"] == len(shown(model).encode())
        assert "system: Available agent types" in shown(model).partition("Say hello")[2]


FOREIGN: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [{"type": "custom", "custom": {"name": "patch"}}, {"type": "web_search"}],
    "responses": [
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "mcp", "server_label": "a", "server_url": "https://a.example"},
        {"type": "local_shell"},
        {"type": "file_search", "vector_store_ids": ["v"]},
        {"type": "\n\x1b[31m" + "x" * 99},
    ],
    "messages": [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "mcp_toolset", "mcp_server_name": "a"},
    ],
}


@STREAMED
@ROUTES
def test_tools_that_no_model_here_can_call(path: str, caplog: pytest.LogCaptureFixture, *, stream: bool) -> None:
    """They are left out, the others stay; the answer and the log say so, the log once and in one line."""
    generation._log_once.cache_clear()
    http, model = client("Hello there.")
    body = body_of(path, *FOREIGN[path], function(path, "own"))
    with caplog.at_level(logging.WARNING, "lmtool"):
        answers = [post(http, path, body, stream=stream) for _ in range(2)]
    [warning] = warnings_of(path, answers[0])
    assert all(re.sub(r"[^\w]", "?", one["type"])[:60] in warning for one in FOREIGN[path])
    assert [record.getMessage() for record in caplog.records] == [warning]
    assert warning.isprintable()
    assert '"own"' in shown(model)
    assert '"type": "web_search' not in shown(model)
    if path == "responses":
        whole = answers[0][-1]["response"] if stream else answers[0]
        assert whole["tools"] == body["tools"]
    if path == "chat/completions":
        tokenized = http.post("/tokenize", json={"messages": body["messages"], "tools": body["tools"]}).json()
        assert tokenized["count"] == len(shown(model))


@ROUTES
def test_a_choice_of_a_tool_that_is_left_out(path: str) -> None:
    """It cannot be met, so it is refused; in a list of allowed tools it does not count."""
    http, model = client("Hello there.")
    choices: dict[str, Any] = {
        "chat/completions": {"type": "custom", "custom": {"name": "patch"}},
        "responses": {"type": "local_shell"},
        "messages": {"type": "tool", "name": "bash"},
    }
    refused = http.post(f"/v1/{path}", json=body_of(path, *FOREIGN[path]) | {"tool_choice": choices[path]})
    assert (refused.status_code, "tool_choice" in refused.text) == (400, True)
    if path == "responses":
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "a"}]}
        allowed["tools"].append({"type": "function", "name": "own"})  # type: ignore[attr-defined]
        tools = body_of(path, *FOREIGN[path], function(path, "own"), function(path, "other"))
        assert post(http, path, tools | {"tool_choice": allowed})
        assert ('"own"' in shown(model), '"other"' in shown(model)) == (True, False)
        allowed["tools"].append(1)  # type: ignore[attr-defined]
        assert http.post(f"/v1/{path}", json=tools | {"tool_choice": allowed}).status_code == 400


def test_many_tools_are_sorted_in_one_pass() -> None:
    """A hundred thousand of them take no time that grows with their square, and one warning of bounded length."""
    tools = [{"type": f"t{at}", "more": {"a": at}} for at in range(100_000)]
    body, [warning] = without_foreign_tools({"tools": tools})
    assert set(body["tools"]) == {None}
    assert warning.startswith("tools left out: t0, t1, ")
    assert len(warning) < 2000


@ROUTES
def test_names_of_tools(path: str) -> None:
    """Up to 128 characters, as names of MCP tools are long and Anthropic's API takes them."""
    http, model = client("Hello there.", template=ITEMS)
    post(http, path, body_of(path, function(path, "m" * 128)))
    assert f"//  {'m' * 128};" in shown(model)
    refused = http.post(f"/v1/{path}", json=body_of(path, function(path, "m" * 129)))
    assert (refused.status_code, "1 to 128" in refused.text) == (400, True)


@pytest.mark.parametrize("arguments", ['{"cmd": "echo o', '["a"]', "7", "null", ""])
@ROUTES
def test_a_broken_call_in_the_history(path: str, arguments: str) -> None:
    """The next request is served under a template that needs an object; a result without content is an empty text."""
    http, model = client("Hello there.", template=ITEMS)
    call = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": arguments}}
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": None},
    ]
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "call_1", "name": "run", "arguments": arguments},
        {"type": "function_call_output", "call_id": "call_1", "output": None},
    ]
    given = json.loads(arguments) if arguments in {"7", "null", '["a"]'} else arguments
    blocks = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "run", "input": given}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": None}]},
    ]
    turns = {"chat/completions": {"messages": chat}, "responses": {"input": items}, "messages": {"messages": blocks}}
    post(http, path, body_of(path) | turns[path])
    told = "" if arguments in {"null", ""} else f" INVALID_JSON={arguments}"
    assert shown(model) == f"user: Hi;assistant:  calls run{told};tool: ;"


def test_arguments_that_are_no_text() -> None:
    """Some clients of chat completions send them as an object."""
    http, model = client("Hello there.", template=ITEMS)
    call = {"id": "1", "function": {"name": "run", "arguments": {"a": "é"}}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1"}]
    post(http, "chat/completions", {"messages": turns})
    assert shown(model) == "assistant:  calls run a=é;tool: ;"


def thought(*turns: str) -> list[dict[str, Any]]:
    """Assistant's turns, those called `t` with a thought, `c` with a call."""
    blocks = {
        "t": {"type": "thinking", "thinking": "Hm"},
        "c": {"type": "tool_use", "id": "1", "name": "f", "input": {}},
    }
    return [{"role": "assistant", "content": [blocks[turn]]} for turn in turns]


def edit(kind: str, **more: Any) -> dict[str, Any]:
    """A value of `context_management` with one edit."""
    return {"edits": [{"type": kind, **more}]}


THOUGHTS, USES, COMPACT = "clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112"


@pytest.mark.parametrize(
    ("table", "value", "turns", "accepted"),
    [
        (MESSAGES, edit(THOUGHTS, keep="all"), "ttt", True),
        (MESSAGES, edit(THOUGHTS, keep={"type": "thinking_turns", "value": 2}), "tct", True),
        (MESSAGES, edit(THOUGHTS, keep={"type": "thinking_turns", "value": 1}), "tct", False),
        (MESSAGES, edit(THOUGHTS), "t", True),
        (MESSAGES, edit(THOUGHTS), "tt", False),
        (MESSAGES, edit(USES), "ccccc", True),
        (MESSAGES, edit(USES, trigger={"type": "input_tokens", "value": 50}), "ccccc", False),
        (MESSAGES, edit(USES, trigger={"type": "input_tokens", "value": 50}), "ccc", True),
        (MESSAGES, edit(USES, trigger={"type": "input_tokens", "value": 50}, keep={"value": 9}), "ccccc", True),
        (MESSAGES, edit(USES, trigger={"type": "tool_uses", "value": 5}), "ccccc", False),
        (MESSAGES, edit(USES, trigger={"type": "tool_uses", "value": 6}), "ccccc", True),
        (MESSAGES, edit(COMPACT), "t", True),
        (MESSAGES, edit(COMPACT, trigger={"type": "input_tokens", "value": 50}), "t", False),
        (MESSAGES, edit("unheard_of"), "", False),
        (MESSAGES, {"edits": [None]}, "", False),
        (MESSAGES, {"edits": edit(COMPACT)["edits"] * 9}, "", False),
        (MESSAGES, {"edits": [{"keep": "all"}]}, "", False),
        (MESSAGES, edit(THOUGHTS, keep="none"), "t", False),
        (RESPONSES, [{"type": "compaction", "compact_threshold": 200_000}], "t", True),
        (RESPONSES, [{"type": "compaction", "compact_threshold": 50}], "t", False),
        (RESPONSES, [{"type": "compaction"}], "t", False),
        (RESPONSES, [{"type": "clear"}], "t", False),
    ],
)
def test_context_management(table: Table, value: Any, turns: str, *, accepted: bool) -> None:
    """Accepted where no edit would leave out a part of this very conversation."""
    body = {"messages": thought(*turns), "context_management": value}
    assert table["context_management"].accepts(value, body) is accepted
    if table is RESPONSES:
        body["previous_response_id"] = "resp_1"  # how long that is, the request does not show
        assert not table["context_management"].accepts(value, body)


def test_context_management_of_no_conversation() -> None:
    """What is wrong with the messages is said as ever."""
    http, _ = client("Hello there.")
    for messages in (5, [5], [{"role": "user", "content": [5]}]):
        refused = http.post(
            "/v1/messages", json={"messages": messages, "max_tokens": 5, "context_management": edit(USES)}
        )
        assert (refused.status_code, "messages" in refused.json()["error"]["message"]) == (400, True)
    refused = http.post("/v1/responses", json={"input": [{"id": "msg_1", "content": "Hi"}]})
    assert refused.json()["error"]["param"] == "input[0].role"


@STREAMED
def test_items_by_reference(*, stream: bool) -> None:
    """A message, a call and a thought of stored answers stand where they are referred to; others are a 404."""
    http, model = client(
        '<tool_call>{"name": "own", "arguments": {"a": 1}}</tool_call>', "Fine.", "Yes.", template=ITEMS
    )
    body = body_of("responses", function("responses", "own"))
    first = post(http, "responses", body)
    [call] = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
    references = [{"type": "item_reference", "id": call["id"]}, result]
    second = post(http, "responses", body | {"input": [{"role": "user", "content": "Hi"}, *references]})
    assert "assistant:  calls own a=1;tool: 12;" in shown(model)
    last = {"id": second["output"][0]["id"]}  # OpenAI's SDK may leave out the type
    third = {"role": "user", "content": "Sure?"}
    answer = post(
        http, "responses", body | {"input": [*references, last, third], "instructions": "Be brief"}, stream=stream
    )
    assert text_of("responses", answer) == "Yes."
    told = "assistant:  calls own a=1;tool: 12;assistant: Fine.;user: Sure?;"
    assert shown(model).partition("system: Be brief;")[2] == told
    number = (answer[-1]["response"] if stream else answer)["id"]
    kept = http.get(f"/v1/responses/{number}/input_items").json()["data"]
    assert [one["type"] for one in kept] == ["function_call", "function_call_output", "message", "message"]
    unknown = http.post("/v1/responses", json=body | {"input": [{"type": "item_reference", "id": "msg_x"}]})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "item_not_found")
    assert "'msg_x'" in unknown.json()["error"]["message"]


def test_a_long_conversation_by_reference() -> None:
    """One that is read in another process is the same."""
    http, model = client("Fine.", template=ITEMS)
    first = post(http, "responses", {"input": "Hi"})
    long = {"role": "user", "content": "x" * 300_000}
    post(http, "responses", {"input": [{"type": "item_reference", "id": first["output"][0]["id"]}, long]})
    assert shown(model).startswith("assistant: Fine.;user: xxx")


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    """A server over the real engine and tokenizer, with a context of 4096 tokens."""
    with scripted() as made:
        yield made


@STREAMED
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize("length", [9_000, 600_000], ids=["counted", "measured"])
def test_overflow(server: Scripted, path: str, length: int, *, stream: bool) -> None:
    """In tokens, and in the words by which Claude Code compacts and client libraries raise their own error."""
    text = "go " * (length // 2)
    turns = {"messages": [{"role": "user", "content": text}], "max_tokens": 50}
    bodies: dict[str, dict[str, Any]] = {"responses": {"input": text}, "completions": {"prompt": text}}
    answer = server.http.post(f"/v1/{path}", json=bodies.get(path, turns) | {"stream": stream})
    error = answer.json()["error"]
    assert answer.status_code == 400
    tokens, limit = map(
        int, re.findall(r"^prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+) maximum", error["message"])[0]
    )
    assert tokens > limit >= 4095
    assert "this model's maximum context length is 4096 tokens" in error["message"]
    assert error["type"] == "invalid_request_error"
    if path != "messages":
        assert error["code"] == "context_length_exceeded"
