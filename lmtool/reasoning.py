"""What a model thinks before it answers: how it is asked for, and how it is marked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Tells what a model thinks apart from what it answers, see `GenerateRequest.reasoning`."""

    budget: int | None = None
    """Most tokens of the thought, whose end is written behind them; 0: it does not think. None: any number."""
    prefill: str = ""
    """The beginning of the answer, where the prompt is ids that end with it; a `ChatPrompt` has its own."""


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """Where a stream's thought begins and ends in its ids: constraint and budget depend on it. Hashable."""

    opening: str
    """The mark that begins it, where the model may answer without a thought; empty: it is open from the start."""
    closings: tuple[str, ...]
    """Marks, special tokens by their names: the first of them in the stream ends the thought."""
    ending: tuple[int, ...]
    """The ids that end it at the budget: a closing mark, and what the model writes behind one."""
    separators: tuple[tuple[int, ...], ...] = ()
    """Ids that lead from the closing mark to a constrained answer, by how much of `separator` stands there already."""
    separator: str = ""
    """What stands between the closing mark and a constrained answer."""
    budget: int | None = None
    """As `Reasoning.budget`."""
    empty: tuple[int, ...] = ()
    """The ids in place of a thought under a budget of 0, where none is open at the start."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model writes what it thinks before it answers."""

    name: str
    """Of its reasoning parser: vLLM's, or that of an entry point."""
    heeds_effort: bool = False
    """Whether the chat template tells the model a `reasoning_effort`."""
