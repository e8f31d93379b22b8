"""Prompts and sampling parameters as the Python face takes them."""

from __future__ import annotations

import pytest

from lmtool.core.api_arguments import as_prompt, as_sampling, wants_text
from lmtool.core.buffer import Buffer
from lmtool.core.types import BufferSlice, ChatMessage, ChatPrompt, MixedPrompt, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient


def test_prompts_with_buffers() -> None:
    """A buffer stands for what it has at that time; its beginning may stand in its place."""
    buffer = Buffer(LmtpClient("127.0.0.1:1"), "a")
    assert as_prompt(buffer) == MixedPrompt((BufferSlice("a", 0),))
    assert as_prompt([1, buffer, buffer.first(2), "x"]) == MixedPrompt(
        ((1,), BufferSlice("a", 0), BufferSlice("a", 2), "x")
    )


def test_every_kind_of_prompt() -> None:
    """Text stays text, ids become a tuple, both in a row a `MixedPrompt`, messages a `ChatPrompt`."""
    hello = ChatMessage("user", "hello")
    assert as_prompt("hello") == "hello"
    assert as_prompt([1, 2]) == (1, 2)
    assert as_prompt([]) == ()
    assert as_prompt([{"role": "user", "content": "hello"}, hello]) == ChatPrompt((hello, hello))
    assert as_prompt(["one", 2]) == MixedPrompt(("one", (2,)))
    chat = ChatPrompt((hello,), prefill="Well,")
    assert as_prompt(chat) is chat
    with pytest.raises(TypeError, match="role and content"):
        as_prompt([1, None])  # type: ignore[list-item]


def test_an_unknown_parameter_names_the_nearest() -> None:
    """A typo is not silently ignored."""
    with pytest.raises(TypeError, match="'max_token' is no sampling parameter; did you mean 'max_tokens'"):
        as_sampling({"max_token": 3})


def test_one_stop_text_need_not_be_a_list() -> None:
    """`stop="x"` means the text, not its characters."""
    assert as_sampling({"stop": "end"}).stop == ("end",)
    assert as_sampling({"stop": ["a", "b"], "stop_token_ids": [3]}) == SamplingParams(
        stop=("a", "b"), stop_token_ids=(3,)
    )


def test_text_comes_where_a_prompt_has_some() -> None:
    """Not for ids and buffers alone."""
    buffer = Buffer(LmtpClient("127.0.0.1:1"), "a")
    assert [wants_text(prompt) for prompt in ("a", [1, "a"], [buffer, "a"])] == [True] * 3
    assert [wants_text(prompt) for prompt in (buffer, [1], [buffer, buffer.first(1), 1])] == [False] * 3
