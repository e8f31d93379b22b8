"""Requests to `/v1/responses`, and the items that their input and output consist of."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from lmtool.core.reasoning import SignedThought, ThoughtSignature
from lmtool.core.signed_message import SignedMessage, signed_thoughts
from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.protocol.http import requests
from lmtool.protocol.http.decoding import (
    MAX_TOKENS,
    Count,
    Fields,
    Part,
    Positive,
    check_range,
    check_size,
    decode,
    refuse,
)
from lmtool.protocol.http.openai.requests import StreamOptions, text_of
from lmtool.protocol.http.requests import Budget, Effort, ThoughtOptions, TokenIds
from lmtool.protocol.http.tools.definitions import MAX_TOOLS, Function, choose_tools, without_foreign_tools
from lmtool.protocol.http.unsupported import RESPONSES, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.prompt_limits import PromptLimits
    from lmtool.core.types import Prompt


_TEXTS = ("input_text", "output_text", "text")
Content = str | list[Any]


class _Item(Part, tag_field="type"):
    """An item of a conversation."""

    id: str | None = None
    token_ids: TokenIds | None = None
    """The exact ids of the assistant's turn that begins with this item, in place of its text and calls."""


class MessageItem(_Item, tag="message", kw_only=True):
    """What somebody says."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(_Item, tag="function_call", kw_only=True):
    """A call of a tool."""

    call_id: str
    name: Annotated[str, Meta(min_length=1, description="the name of a tool")]
    arguments: str | None = None


class FunctionCallOutputItem(_Item, tag="function_call_output", kw_only=True):
    """What a tool answered."""

    output: Content | None = None
    call_id: str | None = None


class ReasoningItem(_Item, tag="reasoning"):
    """What an assistant thought before the item behind it; an encrypted thought cannot be read."""

    content: Any = None
    summary: Any = None
    encrypted_content: Any = None
    """What `encrypted` makes of a signature; others are not ours, and say nothing here."""

    @property
    def signed(self) -> SignedThought | None:
        """The thought as the API that has signed it wants to have it back."""
        given = self.encrypted_content if isinstance(self.encrypted_content, str) else ""
        kind, _, value = given.partition(":")
        if kind not in _SIGNED or not value:
            return None
        is_redacted = kind == _REDACTED
        return SignedThought("" if is_redacted else self.text, ThoughtSignature(value, is_redacted))

    @property
    def text(self) -> str:
        """The thought, or else what it comes to, as far as that is texts."""
        return _texts(self.content) or _texts(self.summary)


class ItemReference(_Item, tag="item_reference"):
    """An item of a stored response, by its id, which the server puts in its place before its turns are made."""


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ItemReference


class TurnThought(NamedTuple):
    """What an assistant thought before its turn, in one item or several."""

    text: str = ""
    signed: tuple[SignedThought, ...] = ()

    def behind(self, item: ReasoningItem) -> TurnThought:
        """This and what another item has."""
        signed = item.signed
        return TurnThought(self.text + item.text, self.signed if signed is None else (*self.signed, signed))


_PLAIN, _REDACTED = "thinking", "redacted_thinking"
_SIGNED = frozenset({_PLAIN, _REDACTED})


def encrypted(signature: ThoughtSignature) -> str:
    """The `encrypted_content` of an item: a signature, which the client sends back with the thought."""
    return f"{_REDACTED if signature.is_redacted else _PLAIN}:{signature.value}"


def turns_of(items: Sequence[Item]) -> tuple[ChatMessage, ...]:
    """The turns that these items make; calls belong to the assistant's turn before them. Raises `ApiError`."""
    turns: list[ChatMessage] = []
    thought = TurnThought()
    for at, item in enumerate(items):
        before, thought = thought, TurnThought()
        if isinstance(item, ReasoningItem):
            thought = before.behind(item)
            if item.token_ids is not None:  # of an answer that is nothing else
                turns.append(ChatMessage("assistant", "", tokens=_exact(item)))
        elif isinstance(item, MessageItem):
            role = "system" if item.role == "developer" else item.role
            text = text_of(item.content, _TEXTS, f"input[{at}].content")
            own = before if role == "assistant" else TurnThought()
            turn = ChatMessage(role, text, tokens=_exact(item), reasoning=own.text)
            turns.append(turn if turn.tokens is not None else SignedMessage.of(turn, own.signed))
        elif isinstance(item, FunctionCallItem):
            call = ToolCall(item.call_id, item.name, item.arguments or "{}")
            if item.token_ids is not None:
                turns.append(ChatMessage("assistant", "", tokens=_exact(item)))
            elif turns and turns[-1].tokens is not None:
                continue  # the ids of its turn have it
            elif turns and turns[-1].role == "assistant":
                said = turns[-1]
                turn = replace(said, tool_calls=(*said.tool_calls, call), reasoning=said.reasoning + before.text)
                turns[-1] = SignedMessage.of(turn, (*signed_thoughts(said), *before.signed))
            else:
                turn = ChatMessage("assistant", "", (call,), reasoning=before.text)
                turns.append(SignedMessage.of(turn, before.signed))
        elif isinstance(item, FunctionCallOutputItem):
            text = text_of(item.output or "", _TEXTS, f"input[{at}].output")
            turns.append(ChatMessage("tool", text, tool_call_id=item.call_id))
    return tuple(turns)


def _texts(parts: object) -> str:
    """The texts of parts that have one each."""
    found = (part.get("text") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return "\n".join(text for text in found if isinstance(text, str))


def _exact(item: _Item) -> tuple[int, ...] | None:
    return None if item.token_ids is None else tuple(item.token_ids)


def part(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    """The text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message(number: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """An assistant's message."""
    return {"id": number, "type": "message", "status": status, "role": "assistant", "content": content}


ThoughtKind: TypeAlias = Literal["reasoning_text", "summary_text"]
"""Which part of an item has a thought: its content, or its summary."""


def reasoning(number: str, status: str, text: str, kind: ThoughtKind) -> dict[str, Any]:
    """What the model thought, so far."""
    item = {"id": number, "type": "reasoning", "status": status, "summary": [], "content": []}
    return item | {_MEMBERS[kind]: [reasoning_part(text, kind)]} if text else item


_MEMBERS: Mapping[ThoughtKind, str] = {"reasoning_text": "content", "summary_text": "summary"}


def reasoning_part(text: str, kind: ThoughtKind) -> dict[str, Any]:
    """The text of a thought."""
    return {"type": kind, "text": text}


def function_call(number: str, status: str, call: ToolCall) -> dict[str, Any]:
    """A call of a tool."""
    return {
        "id": number,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def fresh(kind: str) -> str:
    """A new id: `resp`, `msg`, `rs` or `fc`, and a number."""
    return f"{kind}_{uuid.uuid4().hex}"


_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """One request."""

    call: requests.Call
    turns: tuple[ChatMessage, ...]
    """The conversation up to here, without instructions: what a later request goes on from."""
    items: str
    """What this request added, as it was sent: JSON, which a million parts make no slower to hand on."""
    store: bool
    repeated: Mapping[str, Any]
    """Members of the request that its answer repeats."""
    previous: str | None = None
    """The id of the answer that this one goes on from."""
    references: tuple[str, ...] = ()
    """Ids of stored items that its input refers to; they are no turns before `with_items`."""

    @property
    def model(self) -> str | None:
        """The model's name."""
        return self.call.model

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for a conversation that cannot fit."""
        self.call.check(limits)

    def with_items(self, items: str, turns: tuple[ChatMessage, ...]) -> ResponsesCall:
        """The request with what `resolve` makes of its items."""
        return replace(self._with_turns(turns), items=items)

    def behind(self, turns: tuple[ChatMessage, ...]) -> ResponsesCall:
        """The request as it is once its conversation goes on from these turns."""
        return self._with_turns((*turns, *self.turns))

    def _with_turns(self, turns: tuple[ChatMessage, ...]) -> ResponsesCall:
        """The request with these turns behind its instructions."""
        [prompt] = self.call.prompts
        assert isinstance(prompt, ChatPrompt)
        system = prompt.messages[: len(prompt.messages) - len(self.turns)]
        prompt = replace(prompt, messages=(*system, *turns))
        return replace(self, call=replace(self.call, prompts=(prompt,)), turns=turns)


class TextFormat(Fields):
    """The form of a text; a schema stands in it without an object of its own, unlike in chat completions."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None
    format: Any = None
    structures: Any = None
    triggers: Any = None

    def constraint(self) -> dict[str, object] | None:
        """The form as `constraint.constraint_from` reads it; None for any text. Raises `ApiError`."""
        parts = {"format": self.format, "structures": self.structures, "triggers": self.triggers}
        if self.type == "json_object":
            return requests.ResponseFormat(type=self.type, schema=self.schema).constraint()
        if self.type == "json_schema":
            requests.check_schema(self.schema, "text.format.schema")
        schema = requests.JsonSchemaFormat(schema=self.schema, strict=self.strict)
        return requests.ResponseFormat(type=self.type, json_schema=schema, **parts).constraint()


class TextOptions(Fields):
    """What the text must be like."""

    format: TextFormat | None = None
    verbosity: str | None = None


_Summary = Annotated[Literal["auto", "concise", "detailed"], Meta(description="auto, concise or detailed")]


class ReasoningConfig(Part):
    """How much to think, and how the thought is shown."""

    effort: Effort | None = None
    summary: _Summary | None = None
    """The thought is in the `summary` of its item, where clients look that asked for one; it is not summed up."""
    generate_summary: _Summary | None = None
    """The older name of `summary`."""


class ResponsesTool(Function, kw_only=True):
    """A tool as the Responses API has it."""

    type: Literal["function"]


_Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""The first one has an effect; of the others there is nothing here that could be included."""


class ResponsesRequest(requests.SamplingFields, kw_only=True):
    """A request to `/v1/responses`."""

    unsupported: ClassVar[Table] = RESPONSES

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=requests.MAX_MESSAGES)] | None = None
    prompt_token_ids: requests.TokenIds | None = None
    """The prompt as it is, in place of input and instructions."""
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Positive | None = None
    include: list[_Include] | None = None
    top_logprobs: Count | None = None
    tools: Annotated[list[ResponsesTool | None], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning: ReasoningConfig | None = None
    thinking_token_budget: Budget | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def summary(self) -> str | None:
        """The kind of summary of the thought that is asked for."""
        return None if self.reasoning is None else self.reasoning.summary or self.reasoning.generate_summary

    def thoughts(self) -> ThoughtOptions:
        """What it says of thoughts. Raises `ApiError`."""
        effort = None if self.reasoning is None else self.reasoning.effort
        budget, visible = self.thinking_token_budget, self.include_reasoning
        return ThoughtOptions.of(None, budget, effort, visible=visible, effort_name="reasoning.effort")


def read(body: Mapping[str, Any], max_logprobs: int = requests.MAX_LOGPROBS) -> ResponsesCall:
    """The call of a request. Raises `ApiError`. What it goes on from is not looked for, see `Ask.behind`."""
    items = _items(body.get("input"))
    known, warnings = without_foreign_tools(body)
    request = decode(ResponsesRequest, {**known, "input": items} if isinstance(items, list) else known)
    check_range("top_logprobs", request.top_logprobs, 0, max_logprobs)
    for name in ("tools", "metadata", "chat_template_kwargs"):
        check_size(name, body.get(name))
    turns, prompt = _prompt(request)
    tools = [tool.tool() for tool in request.tools or () if tool is not None]
    use = choose_tools(tools, request.tool_choice, parallel=request.parallel_tool_calls)
    wanted = _LOGPROBS in (request.include or ()) or request.top_logprobs
    logprobs = request.alternatives((request.top_logprobs or 0) if wanted else None)
    sampling = request.sampling(request.max_output_tokens or MAX_TOKENS, logprobs)
    form = None if request.text is None or request.text.format is None else request.text.format.constraint()
    call = requests.Call(
        request.model,
        (prompt,),
        sampling,
        stream=request.stream or False,
        logprobs=logprobs,
        constraint=requests.one_constraint({"text.format": form}),
        parameters=requests.set_parameters(request),
        thoughts=request.thoughts(),
        warnings=warnings,
        **request.options(),
    )
    return ResponsesCall(
        requests.with_tools(call, use),
        turns,
        json.dumps(items),
        request.store is not False and request.prompt_token_ids is None,
        _repeated(request, body, logprobs),
        request.previous_response_id,
        tuple(item.id or "" for item in request.input or () if isinstance(item, ItemReference)),
    )


def resolve(stored: Mapping[str, Any], items: str) -> tuple[str, tuple[ChatMessage, ...]]:
    """The items of a request, as JSON, with stored ones in place of references to their ids; and their turns."""
    given = [stored[item["id"]] if item["type"] == "item_reference" else item for item in json.loads(items)]
    return json.dumps(given), turns_of(msgspec.convert(given, list[Item]))


def _prompt(request: ResponsesRequest) -> tuple[tuple[ChatMessage, ...], Prompt]:
    """The conversation of the input, and the prompt that it makes, or the ids in its place. Raises `ApiError`."""
    if request.prompt_token_ids is not None:
        return (), requests.prompt_ids(request, ("input", "instructions", "previous_response_id"))
    if request.input is None:
        refuse("input", "input is missing; expected a text, a list of items, or prompt_token_ids")
    assert not isinstance(request.input, str), "it was made an item"
    turns = turns_of(request.input)
    system = () if request.instructions is None else (ChatMessage("system", request.instructions),)
    variables = request.thoughts().variables(request.chat_template_kwargs or {})
    return turns, ChatPrompt((*system, *turns), chat_template_kwargs=variables)


def _items(given: object) -> object:
    """The items of a request's input, each with its type."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    return [
        {**item, "type": item.get("type") or _usual_type(item)} if isinstance(item, dict) else item for item in given
    ]


def _usual_type(item: Mapping[str, Any]) -> str:
    """The type of an item that names none: OpenAI's SDKs leave it out of messages, and of references."""
    return "item_reference" if item.keys() - {"type"} == {"id"} else "message"


def _repeated(request: ResponsesRequest, body: Mapping[str, Any], logprobs: int | None) -> dict[str, Any]:
    """Fields of a request that its answer repeats."""
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {
            "effort": None if request.reasoning is None else request.reasoning.effort,
            "summary": request.summary,
        },
        "store": request.store is not False,
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": logprobs or 0,
        "user": request.user,
    }
