"""Exact tokens over many turns, by every route."""

from __future__ import annotations

from lmtool.core.types import ChatMessage, ChatPrompt
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from tests.protocol.http.dialogues import check

DIALOGUES = 200


async def test_ids_that_are_sent_back() -> None:
    """They are the ids that were generated: of 200 random dialogues here, of any number by `dialogues`' command."""
    counts = await check(DIALOGUES)
    assert sum(counts[route] for route in ("chat", "messages", "responses", "stored", "ids")) == 3 * DIALOGUES
    assert min(counts.values()) > DIALOGUES / 5
    assert counts["ended by itself"] > DIALOGUES / 2


def test_the_end_of_a_turn_stands_once() -> None:
    """A special token that ids end with, and that the template writes behind them, is not doubled; others stay."""
    tokenizer = load_tokenizer(str(MODEL_DIR))
    end, other = tokenizer.encode("<|im_end|>", special=False)[0], 300
    user, again = ChatMessage("user", "Hi"), ChatMessage("user", "And?")

    def encoded(*tokens: int) -> list[int]:
        return tokenizer.encode_prompt(ChatPrompt((user, ChatMessage("assistant", "", tokens=tokens), again)))

    assert encoded(other, end) == encoded(other)
    assert encoded(end) == encoded()
    assert encoded(other, other)[: len(encoded(other)) + 1] != encoded(other)
    first = tokenizer.encode_prompt(ChatPrompt((user,)))
    assert encoded(other, end)[: len(first) + 2] == [*first, other, end]
