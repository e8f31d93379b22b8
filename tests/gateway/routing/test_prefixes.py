"""A table of prompt prefixes and the members that received them."""

from __future__ import annotations

from dataclasses import replace

from lmtool.core.types import ChatMessage, ChatPrompt, MixedPrompt
from lmtool.gateway.routing.prefixes import BLOCK_TOKENS, MAX_PROMPT_BLOCKS, PrefixTable, block_hashes


class TestPrefixTable:
    """Which member was last sent which beginning of a prompt."""

    def test_the_longest_common_prefix_counts(self) -> None:
        """In whole blocks; a prompt that differs early is unknown."""
        table = PrefixTable()
        prompt = tuple(range(5 * BLOCK_TOKENS))
        table.add(prompt, 3)
        assert table.matches(prompt) == {3: 5}
        assert table.matches((*prompt[: 2 * BLOCK_TOKENS], *range(900, 960))) == {3: 2}
        assert table.matches((7, *prompt)) == {}
        assert table.matches(prompt[: BLOCK_TOKENS - 1]) == {}

    def test_the_last_member_counts(self) -> None:
        """A shared prefix belongs to the member that received it last; the rest stays where it was."""
        table = PrefixTable()
        shared = tuple(range(2 * BLOCK_TOKENS))
        first, second = ((*shared, *range(start, start + BLOCK_TOKENS)) for start in (100, 200))
        table.add(first, 0)
        table.add(second, 1)
        assert table.matches(first) == {1: 2, 0: 3}

    def test_texts_and_messages(self) -> None:
        """A text in blocks of 64 characters, a conversation in turns."""
        table = PrefixTable()
        table.add("x" * 200, 0)
        assert table.matches("x" * 130 + "y" * 70) == {0: 2}
        turns = (ChatMessage("user", "a"), ChatMessage("assistant", "b"))
        table.add(ChatPrompt(turns), 1)
        longer = ChatPrompt((*turns, ChatMessage("user", "c")))
        assert table.matches(longer) == {1: 2}
        assert table.matches(replace(longer, tools=({"type": "function"},))) == {}  # they stand before all turns
        table.add(MixedPrompt(("a", (1, 2))), 1)
        assert table.matches(MixedPrompt(("a", (1, 2), "b"))) == {1: 2}

    def test_a_member_that_lost_its_cache_matches_nothing(self) -> None:
        """What others know stays."""
        table = PrefixTable()
        table.add((1,) * BLOCK_TOKENS, 0)
        table.add((2,) * BLOCK_TOKENS, 1)
        table.discard(0)
        assert table.matches((1,) * BLOCK_TOKENS) == {}
        assert table.matches((2,) * BLOCK_TOKENS) == {1: 1}

    def test_memory_is_bounded(self) -> None:
        """The least recently used blocks go first; of a very long prompt only the beginning is looked at."""
        table = PrefixTable(max_blocks=3)
        for token in range(4):
            table.add((token,) * BLOCK_TOKENS, token)
        table.add((1,) * BLOCK_TOKENS, 1)
        table.add((4,) * BLOCK_TOKENS, 4)
        matches = [bool(table.matches((token,) * BLOCK_TOKENS)) for token in range(5)]
        assert matches == [False, True, False, True, True]
        assert len(list(block_hashes((1,) * (BLOCK_TOKENS * (MAX_PROMPT_BLOCKS + 9))))) == MAX_PROMPT_BLOCKS
