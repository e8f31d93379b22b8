"""What a chat asks of a model that gives text and no token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a client asks of a model that gives text and no ids, in the terms of chat APIs."""

    parameters: frozenset[str] = frozenset()
    """Fields of `SamplingParams` that the client has set; for the others the model has defaults of its own."""
    tool_choice: Literal["auto", "required", "named"] | None = None
    """True if one of the prompt's tools may or must be called; None: the model's default."""
    tool_name: str | None = None
    """The tool that must be called, under `named`."""
    parallel_tool_calls: bool | None = None
    """True if one answer may have several calls; None: the model's default."""
    logprobs: int | None = None
    """Alternatives beside each token; None: no logprobs."""
    stream: bool = True
    """True if the client reads pieces as they come; a whole answer is asked for as one."""
