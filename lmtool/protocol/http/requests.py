"""Parsed requests of all routes that generate text, and the fields these routes share."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

import msgspec
from msgspec import Meta

from lmtool.core import constraint as constraints
from lmtool.core.chat_options import ChatOptions
from lmtool.core.errors import ConstraintError
from lmtool.core.logit_bias import pack_bias
from lmtool.core.reasoning import EFFORTS, Reasoning, requested_reasoning, template_variables
from lmtool.core.sampling_parameters import DEADLINE, DEFAULTS, NUMERIC_PARAMETERS
from lmtool.core.types import ChatPrompt, SamplingParams
from lmtool.protocol.http import errors
from lmtool.protocol.http.decoding import MAX_TOKENS, Body, Count, Fields, Part, refuse, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.prompt_limits import PromptLimits
    from lmtool.core.types import Constraint, ModelInfo, NamedProcessor, Prompt
    from lmtool.protocol.http.tools.definitions import ToolUse


Budget = Annotated[int, Meta(ge=-1, le=MAX_TOKENS, description="a whole number from 0, or -1 for no limit")]
Effort = Annotated[str, Meta(max_length=64)]


class Thinking(Part):
    """Field `thinking` of Anthropic's API, also used by others."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive", "auto"], Meta(description="enabled, disabled or adaptive")
    ]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted", "full"] | None = None


@dataclass(frozen=True, slots=True)
class ThoughtOptions:
    """Options of a request about thinking."""

    enabled: bool | None = None
    """True to think; None: the model's default."""
    budget: int | None = None
    """Most tokens of the thought; None: depends on `effort`."""
    effort: str | None = None
    effort_name: str = "reasoning_effort"
    """Name of the parameter that sets `effort`."""
    visible: bool = True
    """True if the answer contains the thought."""
    demanded_by: str = ""
    """Parameter that a model without thinking must reject; empty: none."""

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
        """Options from these parameters. budget: `thinking_token_budget`. Raises `ApiError`."""
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
        """Chat template variables for these options. requested: variables of the request, which take precedence."""
        return {**template_variables(self.effort, enabled=self.enabled), **requested}

    def reasoning(self, info: ModelInfo, variables: Mapping[str, object]) -> Reasoning | None:
        """Thinking limits for the model; None if it does not think. variables: of the chat template.

        Raises `ApiError` for options that the model cannot follow.
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
            near = difflib.get_close_matches(self.effort or "", EFFORTS, n=1)
            expected = f"one of {', '.join(EFFORTS)}" + (f"; did you mean {near[0]}?" if near else "")
            raise wrong(self.effort_name, self.effort, expected)
        return requested_reasoning(form, variables, self.budget, self.effort)


Deadline = Annotated[float, DEADLINE.meta]
"""Time limit in seconds; an extension of all APIs."""
CacheSalt = Annotated[str, Meta(min_length=1, max_length=256, description="a text of 1 to 256 characters")]
"""Compartment of the prefix cache; a field of every generating route."""
MAX_MESSAGES = 10_000
MAX_BAD_WORDS = 128
MAX_LOGPROB_IDS = 128
MAX_ALLOWED = 8192
"""Most entries of `allowed_token_ids`."""
MAX_LOGPROBS = 20
"""Default limit of alternatives per token."""

_StopText = Annotated[str, Meta(min_length=1)]
_RANGES = {name: parameter.openai.meta for name, parameter in NUMERIC_PARAMETERS.items()}
Stop = Annotated[
    _StopText | Annotated[list[_StopText], Meta(max_length=16)],
    Meta(description="a text, or up to 16 of them, none empty"),
]


@dataclass(frozen=True, slots=True)
class Call:
    """One parsed request of any route."""

    model: str | None
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    n: int = 1
    """Answers per prompt."""
    best_of: int | None = None
    """Answers to generate per prompt, of which the `n` best are returned; None: `n`."""
    stream: bool = False
    include_usage: bool = False
    """True if a stream ends with a usage event."""
    continuous_usage: bool = False
    """True if each event of a stream has the usage so far."""
    logprobs: int | None = None
    """Alternatives per token; None: no logprobs."""
    prompt_logprobs: int | None = None
    """Alternatives per prompt token, in vLLM's form; None: no logprobs."""
    echo: bool = False
    """True if the prompt is part of the text (`/v1/completions` only)."""
    constraint: Constraint | None = None
    tools: ToolUse | None = None
    """Tools that may or must be called."""
    priority: int = 0
    logits_processors: tuple[NamedProcessor, ...] = ()
    parameters: frozenset[str] = frozenset()
    """Fields of `sampling` that the client set."""
    deadline: float | None = None
    """Time limit in seconds from the request's arrival; None: no limit."""
    cache_salt: str = ""
    """Compartment of the prefix cache; empty: the shared one."""
    request_id: str = ""
    """Id of the answer, without its prefix; empty: a new id."""
    truncate: int | None = None
    """Number of last prompt tokens to keep; -1: as many as fit; None: all."""
    add_special_tokens: bool = True
    """True to add special tokens, such as BOS, to a text."""
    return_token_ids: bool = False
    """True if the answer contains the token ids of prompt and completion."""
    tokens_as_ids: bool = False
    """True if logprobs show token ids in place of texts."""
    include_stop: bool = False
    """True if the answer contains the stop string that ended it."""
    bad_words: tuple[str, ...] = ()
    """Texts that must not be generated."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only token ids that may be generated; empty: all."""
    logprob_token_ids: tuple[int, ...] = ()
    """Token ids to report as alternatives, in place of the most likely ones."""
    thoughts: ThoughtOptions | None = None
    """None if thoughts are not separated from the text."""
    thought_parameter: str = ""
    """Thinking parameter that cannot be served if thoughts are not separated; empty: none."""
    warnings: tuple[str, ...] = ()
    """Sentences about ignored parts of the request, for the answer and for the log."""

    @property
    def width(self) -> int:
        """Answers generated per prompt."""
        return self.best_of or self.n

    def with_defaults(self, defaults: Mapping[str, float]) -> Call:
        """The request with the model's defaults for parameters that the client did not set.

        The default of `max_tokens` applies only to routes without a limit of their own, as in vLLM.
        """
        given = self.parameters | ({"max_tokens"} if self.sampling.max_tokens != MAX_TOKENS else frozenset())
        added = {name: value for name, value in defaults.items() if name not in given}
        return replace(self, sampling=replace(self.sampling, **added)) if added else self  # type: ignore[arg-type] # fields of type float

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for a prompt that cannot fit."""
        for prompt in self.prompts:
            if self.truncate is None or isinstance(prompt, ChatPrompt):
                limits.check_prompt(prompt)

    def reasoning(self, info: ModelInfo) -> Reasoning | None:
        """Thinking limits for a model; None if it does not think. Raises `ApiError`."""
        if self.thoughts is None:
            name = self.thought_parameter
            if name and info.reasoning is not None:
                refuse(name, f"{name} is for answers apart from thoughts: send messages to /v1/chat/completions")
            return None
        prompt = self.prompts[0]
        return self.thoughts.reasoning(info, prompt.chat_template_kwargs if isinstance(prompt, ChatPrompt) else {})

    @property
    def needs_prompt_ids(self) -> bool:
        """True if the prompts must be tokenized before they are sent to the model."""
        return self.truncate is not None or self.return_token_ids or not self.add_special_tokens

    def without_ids(self) -> str | None:
        """First field of the request that a model without token ids cannot serve; None if there is none."""
        used = {
            "truncate_prompt_tokens": self.truncate is not None,
            "add_special_tokens": not self.add_special_tokens,
            "return_token_ids": self.return_token_ids,
            "return_tokens_as_token_ids": self.tokens_as_ids,
            "include_stop_str_in_output": self.include_stop,
            "bad_words": bool(self.bad_words),
            "allowed_token_ids": bool(self.allowed_token_ids),
            "logprob_token_ids": bool(self.logprob_token_ids),
        }
        return next((name for name, value in used.items() if value), None)

    def chat_options(self) -> ChatOptions:
        """Options for a model that takes chats in place of token ids."""
        options = ChatOptions(self.parameters, logprobs=self.logprobs, stream=self.stream)
        if (tools := self.tools) is None or tools.mode == "none":
            return options
        name = tools.tools[0].name if tools.mode == "named" else None
        parallel = None if tools.parallel else False
        return replace(options, tool_choice=tools.mode, tool_name=name, parallel_tool_calls=parallel)

    def seed(self, index: int) -> int | None:
        """Seed of the answer at this index; answers to one prompt get different seeds."""
        return None if self.sampling.seed is None else self.sampling.seed + index % self.width


def with_tools(call: Call, tools: ToolUse | None) -> Call:
    """The request with its tools; forced calls replace the constraint of the text. Raises `ApiError`."""
    if tools is None:
        return call
    [prompt] = call.prompts
    if isinstance(prompt, ChatPrompt):
        prompt = replace(prompt, tools=tuple(tool.template_entry for tool in tools.tools))
    return replace(call, prompts=(prompt,), tools=tools, constraint=tools.constraint() or call.constraint)


TokenIds = Annotated[list[Count], Meta(description="a list of token ids")]
_Truncation = Annotated[
    int, Meta(ge=-1, le=MAX_TOKENS, description="a whole number from 1, or -1 for as many tokens as leave room")
]


class SamplingFields(Body):
    """Sampling and logprob parameters of OpenAI and vLLM."""

    temperature: Annotated[float, _RANGES["temperature"]] | None = None
    top_k: Annotated[int, _RANGES["top_k"]] | None = None
    top_p: Annotated[float, _RANGES["top_p"]] | None = None
    min_p: Annotated[float, _RANGES["min_p"]] | None = None
    repetition_penalty: Annotated[float, _RANGES["repetition_penalty"]] | None = None
    presence_penalty: Annotated[float, _RANGES["presence_penalty"]] | None = None
    frequency_penalty: Annotated[float, _RANGES["frequency_penalty"]] | None = None
    seed: Annotated[int, _RANGES["seed"]] | None = None
    logit_bias: dict[str, Any] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=64, description="a list of at most 64 token ids")] | None = (
        None
    )
    min_tokens: Annotated[int, _RANGES["min_tokens"]] | None = None
    ignore_eos: bool | None = None
    bad_words: Annotated[list[_StopText], Meta(max_length=MAX_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[Count], Meta(min_length=1, max_length=MAX_ALLOWED)] | None = None
    logprob_token_ids: Annotated[list[Count], Meta(min_length=1, max_length=MAX_LOGPROB_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: _Truncation | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: (
        Annotated[str, Meta(min_length=1, max_length=128, description="a text of 1 to 128 characters")] | None
    ) = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    deadline: Deadline | None = None
    cache_salt: CacheSalt | None = None

    def alternatives(self, most_likely: int | None) -> int | None:
        """Alternatives per token, `logprob_token_ids` considered; None: no logprobs.

        most_likely: number requested by the route's own field. Raises `ApiError` for `logprob_token_ids` without it.
        """
        if self.logprob_token_ids is None:
            return most_likely
        if most_likely is None:
            refuse("logprob_token_ids", "logprob_token_ids needs logprobs")
        return len(self.logprob_token_ids) + 1  # plus the chosen token, if it is not among them

    def options(self) -> dict[str, Any]:
        """Fields of `Call` that these parameters set, by name. Raises `ApiError`."""
        if self.truncate_prompt_tokens == 0:
            raise wrong("truncate_prompt_tokens", 0, "a whole number from 1, or -1 for as many tokens as leave room")
        return {
            "priority": self.priority or 0,
            "deadline": self.deadline,
            "cache_salt": self.cache_salt or "",
            "request_id": self.request_id or "",
            "truncate": self.truncate_prompt_tokens,
            "return_token_ids": self.return_token_ids or False,
            "tokens_as_ids": self.return_tokens_as_token_ids or False,
            "include_stop": self.include_stop_str_in_output or False,
            "bad_words": tuple(self.bad_words or ()),
            "allowed_token_ids": tuple(self.allowed_token_ids or ()),
            "logprob_token_ids": tuple(self.logprob_token_ids or ()),
        }

    def sampling(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """Sampling parameters. Raises `ApiError`.

        logprobs: alternatives per token; None lets tokens that a constraint forces skip the model.
        """
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_or(self.temperature, 1.0),
            top_k=max(self.top_k or 0, 0),
            top_p=_or(self.top_p, 1.0),
            min_p=self.min_p or 0.0,
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            seed=self.seed,
            logit_bias=_bias(self.logit_bias or {}),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            min_tokens=self.min_tokens or 0,
            ignore_eos=self.ignore_eos or False,
            top_logprobs=logprobs or 0,
            logprobs_mode="biased" if logprobs is None else "raw",
        )


def set_parameters(request: Body) -> frozenset[str]:
    """The fields of `SamplingParams` that a request of any API has set."""
    spellings = {name: name for name in DEFAULTS} | _SPELLINGS
    given = {name for spelling, name in spellings.items() if getattr(request, spelling, None) is not None}
    return frozenset(given - {"top_logprobs", "logprobs_mode"})


_SPELLINGS = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
}
"""Other names of parameters, in one API or another."""


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _bias(given: Mapping[str, Any]) -> Mapping[int, float]:
    # By what works on all at once: a mask may name each id of a vocabulary.
    if not all(map(str.isdecimal, given)) or not set(map(type, given.values())) <= {int, float}:
        name, value = next(one for one in given.items() if not one[0].isdecimal() or type(one[1]) not in {int, float})
        raise wrong("logit_bias", {name: value}, "token ids with numbers")
    numbers = [float(max(-100, min(100, value))) for value in given.values()]
    bias = dict(zip(map(int, given), numbers, strict=True))
    return pack_bias(bias, msgspec.json.encode(bias))


def are_ids(value: object) -> TypeGuard[list[int]]:
    """True if a value is a list of whole numbers."""
    return isinstance(value, list) and set(map(type, value)) <= {int}


def prompt_ids(request: Body, instead_of: Sequence[str]) -> tuple[int, ...]:
    """Ids in a request's `prompt_token_ids`. instead_of: fields that it excludes. Raises `ApiError`."""
    ids: list[int] = getattr(request, "prompt_token_ids") or []  # noqa: B009  # a field of several routes
    for name in instead_of:
        if getattr(request, name) is not None:
            refuse(name, f"{name} has no meaning beside prompt_token_ids, which are the whole prompt; send one of them")
    if not ids:
        raise wrong("prompt_token_ids", [], "a list of at least one token id")
    return tuple(ids)


class JsonSchemaFormat(Fields):
    """A schema with its name, in OpenAI's form."""

    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(Fields):
    """Format of an answer's text."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema: Any = None
    """Schema for `json_object`, as in llama.cpp's server."""
    format: Any = None
    structures: Any = None
    triggers: Any = None

    def constraint(self) -> dict[str, object] | None:
        """The format as input of `constraint.constraint_from`; None for any text. Raises `ApiError`."""
        if self.type == "json_schema":
            needed = "response_format.json_schema"
            if self.json_schema is None:
                raise wrong(needed, None, "an object with name and schema")
            check_schema(self.json_schema.schema, f"{needed}.schema")
        return constraints.of_response_format(msgspec.to_builtins(self))


def check_schema(schema: object, param: str) -> None:
    """Raise `ApiError` for a missing schema, which would allow any JSON."""
    if schema is None:
        refuse(param, f'{param} is missing; expected a JSON Schema (for any JSON object send the type "json_object")')


def one_constraint(spellings: Mapping[str, object]) -> Constraint | None:
    """Constraint of a request. spellings: fields that define one; only one may be set. Raises `ApiError`."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(given) > 1:
        refuse(list(given)[1], f"{' and '.join(given)} contradict each other; give one of them")
    try:
        return next((constraints.constraint_from(value, where=name) for name, value in given.items()), None)
    except ConstraintError as error:
        raise errors.from_error(error, next(iter(given))) from error
