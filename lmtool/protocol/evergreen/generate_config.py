"""`lmtool.protocol.evergreen.GenerateConfig`: what GENERATE takes beside its prompt, as a message of fixed types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.protocol.evergreen.messages import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

_STRUCT = "google.protobuf.Struct"


@dataclass(frozen=True, slots=True)
class GenerateConfig:
    """OpenAI's names, as in a `google.protobuf.Struct`; what is absent has GENERATE's default."""

    max_tokens: int | None = wire(1, "int32", optional=True)
    temperature: float | None = wire(2, "double", optional=True)
    top_k: int | None = wire(3, "int32", optional=True)
    top_p: float | None = wire(4, "double", optional=True)
    min_p: float | None = wire(5, "double", optional=True)
    repetition_penalty: float | None = wire(6, "double", optional=True)
    presence_penalty: float | None = wire(7, "double", optional=True)
    frequency_penalty: float | None = wire(8, "double", optional=True)
    seed: int | None = wire(9, "int64", optional=True)
    logit_bias: Mapping[str, float] | None = wire(10, "message", message=_STRUCT)
    """Token ids, as texts, and nats."""
    stop: tuple[str, ...] = wire(11, "string", repeated=True)
    stop_token_ids: tuple[int, ...] = wire(12, "int32", repeated=True)
    min_tokens: int | None = wire(13, "int32", optional=True)
    ignore_eos: bool | None = wire(14, "bool", optional=True)
    top_logprobs: int | None = wire(15, "int32", optional=True)
    logprobs_mode: str | None = wire(16, "string", optional=True)
    priority: int | None = wire(17, "int32", optional=True)
    constraint: Mapping[str, object] | None = wire(18, "message", message=_STRUCT)
    """As LMTP's field of this name."""
    response_format: Mapping[str, object] | None = wire(19, "message", message=_STRUCT)
    structured_outputs: Mapping[str, object] | None = wire(20, "message", message=_STRUCT)
    chat_template_kwargs: Mapping[str, object] | None = wire(21, "message", message=_STRUCT)
    deadline: float | None = wire(22, "double", optional=True)
    """Seconds."""
    thinking_token_budget: int | None = wire(23, "int32", optional=True)
    reasoning_effort: str | None = wire(24, "string", optional=True)
