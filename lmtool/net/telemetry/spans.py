"""Spans of requests, by OpenTelemetry's conventions for GenAI; no span has a prompt, a text or a key.

Names and attributes: opentelemetry.io, "Semantic conventions for generative AI client inference". What carries them is
a plug, so that nothing of OpenTelemetry is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from lmtool.core.types import ChatPrompt, GenerateRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.types import ScoreRequest, Usage
    from lmtool.net.telemetry.trace_context import TraceContext

Value: TypeAlias = "str | int | float | bool | Sequence[str]"
Kind: TypeAlias = Literal["server", "client"]

PROVIDERS = {"azureopenai": "azure.ai.openai", "lmtp": "lmtool", "local": "lmtool"}
"""Those of a gateway's members that the conventions name otherwise, or that are lmtool itself."""
OWN = "lmtool"
"""The provider of models that are served by lmtool itself."""


class Span(Protocol):
    """One operation in a trace, from `Tracer.begin` to `end`."""

    @property
    def trace(self) -> TraceContext:
        """Its place in the trace, for the operations below it."""

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes."""

    def end(self, error_type: str | None = None) -> None:
        """It is over. error_type: the kind of the error that it ended with."""


class Tracer(Protocol):
    """Begins spans."""

    def begin(self, name: str, kind: Kind, attributes: Mapping[str, Value], parent: TraceContext | None) -> Span:
        """A span that begins now. parent: the operation that it is part of; None: it begins a trace."""

    def close(self) -> None:
        """Send what has not been sent. May block for some seconds."""


def operation_of(request: GenerateRequest | ScoreRequest) -> str:
    """The operation's name; `score` is none of the conventions', which allow others."""
    if not isinstance(request, GenerateRequest):
        return "score"
    return "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"


def request_attributes(request: GenerateRequest | ScoreRequest) -> dict[str, Value]:
    """How a stream was asked for: numbers alone, no stop texts and nothing of its prompt."""
    if not isinstance(request, GenerateRequest):
        return {}
    sampling = request.sampling
    found: dict[str, Value] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    if sampling.top_k:
        found["gen_ai.request.top_k"] = sampling.top_k
    if sampling.seed is not None and abs(sampling.seed) < 2**63:  # an attribute has 64 bits
        found["gen_ai.request.seed"] = sampling.seed
    return found


def usage_attributes(usage: Usage) -> dict[str, Value]:
    """The tokens of a request."""
    found: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
    return found | ({"gen_ai.usage.cache_read.input_tokens": usage.cached_tokens} if usage.cached_tokens else {})
