"""What a model thinks before it answers: how it is asked for, and how it is marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Words for `reasoning_effort`; a model whose chat template heeds it may have others."""
EFFORT_BUDGETS = {"none": 0, "minimal": 128, "low": 1024, "medium": 2048}
"""Tokens of a thought by effort, where the chat template does not tell the model; others: any number."""
SWITCHES = ("enable_thinking", "thinking")
"""What chat templates call the variable that turns thinking on and off: Qwen's and GLM's; DeepSeek's and Granite's."""


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
class ThoughtSignature:
    """What an API adds to a part of a thought, and wants to have back with it: Anthropic's."""

    value: str
    is_redacted: bool = False
    """True if it stands for a part that its API alone can read, and that has no text."""


@dataclass(frozen=True, slots=True)
class SignedThought:
    """A part of a thought that is sent back word for word."""

    text: str
    signature: ThoughtSignature

    @classmethod
    def of(cls, reasoning: str, before: Sequence[SignedThought], signature: ThoughtSignature) -> SignedThought:
        """The part that a signature is of: what those before it leave of the thought so far."""
        begin = sum(len(one.text) for one in before)
        return cls("" if signature.is_redacted else reasoning[begin:], signature)


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model writes what it thinks before it answers."""

    name: str
    """Of its reasoning parser: vLLM's, or that of an entry point."""
    heeds_effort: bool = False
    """True if the chat template tells the model a `reasoning_effort`."""


def template_variables(effort: str | None, *, enabled: bool | None = None) -> dict[str, object]:
    """The variables of a chat template that tell the model how much to think, and whether; effort `none`: not at all.

    enabled: None: as the model does by itself.
    """
    if effort == "none" and enabled is None:
        enabled = False
    variables: dict[str, object] = {} if effort is None else {"reasoning_effort": effort}
    return variables | ({} if enabled is None else dict.fromkeys(SWITCHES, enabled))


def requested_reasoning(
    form: ReasoningFormat | None, variables: Mapping[str, object], budget: int | None, effort: str | None
) -> Reasoning:
    """What a request asks of thoughts: by its budget in tokens, else by its effort where the template does not heed it.

    form: of the model; None: it is not known here. variables: of the chat template, which may turn the thought off.
    """
    if next((variables[name] for name in SWITCHES if name in variables), None) is False:
        return Reasoning(0)
    if budget is None and effort is not None and form is not None and not form.heeds_effort:
        budget = EFFORT_BUDGETS.get(effort)
    return Reasoning(budget)
