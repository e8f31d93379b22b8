"""What a request says of thoughts: whether the model is to think, how long, and whether the answer shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from lmtool.http_api.decoding import MAX_TOKENS, Count, Part, refuse
from lmtool.reasoning import Reasoning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.types import ModelInfo

EFFORT_BUDGETS = {"none": 0, "minimal": 128, "low": 1024, "medium": 2048}
"""Tokens of a thought by `reasoning_effort`, where the chat template does not tell the model; others: any number."""
SWITCHES = ("enable_thinking", "thinking")
"""What chat templates call the variable that turns thinking on and off: Qwen's and GLM's; DeepSeek's and Granite's."""

Budget = Annotated[int, Meta(ge=-1, le=MAX_TOKENS, description="a whole number from 0, or -1 for no limit")]
Effort = Annotated[str, Meta(max_length=64)]


class Thinking(Part):
    """Whether to think, as Anthropic's API has it, and after it others."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive", "auto"], Meta(description="enabled, disabled or adaptive")
    ]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted", "full"] | None = None


@dataclass(frozen=True, slots=True)
class ThoughtOptions:
    """What a request says of thoughts."""

    enabled: bool | None = None
    """None: as the model does by itself."""
    budget: int | None = None
    """Most tokens of the thought; None: as the effort says."""
    effort: str | None = None
    visible: bool = True
    """Whether the answer has the thought."""
    demanded_by: str = ""
    """The parameter that a model which does not think cannot serve; empty: there is none."""

    @classmethod
    def of(
        cls,
        thinking: Thinking | None = None,
        budget: int | None = None,
        effort: str | None = None,
        *,
        visible: bool | None = None,
    ) -> ThoughtOptions:
        """The options of these parameters. budget: `thinking_token_budget`. Raises `ApiError`."""
        kind = None if thinking is None else thinking.type
        enabled = {"enabled": True, "disabled": False}.get(kind or "")
        given = None if thinking is None else thinking.budget_tokens
        if given is not None and budget is not None and given != budget:
            refuse("thinking_token_budget", "thinking_token_budget and thinking.budget_tokens differ; send one of them")
        budget = given if budget is None or budget < 0 else budget
        hidden = visible is False or (thinking is not None and thinking.display == "omitted")
        if effort == "none" and enabled is None:
            enabled = False
        return cls(enabled, budget, effort, not hidden, "thinking" if enabled else "")

    def variables(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of the chat template with these options in them. requested: those that prevail."""
        own: dict[str, Any] = {} if self.effort is None else {"reasoning_effort": self.effort}
        if self.enabled is not None:
            own |= dict.fromkeys(SWITCHES, self.enabled)
        return {**own, **requested}

    def reasoning(self, info: ModelInfo, variables: Mapping[str, object]) -> Reasoning | None:
        """What the model is asked for. variables: of the chat template. Raises `ApiError`.

        None for a model that does not think before it answers.
        """
        form = info.reasoning
        if form is None and not info.text_only:
            if self.demanded_by:
                sentence = f"{info.model} does not think before it answers, or not in a way that is known here"
                refuse(self.demanded_by, f"{self.demanded_by} is enabled, but {sentence}; expected disabled")
            return None
        switched = next((variables[name] for name in SWITCHES if name in variables), None)
        if switched is False or self.enabled is False:
            return Reasoning(0)
        if self.budget is not None or self.effort is None or (form is not None and form.heeds_effort):
            return Reasoning(self.budget)
        return Reasoning(EFFORT_BUDGETS.get(self.effort))
