"""Parameters that nothing reads: taken where they change nothing, else refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lmtool.protocol.http import unsupported
from lmtool.protocol.http.anthropic.requests import MessagesRequest
from lmtool.protocol.http.anthropic.requests import read as messages
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.openai.requests import ChatCompletionRequest, CompletionRequest, chat, completion
from lmtool.protocol.http.responses.requests import ResponsesRequest
from lmtool.protocol.http.responses.requests import read as responses
from lmtool.protocol.http.unsupported import Unsupported, supported

HELLO = [{"role": "user", "content": "Hi"}]
LEAST: dict[Callable[..., Any], dict[str, Any]] = {
    chat: {"messages": HELLO},
    completion: {"prompt": "a"},
    responses: {"input": "a"},
    messages: {"messages": HELLO, "max_tokens": 1},
}
"""The least request of each route."""
TABLES: dict[Callable[..., Any], tuple[unsupported.Table, type]] = {
    chat: (unsupported.CHAT, ChatCompletionRequest),
    completion: (unsupported.COMPLETION, CompletionRequest),
    responses: (unsupported.RESPONSES, ResponsesRequest),
    messages: (unsupported.MESSAGES, MessagesRequest),
}
ROUTES = pytest.mark.parametrize("read", list(TABLES))


@ROUTES
def test_each_is_taken_where_it_changes_nothing(read: Callable[..., Any]) -> None:
    """Null and the values of the table, all others refused: 400, the name, the value, and what to do."""
    table, _ = TABLES[read]
    assert read({**LEAST[read], **dict.fromkeys(table)})
    for name, entry in table.items():
        for value in ("anything", {"a": 1}, 3) if entry.any_value else entry.harmless:
            assert read({**LEAST[read], name: value})
        if not entry.any_value:
            with pytest.raises(ApiError, match=r"is not supported here: \w") as raised:
                read({**LEAST[read], name: ["odd"]})
            assert (raised.value.status, raised.value.param, raised.value.code) == (400, name, "unsupported_parameter")
            assert raised.value.message.startswith(f"{name} is ['odd']")


@pytest.mark.parametrize("read", [chat, completion, responses])
def test_what_routers_send(read: Callable[..., Any]) -> None:
    """`cache_control` beside the messages, and a `truncation` that leaves nothing out, are harmless on each route."""
    assert read({**LEAST[read], "cache_control": {"type": "ephemeral"}, "truncation": "disabled"})
    with pytest.raises(ApiError, match="truncation is 'middle'"):
        read({**LEAST[read], "truncation": "middle"})


@ROUTES
def test_none_is_read_as_well(read: Callable[..., Any]) -> None:
    """What a route reads is no part of its table."""
    table, kind = TABLES[read]
    assert not table.keys() & set(kind.__struct_fields__)  # type: ignore[attr-defined]  # of msgspec
    assert kind.unsupported is table  # type: ignore[attr-defined]  # of a Body


def test_true_is_not_one() -> None:
    """A value is harmless only in its own type."""
    with pytest.raises(ApiError, match="mirostat is False"):
        completion({"prompt": "a", "mirostat": False})
    assert Unsupported((1, 1.0)).accepts(1.0)
    assert not Unsupported((1,)).accepts(True)


@pytest.mark.parametrize(
    ("read", "name", "near"),
    [
        (chat, "temprature", "temperature"),
        (chat, "function_cal", "function_call"),
        (chat, "skip_special_token", "skip_special_tokens"),
        (chat, "max_new_tokens", "max_tokens"),
        (chat, "stop_sequences", "stop"),
        (chat, "repeat_penalty", "repetition_penalty"),
        (responses, "max_tokens", "max_output_tokens"),
        (responses, "messages", "input"),
        (messages, "stop", "stop_sequences"),
        (messages, "max_completion_tokens", "max_tokens"),
        (completion, "input", "prompt"),
    ],
)
def test_the_nearest_name(read: Callable[..., Any], name: str, near: str) -> None:
    """A name that is not known, misspelt or of another API, is refused with the one that may have been meant."""
    with pytest.raises(ApiError, match=rf"^{name} is not known here; did you mean {near}\?$") as raised:
        read({**LEAST[read], name: 1})
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, name, "unknown_parameter")


@pytest.mark.parametrize("name", ["lora_path", "lora_request"])
def test_adapters(name: str) -> None:
    """LoRA is refused by its name."""
    with pytest.raises(ApiError, match="LoRA adapters are not applied here: merge"):
        chat({**LEAST[chat], name: "mine"})


def test_a_long_value_is_cut() -> None:
    """No sentence is long."""
    with pytest.raises(ApiError) as raised:
        supported(unsupported.CHAT, {"chat_template": "x" * 5000})
    assert len(raised.value.message) < 250
