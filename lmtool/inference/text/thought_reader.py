"""Thoughts between two marks, such as `<think>` and `</think>`, separated from the answer incrementally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.reasoning import ThoughtMarks
from lmtool.inference.text.reasoning_parser import Piece

if TYPE_CHECKING:
    from lmtool.inference.text.reasoning_parser import Beginning, Encode

Phase: TypeAlias = Literal["before", "thought", "gap", "answer"]
"""State of a stream: undecided, in the thought, after its closing mark, in the answer."""


@dataclass(frozen=True, slots=True)
class MarkedThoughts:
    """A `reasoning_parser.ReasoningParser` of models that put marks around the one thought before their answer."""

    name: str
    start: str = "<think>"
    end: str = "</think>"
    separator: str = "\n\n"
    """Text that the model writes between closing mark and answer."""
    implicit: bool = False
    """The stream begins with a thought even if neither prompt nor stream has the opening mark."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Opening and closing mark."""
        return self.start, self.end

    def beginning(self, tail: str, prefill: str = "") -> Beginning:
        """See `ReasoningParser`; decided by the mark at the end of the prompt, as users may write marks earlier."""
        if self.start in prefill or self.end in prefill:
            return "open" if prefill.rfind(self.start) > prefill.rfind(self.end) else "closed"
        tail = tail.rstrip()
        if tail.endswith(self.end):
            return "closed"
        if tail.endswith(self.start):
            return "open"
        return "closed" if prefill.strip() else "undecided"

    def reader(self, beginning: Beginning, *, constrained: bool) -> MarkedReader:
        """See `reasoning_parser.ReasoningParser`."""
        phase: Phase = "thought" if beginning == "open" else "before"
        implicit = self.implicit and beginning != "closed"
        return MarkedReader(
            self.start, self.end, phase, implicit=implicit, separator=self.separator if constrained else None
        )

    def thought_marks(
        self,
        beginning: Beginning,
        encode: Encode,
        budget: int | None,
        *,
        constrained: bool,  # noqa: ARG002  # the same marks
    ) -> ThoughtMarks | None:
        """See `reasoning_parser.ReasoningParser`."""
        if beginning == "closed":
            return None
        undecided = beginning == "undecided"
        empty = f"{self.start}\n\n{self.end}{self.separator}" if undecided else ""
        return ThoughtMarks(
            opening=self.start if undecided and not self.implicit else "",
            closings=(self.end,),
            ending=tuple(encode(self.end + self.separator)),
            separators=tuple(tuple(encode(self.separator[at:])) for at in range(len(self.separator))),
            separator=self.separator,
            budget=budget,
            empty=tuple(encode(empty)) if empty else (),
        )


class MarkedReader:
    """A `reasoning_parser.ThoughtReader` for marked thoughts. Blanks around the thought are dropped."""

    __slots__ = ("_end", "_fresh", "_implicit", "_pending", "_phase", "_separator", "_start")

    def __init__(self, start: str, end: str, phase: Phase, *, implicit: bool = False, separator: str | None) -> None:
        """phase: at the start of the stream. implicit: see `MarkedThoughts`.

        separator: text dropped after the closing mark, as far as it occurs; None: all blanks.
        """
        self._start = start
        self._end = end
        self._phase: str = phase
        self._implicit = implicit
        self._separator = separator
        self._pending = ""
        self._fresh = True
        """Only blanks of the thought were read so far."""

    @property
    def thinking(self) -> bool:
        """See `reasoning_parser.ThoughtReader`."""
        begun = self._phase == "before" and bool(self._pending.strip())  # what may become the opening mark
        return begun or self._phase in {"thought", "gap"}

    def push(self, text: str) -> Piece:
        """See `reasoning_parser.ThoughtReader`; holds back possible marks and the blanks before them."""
        if self._phase == "answer":
            return Piece(answer=text)
        self._pending += text
        if self._phase == "before":
            self._read_opening()
        thought = self._read_thought() if self._phase == "thought" else ""
        if self._phase == "gap":
            self._read_gap()
        answer = ""
        if self._phase == "answer":
            answer, self._pending = self._pending, ""
        return Piece(thought, answer)

    def push_special(self) -> None:
        """See `reasoning_parser.ThoughtReader`: after the closing mark it begins the answer."""
        if self._phase == "gap":
            self._phase = "answer"

    def finish(self) -> Piece:
        """See `reasoning_parser.ThoughtReader`."""
        rest, self._pending = self._pending, ""
        if self._phase == "thought" or (self._phase == "before" and self._implicit):
            return Piece(rest.lstrip() if self._fresh else rest)
        return Piece(answer=rest if self._phase == "before" else "")

    def _read_opening(self) -> None:
        begun = self._pending.lstrip()
        if begun.startswith(self._start):
            self._pending = begun[len(self._start) :]
            self._phase = "thought"
        elif not self._start.startswith(begun):
            self._phase = "thought" if self._implicit else "answer"

    def _read_thought(self) -> str:
        if self._fresh:
            self._pending = self._pending.lstrip()
            self._fresh = not self._pending or self._end.startswith(self._pending)
        before, mark, behind = self._pending.partition(self._end)
        if mark:
            self._pending, self._phase = behind, "gap"
            return before.rstrip()
        shown = self._pending[: len(self._pending) - overlap(self._pending, self._end)].rstrip()
        self._pending = self._pending[len(shown) :]
        return shown

    def _read_gap(self) -> None:
        if self._separator is None:
            self._pending = self._pending.lstrip()
        else:
            same = 0
            for mine, other in zip(self._pending, self._separator, strict=False):
                if mine != other:
                    self._separator = self._separator[:same]
                    break
                same += 1
            self._pending, self._separator = self._pending[same:], self._separator[same:]
        if self._pending or self._separator == "":
            self._phase = "answer"


def overlap(text: str, mark: str) -> int:
    """Length of the longest text suffix that is a proper prefix of a mark."""
    most = min(len(text), len(mark) - 1)
    return next((length for length in range(most, 0, -1) if text.endswith(mark[:length])), 0)
