"""Which member was last sent which beginning of a prompt: there its keys and values may still be cached."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from lmtool.core.types import ChatPrompt, MixedPrompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.core.types import Prompt

BLOCK_TOKENS = 16
"""Token ids in a block of a prompt; of a text it has four times as many characters, of a conversation one turn."""
MAX_PROMPT_BLOCKS = 512
"""Leading blocks of a prompt that are looked at."""
MAX_TABLE_BLOCKS = 1 << 16
"""Blocks remembered in all; the least recently used go first."""


class PrefixTable:
    """Prompt prefixes to the member that received each last. Keeps hashes only: a collision costs a detour."""

    def __init__(self, max_blocks: int = MAX_TABLE_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._members: OrderedDict[int, int] = OrderedDict()

    def matches(self, prompt: Prompt, model: str | None = None) -> dict[int, int]:
        """Each member that knows a prefix of the prompt, with the length in blocks of the longest.

        model: its name, where members have several; a prompt of one says nothing of another's cache.
        """
        lengths: dict[int, int] = {}
        for length, block in enumerate(block_hashes(prompt, model), start=1):
            member = self._members.get(block)
            if member is None:
                break
            lengths[member] = length
        return lengths

    def add(self, prompt: Prompt, member: int, model: str | None = None) -> None:
        """Record that a member was sent this prompt, for a model of this name."""
        for block in block_hashes(prompt, model):
            self._members[block] = member
            self._members.move_to_end(block)
        while len(self._members) > self._max_blocks:
            self._members.popitem(last=False)

    def discard(self, member: int) -> None:
        """Record that a member has lost its cache."""
        for block in [block for block, owner in self._members.items() if owner == member]:
            del self._members[block]


def block_hashes(prompt: Prompt, model: str | None = None) -> Iterator[int]:
    """A hash of each prefix of a model's prompt that ends at a whole block, the shortest first."""
    units: tuple[object, ...] | str
    prefix = 0 if model is None else hash(model)
    if isinstance(prompt, str):
        units, size = prompt, 4 * BLOCK_TOKENS
    elif isinstance(prompt, ChatPrompt):
        units, size = prompt.messages, 1
        if prompt.tools or prompt.chat_template_kwargs:
            prefix = hash((prefix, msgspec.json.encode((prompt.tools, prompt.chat_template_kwargs))))
    elif isinstance(prompt, MixedPrompt):
        units, size = prompt.parts, 1
    else:
        units, size = prompt, BLOCK_TOKENS
    for start in islice(range(0, len(units) - size + 1, size), MAX_PROMPT_BLOCKS):
        prefix = hash((prefix, units[start : start + size]))
        yield prefix
