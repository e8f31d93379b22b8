"""What a request to `/v1/completions` or `/v1/chat/completions` asks for, read from its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from lmtool import constraint as constraints
from lmtool.errors import ConstraintError
from lmtool.openai_api import errors
from lmtool.openai_api.errors import ApiError
from lmtool.openai_api.members import Members
from lmtool.types import ChatMessage, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.types import Constraint, Prompt

MOST_CHOICES = 128
"""Answers to one request: prompts times `n`."""
_MOST_TOKENS = 2**31 - 1
_CHAT_TOP_LOGPROBS = 20
_TEXT_LOGPROBS = 20
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""What vLLM once called them, to what they are called in `structured_outputs`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, whichever of the two routes it came by."""

    model: str | None
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    n: int = 1
    """Answers for each prompt."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with an event that counts tokens."""
    logprobs: int | None = None
    """How many alternatives beside each token; None sends no logprobs at all."""
    echo: bool = False
    """Whether the prompt is part of the text (`/v1/completions` only)."""
    constraint: Constraint | None = None

    def seed(self, index: int) -> int | None:
        """The seed of an answer: those to one prompt must differ."""
        return None if self.sampling.seed is None else self.sampling.seed + index % self.n


def chat(body: Mapping[str, object]) -> Call:
    """A request to `/v1/chat/completions`. Raises `ApiError`."""
    members = Members(body)
    model, messages = members.text("model"), _messages(members)
    wanted, top = members.flag("logprobs"), members.integer("top_logprobs", 0, _CHAT_TOP_LOGPROBS)
    if top is not None and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    newer, older = (members.integer(name, 0, _MOST_TOKENS) for name in ("max_completion_tokens", "max_tokens"))
    limit = newer if newer is not None else older
    for name in ("tools", "functions"):
        if members.take(name):
            raise ApiError(400, f"{name} cannot be called here yet; ask for JSON by response_format", param=name)
    members.take("tool_choice")
    sampling = _sampling(members, _MOST_TOKENS if limit is None else limit, (top or 0) if wanted else None)
    call = _call(members, model, (messages,), sampling, (top or 0) if wanted else None)
    members.end()
    return call


def completion(body: Mapping[str, object]) -> Call:
    """A request to `/v1/completions`. Raises `ApiError`."""
    members = Members(body)
    model, prompts = members.text("model"), _prompts(members)
    logprobs, limit = members.integer("logprobs", 0, _TEXT_LOGPROBS), members.integer("max_tokens", 0, _MOST_TOKENS)
    if members.text("suffix"):
        raise ApiError(400, "suffix is for models that fill gaps, which none here does", param="suffix")
    sampling = _sampling(members, 16 if limit is None else limit, logprobs)
    call = _call(members, model, prompts, sampling, logprobs, echo=members.flag("echo"))
    members.end()
    if call.echo and call.stream:
        raise ApiError(400, "echo cannot be streamed", param="echo")
    return call


def _call(
    members: Members,
    model: str | None,
    prompts: tuple[Prompt, ...],
    sampling: SamplingParams,
    logprobs: int | None,
    *,
    echo: bool = False,
) -> Call:
    n = members.integer("n", 1, MOST_CHOICES) or 1
    best_of = members.integer("best_of", 1, MOST_CHOICES)
    if best_of not in {None, n}:
        raise ApiError(400, f"best_of is {best_of}; expected n, which is {n}", param="best_of")
    if n * len(prompts) > MOST_CHOICES:
        raise ApiError(400, f"{len(prompts)} prompts times n {n} is above {MOST_CHOICES}", param="n")
    stream, options = members.flag("stream"), members.inner("stream_options")
    if options is not None and not stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    include_usage = options is not None and options.flag("include_usage")
    if options is not None:
        options.end()
    return Call(model, prompts, sampling, n, stream, include_usage, logprobs, echo, _constraint(members))


def _sampling(members: Members, max_tokens: int, logprobs: int | None) -> SamplingParams:
    stop_ids = members.take("stop_token_ids")
    if stop_ids is not None and not _are_ids(stop_ids):
        raise members.wrong("stop_token_ids", stop_ids, "a list of token ids")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=members.number("temperature", 0, 2, 1.0),
        top_k=max(members.integer("top_k", -1, _MOST_TOKENS) or 0, 0),
        top_p=members.number("top_p", 0, 1, 1.0),
        min_p=members.number("min_p", 0, 1, 0.0),
        repetition_penalty=members.number("repetition_penalty", 0.01, 100, 1.0),
        presence_penalty=members.number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=members.number("frequency_penalty", -2, 2, 0.0),
        seed=members.integer("seed", -(2**63), 2**63 - 1),
        logit_bias=_bias(members),
        stop=members.texts("stop", 16),
        stop_token_ids=tuple(stop_ids or ()),
        min_tokens=members.integer("min_tokens", 0, _MOST_TOKENS) or 0,
        ignore_eos=members.flag("ignore_eos"),
        top_logprobs=logprobs or 0,
        logprobs_mode="raw",
    )


def _bias(members: Members) -> dict[int, float]:
    given = members.mapping("logit_bias")
    bias: dict[int, float] = {}
    for name, value in given.items():
        if not name.isdecimal() or isinstance(value, bool) or not isinstance(value, int | float):
            raise members.wrong("logit_bias", {name: value}, "token ids with numbers")
        bias[int(name)] = max(-100.0, min(100.0, float(value)))
    return bias


def _messages(members: Members) -> tuple[ChatMessage, ...]:
    given = members.take("messages")
    if not isinstance(given, list) or not given:
        raise members.wrong("messages", given, "a list of messages, each with role and content")
    return tuple(_message(members, index, one) for index, one in enumerate(given))


def _message(members: Members, index: int, given: object) -> ChatMessage:
    where = f"messages[{index}]"
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise members.wrong(where, given, "an object with role and content")
    content = given.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(parts) != len(content) or not all(isinstance(part, str) for part in parts):
            raise members.wrong(f"{where}.content", content, "text; images and sounds cannot be read here")
        content = "".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise members.wrong(f"{where}.content", content, "a text, or a list of text parts")
    return ChatMessage(given["role"], content)


def _prompts(members: Members) -> tuple[Prompt, ...]:
    given = members.take("prompt")
    if isinstance(given, str):
        return (given,)
    if _are_ids(given) and given:
        return (tuple(given),)
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        return tuple(given)
    if isinstance(given, list) and given and all(_are_ids(one) and one for one in given):
        return tuple(tuple(one) for one in given)
    raise members.wrong("prompt", given, "a text, a list of token ids, or a list of either")


def _are_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def _constraint(members: Members) -> Constraint | None:
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
    raise form.wrong("type", kind, "text, json_object or json_schema")
