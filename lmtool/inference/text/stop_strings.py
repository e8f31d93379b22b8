"""How much of a text may be shown while stop strings are watched for, and where the text ends."""

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
    """Watches one stream's text for stop strings, in time linear in its length (Aho and Corasick, 1975).

    The match that is complete first ends the text; of several that are complete with the same character, the one that
    began first. So the result does not depend on how the text was cut into pieces.
    """

    __slots__ = ("_ends", "_fallback", "_firsts", "_length", "_next", "_node", "_withheld", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepare to watch. Raises `RequestError` for an empty stop string, too many, or too long ones."""
        _check(stops)
        self._next: list[dict[str, int]] = [{}]
        """By node: character to the node for the text one longer. Node 0 is the empty text."""
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
        """Return what may be shown after the next piece of text: nothing that is, or may become, a stop string.

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
        """Return what was held back, at the end of a text without a match."""
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
        """Return, by node, the node of the longest other text that this node's text ends with."""
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
