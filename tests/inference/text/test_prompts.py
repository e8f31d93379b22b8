"""What a prompt begins with whatever follows: every prompt that goes on from it has these ids first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import RequestError
from lmtool.core.types import ChatMessage, ChatPrompt, MixedPrompt
from lmtool.inference.text.prompts import beginning_ids
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR

if TYPE_CHECKING:
    from lmtool.core.types import Prompt
    from lmtool.inference.text.tokenizer import TextTokenizer


TINY = load_tokenizer(str(MODEL_DIR))
WORDS = st.lists(
    st.sampled_from(["Once", "upon", "a", "time", "12", ",", "\n", "naïve", "🙂"]), min_size=1, max_size=12
)


def begins(tokenizer: TextTokenizer, prompt: Prompt, longer: Prompt, *, closed: bool = False) -> int:
    """How many ids are known of a prompt; asserts that the longer one begins with them."""
    known = beginning_ids(tokenizer, prompt, closed=closed)
    assert tuple(tokenizer.encode_prompt(longer))[: len(known)] == known
    return len(known)


class TestTexts:
    """Prompts without a template."""

    @given(WORDS, WORDS)
    def test_words(self, words: list[str], more: list[str]) -> None:
        """Text that goes on behind a blank has them first, about all but those of the last word."""
        text = " ".join(words)
        sure = len(TINY.encode(" ".join(words[:-1])))
        assert begins(TINY, text, f"{text} {' '.join(more)}") >= sure - 3

    @given(WORDS)
    def test_within_a_word(self, stories: TextTokenizer, words: list[str]) -> None:
        """A word that goes on is another token: what may change is left out, and little else."""
        text = " ".join([*words, "lit"])
        for tokenizer in (TINY, stories):
            assert begins(tokenizer, text, f"{text}tle girl") >= len(tokenizer.encode(" ".join(words))) - 3

    def test_ids(self) -> None:
        """Exact ids stay, whatever stands behind them."""
        prompt = MixedPrompt(("Once upon", (41, 86)))
        assert begins(TINY, prompt, MixedPrompt((*prompt.parts, " a time"))) == len(TINY.encode("Once upon")) + 2
        assert beginning_ids(TINY, (5, 6, 7)) == (5, 6, 7)


class TestConversations:
    """Prompts under a chat template."""

    USER = ChatMessage("user", "What is the capital of France?")
    ANSWER = ChatMessage("assistant", "Paris")

    def test_an_open_turn(self) -> None:
        """Its text may go on: all before it is known, and neither its end nor the answer's beginning is."""
        chat = ChatPrompt((self.USER,))
        longer = ChatPrompt((ChatMessage("user", f"{self.USER.content} Say it in one word."),))
        assert begins(TINY, chat, longer) >= len(TINY.encode(self.USER.content)) - 2

    def test_a_closed_turn(self) -> None:
        """What follows a user's turn is the assistant's: all that the template writes is known.

        But for its last line break, where the tokenizer has a token of two, which an answer may begin with.
        """
        chat = ChatPrompt((self.USER,))
        merged = len(TINY.encode("\n\n")) == 1
        assert begins(TINY, chat, chat, closed=True) == len(TINY.encode_prompt(chat)) - merged

    @pytest.mark.parametrize("tokens", [None, (41, 86)])
    def test_behind_an_answer(self, tokens: tuple[int, ...] | None) -> None:
        """Behind an answer, as text or as exact ids, comes the user again."""
        answer = ChatMessage("assistant", "Paris", tokens=tokens)
        chat, longer = ChatPrompt((self.USER, answer)), ChatPrompt((self.USER, answer, ChatMessage("user", "And?")))
        known = begins(TINY, chat, longer, closed=True)
        assert known > len(TINY.encode_prompt(ChatPrompt((self.USER,))))

    def test_a_template_that_refuses(self, stories: TextTokenizer) -> None:
        """Where no continuation can be rendered, the template's refusal is the error."""
        with pytest.raises(RequestError, match="no chat template"):
            beginning_ids(stories, ChatPrompt((self.USER,)))
