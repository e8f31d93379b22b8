"""What a request says of thoughts: whether the model is to think, how long, and whether the answer shows it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from lmtool.core.reasoning import EFFORTS, Reasoning, requested_reasoning, template_variables
from lmtool.protocol.http.decoding import MAX_TOKENS, Count, Part, refuse, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import ModelInfo

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
    effort_name: str = "reasoning_effort"
    """Of the parameter."""
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
        effort_name: str = "reasoning_effort",
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
        return cls(enabled, budget, effort, effort_name, not hidden, "thinking" if enabled else "")

    def variables(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of the chat template with these options in them. requested: those that prevail."""
        return {**template_variables(self.effort, enabled=self.enabled), **requested}

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
        if self.enabled is False:
            return Reasoning(0)
        if form is not None and not form.heeds_effort and self.effort not in {None, *EFFORTS}:
            raise wrong(self.effort_name, self.effort, _one_of_efforts(self.effort))
        return requested_reasoning(form, variables, self.budget, self.effort)


def _one_of_efforts(effort: str | None) -> str:
    near = difflib.get_close_matches(effort or "", EFFORTS, n=1)
    return f"one of {', '.join(EFFORTS)}" + (f"; did you mean {near[0]}?" if near else "")
