"""What a request to `/v1/responses` asks for, read from its JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lmtool.http_api import requests
from lmtool.http_api.errors import ApiError
from lmtool.http_api.members import MOST_MEMBER_BYTES, Members
from lmtool.http_api.responses.items import turns_of
from lmtool.http_api.tools.definitions import MOST_TOOLS, read_choice, read_tool
from lmtool.types import ChatMessage, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.prompt_limits import PromptLimits
    from lmtool.types import Constraint

_LOGPROBS = "message.output_text.logprobs"
_INCLUDE = frozenset({_LOGPROBS, "reasoning.encrypted_content"})


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    call: requests.Call
    turns: tuple[ChatMessage, ...]
    """The conversation up to here, without instructions: what a later request goes on from."""
    items: str
    """What this request added, as it was sent: JSON, which a million parts make no slower to hand on."""
    store: bool
    told: Mapping[str, Any]
    """Members of the request that its answer repeats."""
    previous: str | None = None
    """The id of the answer that this one goes on from."""

    @property
    def model(self) -> str | None:
        """The model's name."""
        return self.call.model

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for a conversation that cannot fit."""
        self.call.check(limits)

    def behind(self, turns: tuple[ChatMessage, ...]) -> Ask:
        """The request as it is once its conversation goes on from these turns."""
        [prompt] = self.call.prompts
        system = len(prompt) - len(self.turns)
        call = replace(self.call, prompts=((*prompt[:system], *turns, *self.turns),))
        return replace(self, call=call, turns=(*turns, *self.turns))


def read(body: Mapping[str, object], most_logprobs: int = requests.MOST_LOGPROBS) -> Ask:
    """Read a request. Raises `ApiError`. What it goes on from is not looked for, see `Ask.behind`."""
    members = Members(body)
    model, items = members.text("model"), _items(members)
    previous, instructions = members.text("previous_response_id"), members.text("instructions")
    turns = turns_of(members, items)
    for name in ("background", "conversation", "prompt", "max_tool_calls"):
        if members.take(name):
            raise ApiError(400, f"{name} is not supported here; send the conversation as input", param=name)
    sampling, logprobs = _sampling(members, most_logprobs)
    tools = [_tool(given) for given in members.objects("tools", MOST_TOOLS, most_bytes=MOST_MEMBER_BYTES)]
    choice, parallel = body.get("tool_choice"), body.get("parallel_tool_calls")
    members.check_size("tool_choice", choice)
    use = read_choice(members, tools)
    form, constraint = _form(members)
    stream, keep = members.flag("stream"), members.flag("store", default=True)
    _ignored(members)
    told = {
        "instructions": instructions,
        "max_output_tokens": None if sampling.max_tokens == requests.MOST_TOKENS else sampling.max_tokens,
        "metadata": members.mapping("metadata"),
        "parallel_tool_calls": parallel is not False,
        "previous_response_id": previous,
        "store": keep,
        "temperature": sampling.temperature,
        "text": {"format": form},
        "tool_choice": choice or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": logprobs or 0,
        "top_p": sampling.top_p,
        "user": members.text("user"),
    }
    system = () if instructions is None else (ChatMessage("system", instructions),)
    call = requests.Call(model, ((*system, *turns),), sampling, stream=stream, logprobs=logprobs, constraint=constraint)
    members.end()
    return Ask(replace(call, **requests.held_by_tools(call, use)), turns, json.dumps(items), keep, told, previous)


def _items(members: Members) -> list[dict[str, Any]]:
    given = members.take("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not given or not all(isinstance(item, dict) for item in given):
        raise members.wrong("input", given, "a text, or a list of items")
    return given


def _sampling(members: Members, most_logprobs: int) -> tuple[SamplingParams, int | None]:
    """The sampling parameters, and how many alternatives are wanted beside each token: None for no logprobs."""
    include = members.take("include") or []
    if not isinstance(include, list) or not _INCLUDE.issuperset(one for one in include if isinstance(one, str)):
        raise members.wrong("include", include, f"a list of {_LOGPROBS}; nothing else is known here")
    top = members.integer("top_logprobs", 0, most_logprobs)
    wanted = (top or 0) if _LOGPROBS in include or top else None
    limit = members.integer("max_output_tokens", 1, requests.MOST_TOKENS)
    return requests.sampling_of(members, requests.MOST_TOKENS if limit is None else limit, wanted), wanted


def _ignored(members: Members) -> None:
    """Read what asks for nothing that an answer here could lack."""
    truncation = members.text("truncation")
    if truncation not in {None, "disabled"}:
        raise members.wrong("truncation", truncation, "disabled: what does not fit into the context is refused")
    reasoning = members.mapping("reasoning")
    if reasoning.get("effort") not in {None, "none", "minimal"}:
        raise members.wrong("reasoning", reasoning, "nothing: the models here do not reason apart from their answer")
    if (options := members.inner("stream_options")) is not None:
        options.flag("include_obfuscation")
        options.end()


def _tool(given: Members) -> Any:  # noqa: ANN401  # a Tool
    kind = given.text("type")
    if kind != "function":
        raise given.wrong("type", kind, "function; others run at OpenAI only")
    return read_tool(given)


def _form(members: Members) -> tuple[dict[str, Any], Constraint | None]:
    """The form of the text, as it is repeated, and the constraint to it."""
    text = members.inner("text")
    if text is None:
        return {"type": "text"}, None
    text.text("verbosity")
    given = text.mapping("format")
    text.end()
    chat_form = given
    if given.get("type") == "json_schema":  # what chat completions keep in an object of its own
        named = {name: value for name, value in given.items() if name != "type"}
        chat_form = {"type": "json_schema", "json_schema": named}
    try:
        return given or {"type": "text"}, requests.constraint_of(Members({"response_format": chat_form or None}))
    except ApiError as error:
        for chat in ("response_format.json_schema", "response_format"):
            error.message = error.message.replace(chat, "text.format")
            error.param = (error.param or "").replace(chat, "text.format")
        raise
