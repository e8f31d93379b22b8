"""Stop strings: the part of a text that may be shown, and the end of the text."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 8192
"""Most characters of all stop strings of a request together."""


class StopStrings:
    """Matches stop strings in one stream's text in linear time (Aho and Corasick, 1975).

    The first complete match ends the text; of several that end at the same character, the one that began first counts.
    So the result does not depend on how the text is split.
    """

    __slots__ = ("_ends", "_fallback", "_firsts", "_length", "_next", "_node", "_withheld", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        """Build the automaton. Raises `RequestError` for an empty stop string, too many, or too long ones."""
        _check(stops)
        self._next: list[dict[str, int]] = [{}]
        """By node: next character to the child node. Node 0 is the empty text."""
        self._ends: list[str] = [""]
        """By node: the longest stop string that its text ends with."""
        self._length = [0]
        """By node: the length of its text."""
        for stop in stops:
            self._add(stop)
        self._fallback = self._link()
        self._firsts = frozenset(stop[0] for stop in stops)
        self._node = 0
        self._withheld = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """Take more text; return the part that neither is nor may become a stop string.

        Once `matched` is set, nothing more is shown, whatever comes.
        """
        if self.matched is not None:
            return ""
        if not self._withheld and self._firsts.isdisjoint(text):
            return text
        pending = self._withheld + text
        for end in range(len(self._withheld), len(pending)):
            self._node = self._step(pending[end])
            if stop := self._ends[self._node]:
                self.matched = stop
                self._withheld = ""
                return pending[: end + 1 - len(stop)]
        keep = len(pending) - self._length[self._node]
        self._withheld = pending[keep:]
        return pending[:keep]

    def flush(self) -> str:
        """Return the text held back, at the end of a text without a match."""
        rest, self._withheld, self._node = self._withheld, "", 0
        return rest

    def _add(self, stop: str) -> None:
        node = 0
        for character in stop:
            if character not in self._next[node]:
                self._next[node][character] = len(self._next)
                self._next.append({})
                self._ends.append("")
                self._length.append(self._length[node] + 1)
            node = self._next[node][character]
        self._ends[node] = stop

    def _link(self) -> list[int]:
        """Return, by node, the node of the longest proper suffix of its text."""
        fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for character, child in self._next[node].items():
                queue.append(child)
                other = fallback[node]
                while other and character not in self._next[other]:
                    other = fallback[other]
                fallback[child] = self._next[other].get(character, 0)
                self._ends[child] = self._ends[child] or self._ends[fallback[child]]
        return fallback

    def _step(self, character: str) -> int:
        node = self._node
        while node and character not in self._next[node]:
            node = self._fallback[node]
        return self._next[node].get(character, 0)


def _check(stops: Sequence[str]) -> None:
    if "" in stops:
        raise RequestError("stop holds an empty text", "leave it out, or give the text to stop at")
    if len(stops) > MAX_STOP_STRINGS:
        raise RequestError(f"stop holds {len(stops)} texts, at most {MAX_STOP_STRINGS} are allowed", "send fewer")
    if (length := sum(map(len, stops))) > MAX_STOP_CHARACTERS:
        raise RequestError(
            f"the texts in stop have {length} characters together, at most {MAX_STOP_CHARACTERS} are allowed",
            "send shorter ones",
        )
