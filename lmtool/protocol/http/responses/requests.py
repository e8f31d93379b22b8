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
    """Exact token ids of the assistant message that starts with this item, in place of its text and calls."""


class MessageItem(_Item, tag="message", kw_only=True):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(_Item, tag="function_call", kw_only=True):
    """A tool call."""

    call_id: str
    name: Annotated[str, Meta(min_length=1, description="the name of a tool")]
    arguments: str | None = None


class FunctionCallOutputItem(_Item, tag="function_call_output", kw_only=True):
    """A tool result."""

    output: Content | None = None
    call_id: str | None = None


class ReasoningItem(_Item, tag="reasoning"):
    """Thought of the assistant before the next item; an encrypted thought is not readable."""

    content: Any = None
    summary: Any = None
    encrypted_content: Any = None
    """A signature written by `encrypted`; other values are ignored."""

    @property
    def signed(self) -> SignedThought | None:
        """The signed thought, to be sent back to the API that signed it; None if unsigned."""
        given = self.encrypted_content if isinstance(self.encrypted_content, str) else ""
        kind, _, value = given.partition(":")
        if kind not in _SIGNED or not value:
            return None
        is_redacted = kind == _REDACTED
        return SignedThought("" if is_redacted else self.text, ThoughtSignature(value, is_redacted))

    @property
    def text(self) -> str:
        """Text of the thought, or of its summary."""
        return _texts(self.content) or _texts(self.summary)


class ItemReference(_Item, tag="item_reference"):
    """Reference to an item of a stored response by id; the server replaces it with that item."""


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ItemReference


class TurnThought(NamedTuple):
    """Thought of the assistant before a message, from one or several items."""

    text: str = ""
    signed: tuple[SignedThought, ...] = ()

    def followed_by(self, item: ReasoningItem) -> TurnThought:
        """This thought extended by another item."""
        signed = item.signed
        return TurnThought(self.text + item.text, self.signed if signed is None else (*self.signed, signed))


_PLAIN, _REDACTED = "thinking", "redacted_thinking"
_SIGNED = frozenset({_PLAIN, _REDACTED})


def encrypted(signature: ThoughtSignature) -> str:
    """Value of `encrypted_content`: a signature that the client sends back with the thought."""
    return f"{_REDACTED if signature.is_redacted else _PLAIN}:{signature.value}"


def turns_of(items: Sequence[Item]) -> tuple[ChatMessage, ...]:
    """Messages for these items; calls belong to the assistant message before them. Raises `ApiError`."""
    turns: list[ChatMessage] = []
    thought = TurnThought()
    for at, item in enumerate(items):
        before, thought = thought, TurnThought()
        if isinstance(item, ReasoningItem):
            thought = before.followed_by(item)
            if item.token_ids is not None:  # an answer that is only a thought
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
                continue  # the token ids of its message contain the call
            elif turns and turns[-1].role == "assistant":
                last_turn = turns[-1]
                turn = replace(
                    last_turn, tool_calls=(*last_turn.tool_calls, call), reasoning=last_turn.reasoning + before.text
                )
                turns[-1] = SignedMessage.of(turn, (*signed_thoughts(last_turn), *before.signed))
            else:
                turn = ChatMessage("assistant", "", (call,), reasoning=before.text)
                turns.append(SignedMessage.of(turn, before.signed))
        elif isinstance(item, FunctionCallOutputItem):
            text = text_of(item.output or "", _TEXTS, f"input[{at}].output")
            turns.append(ChatMessage("tool", text, tool_call_id=item.call_id))
    return tuple(turns)


def _texts(parts: object) -> str:
    """Texts of parts, joined by line feeds."""
    texts = (part.get("text") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return "\n".join(text for text in texts if isinstance(text, str))


def _exact(item: _Item) -> tuple[int, ...] | None:
    return None if item.token_ids is None else tuple(item.token_ids)


def part(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    """Text part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message(number: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """Item for a message of the assistant."""
    return {"id": number, "type": "message", "status": status, "role": "assistant", "content": content}


ThoughtKind: TypeAlias = Literal["reasoning_text", "summary_text"]
"""Type of a thought's part: in the item's content, or in its summary."""


def reasoning(number: str, status: str, text: str, kind: ThoughtKind) -> dict[str, Any]:
    """Item for a thought."""
    item = {"id": number, "type": "reasoning", "status": status, "summary": [], "content": []}
    return item | {_MEMBERS[kind]: [reasoning_part(text, kind)]} if text else item


_MEMBERS: Mapping[ThoughtKind, str] = {"reasoning_text": "content", "summary_text": "summary"}


def reasoning_part(text: str, kind: ThoughtKind) -> dict[str, Any]:
    """Part for the text of a thought."""
    return {"type": kind, "text": text}


def function_call(number: str, status: str, call: ToolCall) -> dict[str, Any]:
    """Item for a tool call."""
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
    """One parsed request."""

    call: requests.Call
    turns: tuple[ChatMessage, ...]
    """Conversation so far, without instructions; a later request continues from it."""
    items: str
    """JSON text of the items that this request adds; text is cheap to pass between processes."""
    store: bool
    repeated: Mapping[str, Any]
    """Members of the request that the response repeats."""
    previous: str | None = None
    """Id of the response that this request continues."""
    references: tuple[str, ...] = ()
    """Ids of stored items that the input refers to; `resolve` inserts them."""

    @property
    def model(self) -> str | None:
        """Name of the model."""
        return self.call.model

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for a conversation that cannot fit."""
        self.call.check(limits)

    def with_turns(self, turns: tuple[ChatMessage, ...], items: str | None = None) -> ResponsesCall:
        """The request with these messages after its instructions, and with these items, see `resolve`."""
        [prompt] = self.call.prompts
        assert isinstance(prompt, ChatPrompt)
        system = prompt.messages[: len(prompt.messages) - len(self.turns)]
        prompt = replace(prompt, messages=(*system, *turns))
        items = self.items if items is None else items
        return replace(self, call=replace(self.call, prompts=(prompt,)), turns=turns, items=items)


class TextFormat(Fields):
    """Format of a text; unlike in chat completions, the schema's members are not nested in an object."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None
    format: Any = None
    structures: Any = None
    triggers: Any = None

    def constraint(self) -> dict[str, object] | None:
        """The format as input of `constraint.constraint_from`; None for any text. Raises `ApiError`."""
        parts = {"format": self.format, "structures": self.structures, "triggers": self.triggers}
        if self.type == "json_object":
            return requests.ResponseFormat(type=self.type, schema=self.schema).constraint()
        if self.type == "json_schema":
            requests.check_schema(self.schema, "text.format.schema")
        schema = requests.JsonSchemaFormat(schema=self.schema, strict=self.strict)
        return requests.ResponseFormat(type=self.type, json_schema=schema, **parts).constraint()


class TextOptions(Fields):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: str | None = None


_Summary = Annotated[Literal["auto", "concise", "detailed"], Meta(description="auto, concise or detailed")]


class ReasoningConfig(Part):
    """Thinking effort, and presentation of the thought."""

    effort: Effort | None = None
    summary: _Summary | None = None
    """If set, the full thought is sent as the item's `summary`, where clients expect it; nothing is summarised."""
    generate_summary: _Summary | None = None
    """Older name of `summary`."""


class ResponsesTool(Function, kw_only=True):
    """A tool in the form of the Responses API."""

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
"""Only the first has an effect; the others have nothing to include here."""


class ResponsesRequest(requests.SamplingFields, kw_only=True):
    """A request to `/v1/responses`."""

    unsupported: ClassVar[Table] = RESPONSES

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=requests.MAX_MESSAGES)] | None = None
    prompt_token_ids: requests.TokenIds | None = None
    """Exact token ids of the prompt, in place of input and instructions."""
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
        """Requested kind of summary of the thought."""
        return None if self.reasoning is None else self.reasoning.summary or self.reasoning.generate_summary

    def thoughts(self) -> ThoughtOptions:
        """Options about thinking. Raises `ApiError`."""
        effort = None if self.reasoning is None else self.reasoning.effort
        budget, visible = self.thinking_token_budget, self.include_reasoning
        return ThoughtOptions.of(None, budget, effort, visible=visible, effort_name="reasoning.effort")


def read(body: Mapping[str, Any], max_logprobs: int = requests.MAX_LOGPROBS) -> ResponsesCall:
    """Parse a request. The response it continues is not looked up, see `with_turns`. Raises `ApiError`."""
    items = _items(body.get("input"))
    own_body, warnings = without_foreign_tools(body)
    request = decode(ResponsesRequest, {**own_body, "input": items} if isinstance(items, list) else own_body)
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


def resolve(stored: Mapping[str, Any], items: str) -> tuple[tuple[ChatMessage, ...], str]:
    """Messages and JSON text of a request's items, with references replaced by stored items."""
    given = [stored[item["id"]] if item["type"] == "item_reference" else item for item in json.loads(items)]
    return turns_of(msgspec.convert(given, list[Item])), json.dumps(given)


def _prompt(request: ResponsesRequest) -> tuple[tuple[ChatMessage, ...], Prompt]:
    """Conversation of the input, and its prompt (or `prompt_token_ids`). Raises `ApiError`."""
    if request.prompt_token_ids is not None:
        return (), requests.prompt_ids(request, ("input", "instructions", "previous_response_id"))
    if request.input is None:
        refuse("input", "input is missing; expected a text, a list of items, or prompt_token_ids")
    assert not isinstance(request.input, str), "converted to an item"
    turns = turns_of(request.input)
    system = () if request.instructions is None else (ChatMessage("system", request.instructions),)
    variables = request.thoughts().variables(request.chat_template_kwargs or {})
    return turns, ChatPrompt((*system, *turns), chat_template_kwargs=variables)


def _items(given: object) -> object:
    """Items of a request's input, each with its type."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    items = []
    for item in given:
        if isinstance(item, dict) and not item.get("type"):  # OpenAI's SDKs omit the type of messages and references
            items.append({**item, "type": "item_reference" if item.keys() - {"type"} == {"id"} else "message"})
        else:
            items.append(item)
    return items


def _repeated(request: ResponsesRequest, body: Mapping[str, Any], logprobs: int | None) -> dict[str, Any]:
    """Fields of the request that the response repeats."""
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
