"""Items of the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.core.reasoning import SignedThought, ThoughtSignature
from lmtool.core.signed_message import signed_thoughts
from lmtool.core.types import ChatMessage, ToolCall
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.responses.requests import fresh, function_call, message, part
from lmtool.protocol.http.responses.requests import read as read_request


def read(*items: dict[str, Any]) -> tuple[ChatMessage, ...]:
    return read_request({"input": list(items)}).turns


def test_turns() -> None:
    """Messages, calls beside the message before them, what tools answered; thoughts are left out."""
    assert read(
        {"role": "developer", "content": "brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        message("msg_1", "completed", [part("b")]),
        function_call("fc_1", "completed", ToolCall("1", "f", "{}")),
        function_call("fc_2", "completed", ToolCall("2", "g", "{}")),
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    ) == (
        ChatMessage("system", "brief"),
        ChatMessage("user", "a"),
        ChatMessage("assistant", "b", (ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}"))),
        ChatMessage("tool", "sunny", tool_call_id="1"),
    )
    assert read(function_call("fc", "completed", ToolCall("1", "f", "{}")))[0].role == "assistant"


def test_signed_thoughts() -> None:
    """Those of a turn come together, in items before its text and its calls; what others encrypted says nothing."""

    def thought(text: str, encrypted: object) -> dict[str, Any]:
        content = [{"type": "reasoning_text", "text": text}] if text else []
        return {"type": "reasoning", "id": "r", "summary": [], "content": content, "encrypted_content": encrypted}

    calls = function_call("fc_1", "completed", ToolCall("1", "f", "{}"))
    said = message("msg_1", "completed", [part("b")])
    turns = read(
        *(thought("a", "thinking:s"), thought("", "redacted_thinking:t"), said, thought("c", "thinking:u"), calls),
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
        *(thought("d", "gAAAA"), thought("e", 5), function_call("fc_2", "completed", ToolCall("2", "g", "{}"))),
    )
    parts = (("a", "s", False), ("", "t", True), ("c", "u", False))
    assert signed_thoughts(turns[0]) == tuple(SignedThought(text, ThoughtSignature(*more)) for text, *more in parts)
    assert (turns[0].reasoning, turns[0].content, turns[0].tool_calls) == ("ac", "b", (ToolCall("1", "f", "{}"),))
    assert (turns[2].reasoning, signed_thoughts(turns[2])) == ("de", ())


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"content": "a"}, "input[0].role"),
        ({"role": "wizard", "content": "a"}, "input[0].role"),
        ({"role": "user", "content": 1}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content"),
        ({"type": "web_search_call", "id": "x"}, "input[0].type"),
        ({"type": "function_call", "call_id": "1", "arguments": "{}"}, "input[0].name"),
        ({"role": "user", "content": "a", "token_ids": [-1]}, "input[0].token_ids[0]"),
    ],
)
def test_what_is_wrong_is_named(item: dict[str, Any], param: str) -> None:
    """400, and the member to blame."""
    with pytest.raises(ApiError) as raised:
        read(item)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_ids_are_new() -> None:
    """Each says what it is of."""
    assert fresh("resp").startswith("resp_")
    assert fresh("resp") != fresh("resp")
