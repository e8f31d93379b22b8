"""What a request of each API has for how much a model is to think before its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.reasoning import SWITCHES
from lmtool.core.signed_message import signed_thoughts
from lmtool.protocol.providers.json_values import count_of, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.protocol.providers.chat_request import ChatRequest, Thinking

_LEAST_BUDGET = 1024
"""Of Anthropic's API."""
_ANTHROPIC_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})
_OLLAMA_LEVELS = frozenset({"low", "medium", "high"})


def write_openai(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """OpenAI's API has a word for it, which models that do not think refuse, and no number."""
    effort = "none" if thinking.enabled is False else thinking.effort
    return {} if effort is None else {"reasoning_effort": effort}


def write_compatible(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Servers that follow OpenAI's API: vLLM's parameters, which others ignore, and the variables of chat templates."""
    own: dict[str, object] = {}
    if thinking.effort is not None and thinking.enabled is not False:
        own["reasoning_effort"] = thinking.effort
    if thinking.budget is not None:
        own["thinking_token_budget"] = thinking.budget
    if thinking.enabled is not None:
        own["chat_template_kwargs"] = dict.fromkeys(SWITCHES, thinking.enabled)
    return own


def write_anthropic(thinking: Thinking, chat: ChatRequest, body: Mapping[str, object]) -> dict[str, object]:
    """Anthropic's API thinks where that is asked for; an effort alone is not told, as only some models take one.

    Nor is anything behind calls whose thought, which it wants to have back, came without its signature, or a prefill.
    """
    if thinking.enabled is False:
        return {"thinking": {"type": "disabled"}} if "thinking" in body else {}
    if not thinking.enabled or chat.prefill or _follows_unsigned_calls(chat):
        return {}
    own: dict[str, object] = {}
    if thinking.effort in _ANTHROPIC_EFFORTS:
        own["output_config"] = {**object_of(body.get("output_config")), "effort": thinking.effort}
    if thinking.budget is None:
        return {**own, "thinking": {"type": "adaptive"}}
    limit, budget = count_of(body.get("max_tokens")) or 0, max(thinking.budget, _LEAST_BUDGET)
    if "maxTokens" not in chat.parameters:  # the limit is ours, of an answer without a thought
        limit += budget
    budget = min(budget, limit - 1)
    if budget < _LEAST_BUDGET:
        return {}
    return {**own, "max_tokens": limit, "thinking": {"type": "enabled", "budget_tokens": budget}}


def _follows_unsigned_calls(chat: ChatRequest) -> bool:
    """Whether the last turns are results of calls, and the turn that made these has no signed thought."""
    if chat.messages[-1].role != "tool":
        return False
    calling = next((one for one in reversed(chat.messages) if one.role == "assistant"), None)
    return calling is None or not signed_thoughts(calling)


def write_cohere(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Cohere's API, version 2, has a switch and a number."""
    if thinking.enabled is None:
        return {}
    if not thinking.enabled:
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"} | ({} if thinking.budget is None else {"token_budget": thinking.budget})}


def write_ollama(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Ollama's API has a switch, which models that do not think refuse where it is on, and levels for some."""
    if thinking.enabled is None:
        return {}
    return {"think": thinking.effort if thinking.enabled and thinking.effort in _OLLAMA_LEVELS else thinking.enabled}
