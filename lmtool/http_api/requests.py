"""What a request to `/v1/completions` or `/v1/chat/completions` asks for, read from its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from lmtool import constraint as constraints
from lmtool import logits_processors
from lmtool.errors import ConstraintError, RequestError
from lmtool.http_api import conversation, errors
from lmtool.http_api.errors import ApiError
from lmtool.http_api.members import Members
from lmtool.http_api.tools.definitions import chat_tools
from lmtool.logit_bias import pack_bias
from lmtool.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.http_api.tools.definitions import ToolUse
    from lmtool.prompt_limits import PromptLimits
    from lmtool.types import Constraint, NamedProcessor, Prompt

MOST_CHOICES = 128
"""Answers to one request: prompts times `n`."""
MOST_TOKENS = 2**31 - 1
"""In place of no limit: the context ends the answer."""
MOST_LOGPROBS = 20
"""Alternatives beside a token where the server says nothing else."""
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""What vLLM once called them, to what they are called in `structured_outputs`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, whichever route it came by."""

    model: str | None
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    n: int = 1
    """Answers for each prompt."""
    best_of: int | None = None
    """Answers to choose the `n` best from; None: no choice."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with an event that counts tokens."""
    continuous_usage: bool = False
    """Whether each event of a stream counts the tokens so far."""
    logprobs: int | None = None
    """How many alternatives beside each token; None sends no logprobs at all."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, in vLLM's form."""
    echo: bool = False
    """Whether the prompt is part of the text (`/v1/completions` only)."""
    constraint: Constraint | None = None
    tools: ToolUse | None = None
    """What may be called, or must be."""
    template_options: Mapping[str, object] = field(default_factory=dict)
    """What the chat template is told beside messages and tools."""
    prefill: str | None = None
    """What the assistant's answer has begun with already: text behind the chat template's."""
    priority: int = 0
    logits_processors: tuple[NamedProcessor, ...] = ()

    @property
    def width(self) -> int:
        """Answers that are generated for each prompt."""
        return self.best_of or self.n

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for a prompt that cannot fit."""
        for prompt in self.prompts:
            limits.check_prompt(prompt)
        if self.prefill is not None:
            limits.check_text(self.prefill)

    def seed(self, index: int) -> int | None:
        """The seed of an answer: those to one prompt must differ."""
        return None if self.sampling.seed is None else self.sampling.seed + index % self.width


def chat(body: Mapping[str, object], most_logprobs: int = MOST_LOGPROBS) -> Call:
    """A request to `/v1/chat/completions`. Raises `ApiError`."""
    members = Members(body)
    model, messages = members.text("model"), conversation.messages(members)
    wanted, top = members.flag("logprobs"), members.integer("top_logprobs", 0, most_logprobs)
    if top is not None and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    newer, older = (members.integer(name, 1, MOST_TOKENS) for name in ("max_completion_tokens", "max_tokens"))
    limit = newer if newer is not None else older
    for name in ("functions", "function_call"):
        if members.take(name):
            raise ApiError(400, f"{name} is OpenAI's older form; send tools and tool_choice", param=name)
    modalities = members.take("modalities")
    if modalities not in (None, ["text"]):
        raise members.wrong("modalities", modalities, '["text"]; sounds cannot be made here')
    sampling = sampling_of(members, MOST_TOKENS if limit is None else limit, (top or 0) if wanted else None)
    call = _call(members, model, (messages,), sampling, ((top or 0) if wanted else None, most_logprobs))
    call = replace(
        call, template_options=members.mapping("chat_template_kwargs"), **held_by_tools(call, chat_tools(members))
    )
    members.end()
    return call


def held_by_tools(call: Call, tools: ToolUse | None) -> dict[str, Any]:
    """What tools change in a call: one that must be made leaves no room for a form of the text. Raises `ApiError`."""
    if tools is None:
        return {}
    return {"tools": tools, "constraint": tools.constraint() or call.constraint}


def completion(body: Mapping[str, object], most_logprobs: int = MOST_LOGPROBS) -> Call:
    """A request to `/v1/completions`. Raises `ApiError`."""
    members = Members(body)
    model, prompts = members.text("model"), _prompts(members)
    logprobs, limit = members.integer("logprobs", 0, most_logprobs), members.integer("max_tokens", 0, MOST_TOKENS)
    if members.text("suffix"):
        raise ApiError(400, "suffix is for models that fill gaps, which none here does", param="suffix")
    sampling = sampling_of(members, 16 if limit is None else limit, logprobs)
    call = _call(members, model, prompts, sampling, (logprobs, most_logprobs), echo=members.flag("echo"))
    members.end()
    return call


def _call(
    members: Members,
    model: str | None,
    prompts: tuple[Prompt, ...],
    sampling: SamplingParams,
    logprobs: tuple[int | None, int],
    *,
    echo: bool = False,
) -> Call:
    """What all routes share. logprobs: alternatives that are wanted beside each token, and the most there may be."""
    n = members.integer("n", 1, MOST_CHOICES) or 1
    best_of = members.integer("best_of", 1, MOST_CHOICES)
    if best_of is not None and best_of < n:
        raise ApiError(400, f"best_of is {best_of}; expected n, which is {n}, or more", param="best_of")
    if (best_of or n) * len(prompts) > MOST_CHOICES:
        param = "n" if best_of is None else "best_of"
        raise ApiError(400, f"{len(prompts)} prompts times {best_of or n} is above {MOST_CHOICES}", param=param)
    stream, options = members.flag("stream"), members.inner("stream_options")
    if options is not None and not stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    usage = options.flag("include_usage") if options is not None else False
    continuous = options.flag("continuous_usage_stats") if options is not None else False
    if options is not None:
        options.flag("include_obfuscation")  # for those who fear that a stream's rhythm tells its words
        options.end()
    if stream and best_of not in {None, n}:
        raise ApiError(400, "best_of cannot be streamed: which answer is best is known at the end", param="best_of")
    shown = members.integer("prompt_logprobs", 0, logprobs[1])
    if stream and shown is not None:
        raise ApiError(400, "prompt_logprobs cannot be streamed", param="prompt_logprobs")
    chosen = best_of if best_of != n else None
    return Call(
        model,
        prompts,
        sampling if chosen is None else replace(sampling, logprobs_mode="raw"),
        n,
        chosen,
        stream,
        usage or continuous,
        continuous,
        logprobs[0],
        shown,
        echo,
        constraint_of(members),
        priority=members.integer("priority", -(2**31), 2**31) or 0,
        logits_processors=processors_of(members),
    )


def sampling_of(members: Members, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """Read how tokens are picked. Raises `ApiError`.

    logprobs: alternatives beside each token. Without any, ids that a constraint forces need not wait for the model's
    own numbers.
    """
    stop_ids = members.take("stop_token_ids")
    if stop_ids is not None and not are_ids(stop_ids):
        raise members.wrong("stop_token_ids", stop_ids, "a list of token ids")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=members.number("temperature", 0, 2, 1.0),
        top_k=max(members.integer("top_k", -1, MOST_TOKENS) or 0, 0),
        top_p=members.number("top_p", 0, 1, 1.0),
        min_p=members.number("min_p", 0, 1, 0.0),
        repetition_penalty=members.number("repetition_penalty", 0.01, 100, 1.0),
        presence_penalty=members.number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=members.number("frequency_penalty", -2, 2, 0.0),
        seed=members.integer("seed", -(2**63), 2**63 - 1),
        logit_bias=_bias(members),
        stop=members.texts("stop", 16),
        stop_token_ids=tuple(stop_ids or ()),
        min_tokens=members.integer("min_tokens", 0, MOST_TOKENS) or 0,
        ignore_eos=members.flag("ignore_eos"),
        top_logprobs=logprobs or 0,
        logprobs_mode="biased" if logprobs is None else "raw",
    )


def _bias(members: Members) -> Mapping[int, float]:
    given = members.mapping("logit_bias", most_bytes=None)
    # By what works on all at once: a mask may name each id of a vocabulary.
    if not all(map(str.isdecimal, given)) or not set(map(type, given.values())) <= {int, float}:
        name, value = next(one for one in given.items() if not one[0].isdecimal() or type(one[1]) not in {int, float})
        raise members.wrong("logit_bias", {name: value}, "token ids with numbers")
    numbers = [float(max(-100, min(100, value))) for value in given.values()]  # type: ignore[call-overload]
    bias = dict(zip(map(int, given), numbers, strict=True))
    return pack_bias(bias, msgspec.json.encode(bias))


def _prompts(members: Members) -> tuple[Prompt, ...]:
    given = members.take("prompt")
    if isinstance(given, str):
        return (given,)
    if are_ids(given) and given:
        return (tuple(given),)
    if isinstance(given, list) and len(given) > MOST_CHOICES:
        raise ApiError(400, f"{len(given)} prompts; expected at most {MOST_CHOICES}", param="prompt")
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        return tuple(given)
    if isinstance(given, list) and given and all(are_ids(one) and one for one in given):
        return tuple(tuple(one) for one in given)
    raise members.wrong("prompt", given, "a text, a list of token ids, or a list of either")


def are_ids(value: object) -> TypeGuard[list[int]]:
    """Whether a value is a list of whole numbers."""
    return isinstance(value, list) and set(map(type, value)) <= {int}


def processors_of(members: Members) -> tuple[NamedProcessor, ...]:
    """The logits processors that a request names. Raises `ApiError`."""
    given = members.take("logits_processors")
    try:
        return () if given is None else logits_processors.processors_from(given)
    except RequestError as error:
        raise errors.of(error, "logits_processors") from error


def constraint_of(members: Members) -> Constraint | None:
    """The one constraint of a request, whichever of its spellings is used."""
    found: dict[str, object] = {}
    structured = members.take("structured_outputs")
    if structured is not None:
        found["structured_outputs"] = structured
    found |= {name: {kind: value} for name, kind in _GUIDED.items() if (value := members.take(name)) is not None}
    form = members.inner("response_format")
    if form is not None and (held := _form(form)) is not None:
        found["response_format"] = held
    if len(found) > 1:
        names = " and ".join(found)
        raise ApiError(400, f"{names} contradict each other; give one of them", param=list(found)[1])
    try:
        return next((constraints.constraint_from(value, where=name) for name, value in found.items()), None)
    except ConstraintError as error:
        raise errors.of(error, next(iter(found))) from error


def _form(form: Members) -> dict[str, object] | None:
    kind = form.text("type")
    if kind == "text":
        form.end()
        return None
    if kind == "json_object":
        form.end()
        return {"json_object": True}
    if kind == "json_schema":
        named = form.inner("json_schema")
        if named is None:
            raise form.wrong("json_schema", None, "an object with name and schema")
        named.text("name")
        named.text("description")
        strict, schema = named.flag("strict"), named.take("schema")
        named.end()
        form.end()
        return {"json": {} if schema is None else schema, "strict": strict}
    if kind == "structural_tag":
        given, own = form.take("format"), {name: form.take(name) for name in ("structures", "triggers")}
        form.end()
        return {"structural_tag": own if given is None else {"format": given}}
    raise form.wrong("type", kind, "text, json_object, json_schema or structural_tag")
