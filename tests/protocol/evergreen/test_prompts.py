"""Leaves become a prompt: texts in a row, or turns of a conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.types import ChatMessage, ChatPrompt, MixedPrompt
from lmtool.protocol.evergreen.messages import ChunkMetadata
from lmtool.protocol.evergreen.prompts import TOKENS, PromptBuilder
from lmtool.protocol.evergreen.status import Abort, Status

END = ("application/x-protobuf; type=EndOfTurn", "", "")


def built(*leaves: tuple[str, str, str | bytes], split: int = 1 << 20) -> PromptBuilder:
    """A builder of (mime type, role, data) leaves, given in pieces of at most `split` bytes."""
    builder = PromptBuilder()
    for number, (mimetype, role, content) in enumerate(leaves):
        builder.begin(ChunkMetadata(mimetype, role), f"n{number}")
        data = content.encode() if isinstance(content, str) else content
        for start in range(0, len(data), split):
            builder.feed(data[start : start + split])
        builder.end()
    return builder


def text(data: str, role: str = "", mimetype: str = "text/plain") -> tuple[str, str, str]:
    return mimetype, role, data


def turn(role: str, content: str = "", **more: object) -> ChatMessage:
    return ChatMessage(role, content, **more)


@pytest.mark.parametrize(
    ("leaves", "prompt"),
    [
        ([], ""),
        ([text("Once"), text(" upon")], "Once upon"),
        ([text("# a", mimetype="text/markdown; charset=utf-8"), text("b", mimetype="TEXT/x-new")], "# ab"),
        ([text("Once"), text(" upon", "assistant"), text(" a")], "Once upon a"),
        ([text("a"), (TOKENS, "assistant", "[1, 2]"), text("b")], MixedPrompt(("a", (1, 2), "b"))),
        ([text("Hi", "user")], ChatPrompt((turn("user", "Hi"),))),
        ([text("Hi", "USER"), text("!", "user")], ChatPrompt((turn("user", "Hi!"),))),
        ([text("Hi"), END], ChatPrompt((turn("user", "Hi"),))),
        ([text("a"), END, text("b"), END], ChatPrompt((turn("user", "a"), turn("user", "b")))),
        (
            [text("Be brief.", "system"), text("Hi"), text("Hello", "model"), text("And?")],
            ChatPrompt(
                (turn("system", "Be brief."), turn("user", "Hi"), turn("assistant", "Hello"), turn("user", "And?"))
            ),
        ),
        (
            [text("Hi", "user"), (TOKENS, "", "[7]"), text("And?")],
            ChatPrompt((turn("user", "Hi"), turn("assistant", tokens=(7,)), turn("user", "And?"))),
        ),
        ([text("Hi", "user"), text("Well,", "assistant")], ChatPrompt((turn("user", "Hi"),), prefill="Well,")),
        (
            [text("Hi", "user"), text("Well.", "assistant"), END],
            ChatPrompt((turn("user", "Hi"), turn("assistant", "Well."))),
        ),
    ],
)
def test_prompts(leaves, prompt):
    """A role other than that of an answer, or an end of turn, makes turns; else texts are joined (rules 12, 16, 37)."""
    assert built(*leaves).prompt() == prompt


@given(st.text(), st.integers(1, 5))
def test_any_split_means_the_same(data, split):
    """A chunk may end within a character (rule 7)."""
    assert built(text(data), split=split).prompt() == data


@pytest.mark.parametrize(
    ("leaf", "sentence"),
    [
        (("video/mp4", "", b""), "'video/mp4'"),
        (("", "", b"x"), "text only"),
        (("application/x-protobuf; type=Other", "", b""), "text only"),
        (("text/plain", "", b"\xff"), "no UTF-8"),
        (("text/plain", "", b"caf\xc3"), "no UTF-8"),
        ((TOKENS, "", b"[1"), "token ids"),
        ((TOKENS, "", b"[-1]"), "token ids"),
        ((TOKENS, "", b'{"a":1}'), "token ids"),
    ],
)
def test_what_a_model_cannot_read(leaf, sentence):
    """Is refused with its mime type and its node (rule 37)."""
    with pytest.raises(Abort, match=sentence) as refused:
        built(leaf)
    assert refused.value.status is Status.INVALID_ARGUMENT
    assert "'n0'" in refused.value.sentence


def test_what_may_still_grow():
    """A turn that was not ended may go on; one of token ids, or with an end, may not."""
    assert not built(text("Hi", "user")).closed
    assert built(text("Hi", "user"), END).closed
    assert built(text("Hi", "user"), (TOKENS, "", "[1]")).closed
    assert [built().has_content, built(text("a")).has_content] == [False, True]


def test_variables_of_the_template():
    """They are part of every conversation, and of no text."""
    builder = PromptBuilder({"thinking": True})
    builder.begin(ChunkMetadata("text/plain", "user"), "n")
    builder.feed(b"Hi")
    builder.end()
    assert builder.prompt() == ChatPrompt((turn("user", "Hi"),), chat_template_kwargs={"thinking": True})
