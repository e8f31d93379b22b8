"""The turns of a conversation as a tree: each follows another, those that follow the same one are branches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lmtool.core.types import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_TURNS = 2000
"""Turns of one conversation; the oldest branches that are not gone on with are dropped first."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and its answer."""

    number: int
    """From 1, as on the screen."""
    behind: int
    """Number of the turn it follows; 0: none."""
    prompt: str
    """As typed, with its parameters."""
    text: str
    """As sent: without parameters, with files put in."""
    answer: str = ""
    """As far as it came."""
    finish_reason: str | None = None
    """How the answer ended, in LMTP's words; `error` where it failed."""
    system: str | None = None
    model: str = ""

    def to_json(self) -> dict[str, object]:
        """The object of a `turn` event (trace/FORMAT.md, "Turns")."""
        value: dict[str, object] = {"number": self.number, "behind": self.behind, "prompt": self.prompt}
        if self.text != self.prompt:
            value["text"] = self.text
        value |= {"answer": self.answer, "finish_reason": self.finish_reason}
        return value | {name: got for name in ("system", "model") if (got := getattr(self, name))}


def turn_from(value: Mapping[str, Any]) -> Turn:
    """The turn of a `turn` event that has a prompt. Raises `ValueError` for an object that is none."""
    number, behind, prompt = value.get("number"), value.get("behind") or 0, value.get("prompt")
    texts = (prompt, value.get("text", prompt), value.get("answer", ""), value.get("model") or "")
    optional = (value.get("finish_reason"), value.get("system"))
    if type(number) is not int or type(behind) is not int or number < 1 or behind < 0:
        raise ValueError(f"a turn has the number {number!r:.40} and follows {behind!r:.40}")
    if not all(isinstance(text, str) for text in texts) or not all(o is None or isinstance(o, str) for o in optional):
        raise ValueError(f"turn {number} has a text that is no string")
    prompt, text, answer, model = map(str, texts)
    return Turn(number, behind, prompt, text, answer, *optional, model)


@dataclass(slots=True)
class TurnTree:
    """All turns, and which of them the next prompt follows."""

    turns: dict[int, Turn] = field(default_factory=dict)
    head: int = 0
    """Number of the turn that the next prompt follows; 0: the beginning."""
    unsent: set[int] = field(default_factory=set)
    """Turns that are not sent any more, because the model's context is full."""

    @property
    def last(self) -> Turn | None:
        """The turn that the next prompt follows."""
        return self.turns.get(self.head)

    @property
    def last_number(self) -> int:
        """The highest number of a turn; 0 without one."""
        return max(self.turns, default=0)

    def add(self, turn: Turn) -> Turn:
        """Add a turn behind the head, which it becomes; returned as it was added. Its number is a new one."""
        added = replace(turn, behind=self.head)
        self.turns[turn.number] = added
        self.head = turn.number
        self._drop_oldest()
        return added

    def replay(self, facts: Mapping[str, Any]) -> None:
        """Take the object of a `turn` event. Raises `ValueError`."""
        number = facts.get("number")
        if "prompt" in facts:
            self.restore(turn_from(facts))
        elif type(number) is not int or not self.go_to(number):
            raise ValueError(f"it goes on behind turn {number!r:.40}, which is missing")

    def restore(self, turn: Turn) -> None:
        """Add a turn where it says, such as one read from a trace. Raises `ValueError` for a number that is there."""
        if turn.number in self.turns:
            raise ValueError(f"turn {turn.number} is there twice")
        behind = turn.behind if turn.behind in self.turns else 0  # a turn follows one that is there: no circles
        self.turns[turn.number] = replace(turn, behind=behind)
        self.head = turn.number
        self._drop_oldest()

    def go_to(self, number: int) -> bool:
        """Let the next prompt follow this turn, or none (0). Returns whether there is such a turn."""
        if number and number not in self.turns:
            return False
        self.head = number
        return True

    def path(self) -> list[Turn]:
        """The turns from the beginning to the head."""
        path, number = [], self.head
        while number in self.turns:
            path.append(self.turns[number])
            number = self.turns[number].behind
        return path[::-1]

    def messages(self) -> list[ChatMessage]:
        """The path as messages; turns without an answer are left out."""
        turns = (turn for turn in self.path() if turn.answer and turn.number not in self.unsent)
        return [
            message
            for turn in turns
            for message in (ChatMessage("user", turn.text), ChatMessage("assistant", turn.answer))
        ]

    def forget_oldest(self) -> bool:
        """Leave the oldest turn of the path out of what is sent. Returns whether there was one."""
        sent = [turn.number for turn in self.path() if turn.answer and turn.number not in self.unsent]
        self.unsent.update(sent[:1])
        return bool(sent)

    def outline(self) -> Iterator[tuple[Turn, str, bool]]:
        """All turns, each with its indentation, and whether it is on the path; a branch is indented."""
        children: dict[int, list[Turn]] = {}
        for turn in self.turns.values():
            children.setdefault(turn.behind if turn.behind in self.turns else 0, []).append(turn)
        on_path = {turn.number for turn in self.path()}
        waiting = [(turn, 0) for turn in reversed(children.get(0, ()))]
        siblings = {turn.number for group in children.values() if len(group) > 1 for turn in group}
        while waiting:
            turn, depth = waiting.pop()
            depth += turn.number in siblings
            yield turn, "  " * min(depth, 8), turn.number in on_path
            waiting += [(child, depth) for child in reversed(children.get(turn.number, ()))]

    def _drop_oldest(self) -> None:
        if len(self.turns) <= MAX_TURNS:
            return
        path = {turn.number for turn in self.path()}
        beside = (number for number in self.turns if number not in path)
        del self.turns[next(beside, next(iter(self.turns)))]
