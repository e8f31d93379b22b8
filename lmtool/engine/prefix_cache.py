"""Which beginnings of texts still have their keys and values in the key-value cache, to be used again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Key: TypeAlias = "tuple[Prefix | None, tuple[int, ...]]"


@dataclass(slots=True, eq=False)
class Prefix:
    """A whole chunk of ids behind certain others, and the blocks that hold its keys and values."""

    key: Key
    """The prefix before it, None at a text's start, and its own ids: nothing is taken on the word of a hash."""
    blocks: tuple[int, ...]
    users: int = 0
    """Sequences whose blocks these are, too. While there is one, they stay."""


@dataclass(slots=True)
class PrefixCounts:
    """What the cache has brought since its start, in tokens but for `evicted`."""

    asked: int = 0
    """Tokens of prompts that were admitted."""
    reused: int = 0
    """Those of them that were not computed again."""
    evicted: int = 0
    """Blocks that were given up for others."""


class PrefixCache:
    """A tree of chunks. Only whole chunks of prompts are kept, cut where every prompt is cut.

    So a stream that begins with kept chunks goes on where one that computes everything would begin its next chunk:
    its bits are the same. Chunks nobody uses are given up least recently used first, an end before what it stands on.
    """

    def __init__(self, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        self.counts = PrefixCounts()
        self._kept: dict[Key, Prefix] = {}
        self._idle: OrderedDict[Prefix, None] = OrderedDict()
        self.idle_blocks = 0
        """Blocks that `evict` can give, in so many calls as it takes."""

    @property
    def blocks(self) -> int:
        """Blocks of all kept chunks, in use or not."""
        return sum(len(prefix.blocks) for prefix in self._kept.values())

    def reusable(self, prompt_length: int) -> int:
        """How many positions of a prompt may come from the cache: whole chunks, and never the last position.

        What the last position predicts is wanted, and only computing it tells.
        """
        return max(prompt_length - 1, 0) // self.chunk_tokens * self.chunk_tokens

    def match(self, tokens: Sequence[int], positions: int) -> list[Prefix]:
        """The longest kept beginning of `tokens` within its first `positions`, chunk by chunk; nothing is held yet."""
        found: list[Prefix] = []
        for start in range(0, positions, self.chunk_tokens):
            chunk = tuple(tokens[start : start + self.chunk_tokens])
            prefix = self._kept.get((found[-1] if found else None, chunk))
            if prefix is None:
                break
            found.append(prefix)
        return found

    def hold(self, prefixes: Iterable[Prefix]) -> None:
        """One more sequence uses these."""
        for prefix in prefixes:
            if not prefix.users:
                del self._idle[prefix]
                self.idle_blocks -= len(prefix.blocks)
            prefix.users += 1

    def release(self, prefixes: Sequence[Prefix]) -> None:
        """One sequence uses these no longer; they stay until their blocks are needed."""
        for prefix in reversed(prefixes):
            prefix.users -= 1
            assert prefix.users >= 0
            if not prefix.users:
                self._idle[prefix] = None
                self.idle_blocks += len(prefix.blocks)

    def add(self, parent: Prefix | None, chunk: Sequence[int], blocks: Sequence[int]) -> Prefix:
        """Keep a computed chunk, held by the sequence that computed it.

        Where another sequence computed the same chunk first, that one is returned, and `blocks` stay the caller's.
        """
        key = (parent, tuple(chunk))
        prefix = self._kept.get(key)
        if prefix is None:
            self._kept[key] = prefix = Prefix(key, tuple(blocks), users=1)
        else:
            self.hold([prefix])
        return prefix

    def evict(self) -> tuple[int, ...]:
        """Give up the chunk that nobody uses and that was not used for longest; its blocks are the caller's."""
        prefix, _ = self._idle.popitem(last=False)
        del self._kept[prefix.key]
        self.idle_blocks -= len(prefix.blocks)
        self.counts.evicted += len(prefix.blocks)
        return prefix.blocks
