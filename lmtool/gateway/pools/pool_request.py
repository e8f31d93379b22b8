"""What is asked of a pool, whichever route it came by, and how a member's own part of it differs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lmtool.core.chat_options import ChatOptions
from lmtool.core.errors import RequestError
from lmtool.core.reasoning import SWITCHES
from lmtool.core.sampling_parameters import DEFAULTS, wrong_value
from lmtool.core.types import ROLES, ChatMessage, ChatPrompt, GenerateRequest
from lmtool.protocol.providers.chat_request import (
    UNIFIED_PARAMETERS,
    ChatRequest,
    Thinking,
    checked_parameter,
    unified_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import Constraint, ScoreRequest
    from lmtool.gateway.pools.config import MemberConfig

_NEEDS_IDS = ("stop_token_ids", "min_tokens", "ignore_eos")
"""Parameters that say something of token ids; refused where they are set."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a caller has got of an answer that broke off."""

    text: str
    tokens: int
    """As far as they are known; no more than there were."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A conversation to continue, for whichever member is chosen."""

    chat: ChatRequest
    """With the parameters that the client has set."""
    constraint: Constraint | None = None
    """What the text must match; passed on to members whose API has constraints."""
    overrides: Mapping[str, tuple[ChatMessage, ...]] = field(default_factory=dict)
    """Messages in place of the conversation's, by the id or the model of a member."""
    prefill: Prefill | None = None
    """The beginning of the answer, where a member is to go on with it."""
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Variables of the chat template, for members that are our own models."""
    cache_salt: str = ""
    """Answers are kept for requests of the same one only."""

    def of(self, member: MemberConfig) -> ChatRequest:
        """The chat as this member gets it: its own messages, and its own values of parameters that are not set."""
        messages = self.overrides.get(member.id) or self.overrides.get(member.model or "") or self.chat.messages
        parameters = {**member.defaults, **self.chat.parameters}
        if self.prefill is None:
            return replace(self.chat, messages=messages, parameters=parameters)
        limit = parameters.get("maxTokens")
        if isinstance(limit, int):
            parameters["maxTokens"] = max(1, limit - self.prefill.tokens)
        return replace(self.chat, messages=messages, parameters=parameters, prefill=self.prefill.text)


def from_stream(request: GenerateRequest | ScoreRequest) -> PoolRequest:
    """What a stream of the model interface asks of a pool. Raises `RequestError` for what needs token ids."""
    if not isinstance(request, GenerateRequest):
        raise RequestError("a pool has no token ids, so it cannot SCORE", "ask a served model in its place")
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        kind = "a text to continue" if isinstance(prompt, str) else "token ids"
        raise RequestError(f"a pool takes messages, not {kind}", "send messages")
    for name, given in (("logits_processors", request.logits_processors), ("prefill_only", request.prefill_only)):
        if given:
            raise RequestError(f"a pool has no logits, so it cannot have {name}", f"leave {name} out")
    if request.logprob_token_ids:
        raise RequestError("a pool has no token ids, so it cannot have logprob_token_ids", "ask for top_logprobs")
    if request.generated:
        raise RequestError("a pool has no token ids, so it cannot have generated", "begin the stream again")
    if any(message.tokens is not None for message in prompt.messages):
        raise RequestError("a pool has no token ids, so a message cannot have tokens", "send its content")
    for number, message in enumerate(prompt.messages):
        if message.role not in ROLES:
            raise RequestError(wrong_value(f"messages[{number}].role", message.role, f"one of {', '.join(ROLES)}"))
    options = request.chat or _options(request)
    messages = (*prompt.messages, ChatMessage("assistant", prompt.prefill)) if prompt.prefill else prompt.messages
    chat = ChatRequest(
        messages,
        _parameters(request, options),
        prompt.tools,
        options.tool_choice,
        options.tool_name,
        options.parallel_tool_calls,
        logprobs=options.logprobs is not None,
        top_logprobs=options.logprobs or None,
        stream=options.stream,
        thinking=_thinking(request, prompt.chat_template_kwargs),
    )
    variables = prompt.chat_template_kwargs
    return PoolRequest(chat, request.constraint, chat_template_kwargs=variables, cache_salt=request.cache_salt)


def _thinking(request: GenerateRequest, variables: Mapping[str, object]) -> Thinking | None:
    """How much members are to think: by the budget, and by the variables of chat templates that say so.

    variables: those of this request.
    """
    enabled = next((bool(variables[name]) for name in SWITCHES if name in variables), None)
    budget = None if request.reasoning is None else request.reasoning.budget
    if budget == 0:
        enabled, budget = False, None
    effort = variables.get("reasoning_effort")
    thinking = Thinking(enabled, budget, effort if isinstance(effort, str) else None)
    return None if thinking == Thinking() else thinking


def _options(request: GenerateRequest) -> ChatOptions:
    """The options of a stream without any: LMTP's, whose limit and temperature hold by themselves."""
    sampling = request.sampling
    changed = {name for name, default in DEFAULTS.items() if getattr(sampling, name) != default}
    parameters = frozenset(changed - {"top_logprobs", "logprobs_mode"} | {"max_tokens", "temperature"})
    return ChatOptions(parameters, logprobs=sampling.top_logprobs if sampling.top_logprobs > 1 else None)


def _parameters(request: GenerateRequest, options: ChatOptions) -> dict[str, object]:
    """The parameters that the client has set, by unified name."""
    found: dict[str, object] = {}
    for name in sorted(options.parameters):
        value = getattr(request.sampling, name)
        if name in _NEEDS_IDS:
            if value != DEFAULTS[name]:
                raise RequestError(f"a pool has no token ids, so it cannot have {name}", f"leave {name} out")
        elif name == "logit_bias":
            found["logitBias"] = {str(token): bias for token, bias in value.items()}
        elif unified_name(name) in UNIFIED_PARAMETERS:
            found[unified_name(name)] = checked_parameter(unified_name(name), value)
        else:
            found[name] = value
    return found


def response_format(constraint: Constraint) -> Mapping[str, object] | None:
    """The constraint in the terms of chat APIs; None for one that they have no word for."""
    if constraint.kind != "json_schema":
        return None
    schema = json.loads(constraint.text)
    if schema == {"type": "object"}:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": constraint.strict},
    }
