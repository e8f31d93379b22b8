"""Requests to `/v1/responses`, and their items."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.core.reasoning import SignedThought, ThoughtSignature
from lmtool.core.signed_message import signed_thoughts
from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.responses.requests import ResponsesCall, fresh, function_call, message, part, read


def read_turns(*items: dict[str, Any]) -> tuple[ChatMessage, ...]:
    return read({"input": list(items)}).turns


def test_turns() -> None:
    """Messages, calls beside the message before them, what tools answered; thoughts are left out."""
    assert read_turns(
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
    assert read_turns(function_call("fc", "completed", ToolCall("1", "f", "{}")))[0].role == "assistant"


def test_signed_thoughts() -> None:
    """Those of a turn come together, in items before its text and its calls; what others encrypted says nothing."""

    def thought(text: str, encrypted: object) -> dict[str, Any]:
        content = [{"type": "reasoning_text", "text": text}] if text else []
        return {"type": "reasoning", "id": "r", "summary": [], "content": content, "encrypted_content": encrypted}

    calls = function_call("fc_1", "completed", ToolCall("1", "f", "{}"))
    said = message("msg_1", "completed", [part("b")])
    turns = read_turns(
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
def test_invalid_items_are_named(item: dict[str, Any], param: str) -> None:
    """400, and the member to blame."""
    with pytest.raises(ApiError) as raised:
        read_turns(item)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_ids_are_new() -> None:
    """Each says what it is of."""
    assert fresh("resp").startswith("resp_")
    assert fresh("resp") != fresh("resp")


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
FORM = {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "object"}}


def asked(body: dict[str, Any]) -> ResponsesCall:
    return read(body)


def test_the_conversation() -> None:
    """Instructions first, then what was said before, then the input; instructions are not remembered."""
    said = (ChatMessage("user", "a"), ChatMessage("assistant", "b"))
    alone = asked({"input": "c", "instructions": "i", "previous_response_id": "resp_1"})
    assert alone.previous == "resp_1"
    assert alone.turns == (ChatMessage("user", "c"),)
    ask = alone.with_turns((*said, *alone.turns))
    assert ask.call.prompts == (ChatPrompt((ChatMessage("system", "i"), *said, ChatMessage("user", "c"))),)
    assert ask.turns == (*said, ChatMessage("user", "c"))
    assert ask.repeated["previous_response_id"] == "resp_1"


def test_tools_and_form() -> None:
    """Tools without the inner object; the form of the text under `text`."""
    ask = asked({"input": "c", "tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}})
    assert ask.call.tools is not None
    assert ask.call.tools.mode == "named"
    assert (ask.repeated["tools"], asked({"input": "c"}).repeated["tools"]) == ([TOOL], [])
    held = asked({"input": "c", "text": {"format": FORM}}).call.constraint
    assert held is not None
    assert (held.text, held.strict) == ('{"type":"object"}', True)
    assert asked({"input": "c", "text": {"format": {"type": "text"}}}).call.constraint is None


def test_what_changes_nothing_is_taken() -> None:
    """What clients send by habit."""
    ask = asked(
        {
            "input": "c",
            "truncation": "auto",
            "reasoning": {"effort": "high", "summary": "auto"},
            "max_tool_calls": 3,
            "background": False,
            "prompt_cache_retention": "24h",
            "include": ["reasoning.encrypted_content", "file_search_call.results", "message.output_text.logprobs"],
            "top_logprobs": 2,
            "metadata": {"a": "b"},
            "store": False,
            "max_output_tokens": 5,
        }
    )
    assert (ask.call.logprobs, ask.store, ask.call.sampling.max_tokens) == (2, False, 5)
    assert ask.repeated["metadata"] == {"a": "b"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "truncation": "middle"}, "truncation"),
        ({"input": "a", "conversation": "conv_1"}, "conversation"),
        ({"input": "a", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "a", "include": ["thoughts"]}, "include[0]"),
        ({"input": "a", "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"input": "a", "prompt_token_ids": [1]}, "input"),
        ({"prompt_token_ids": [1], "instructions": "be brief"}, "instructions"),
        ({"input": "a", "tools": [{"name": "f"}]}, "tools[0].type"),
        ({"input": "a", "tools": [{"type": 1}]}, "tools[0].type"),
        ({"input": "a", "text": {"formt": {}}}, "text.formt"),
        ({"input": "a", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "a", "max_tokens": 5}, "max_tokens"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    """The member to blame."""
    with pytest.raises(ApiError) as raised:
        asked(body)
    assert raised.value.param == param


def test_exact_ids() -> None:
    """A turn's ids stand on its first item, in place of its text and its calls; or the whole prompt is ids."""
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    after = [{"type": "function_call_output", "call_id": "1", "output": "sunny"}]
    for items in ([{**message, "token_ids": [5, 6]}, call], [{**call, "token_ids": [5, 6]}, call]):
        turns = asked({"input": [*items, *after]}).turns
        assert [(turn.tokens, turn.tool_calls) for turn in turns] == [((5, 6), ()), (None, ())]
    ask = asked({"prompt_token_ids": [1, 2]})
    assert (ask.call.prompts, ask.store) == (((1, 2),), False)


def test_items_of_others() -> None:
    """Members that are not known, and what was refused, are no reason to refuse."""
    message = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "phase": "final", "agent": {}}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x", "content": None}
    assert asked({"input": [reasoning, message]}).turns == (ChatMessage("assistant", "No."),)
    assert asked(
        {"input": "a", "text": {"format": {"type": "json_object", "schema": {"minProperties": 1}}}}
    ).call.constraint
