"""Requests to `/v1/messages`: fields, conversation, and the blocks of thoughts that clients send back."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from lmtool.core.reasoning import SignedThought, ThoughtSignature
from lmtool.core.sampling_parameters import NUMERIC_PARAMETERS
from lmtool.core.signed_message import SignedMessage
from lmtool.core.types import ChatMessage, ChatPrompt, SamplingParams, ToolCall
from lmtool.protocol.http import requests
from lmtool.protocol.http.decoding import Body, Part, check_size, decode, refuse, wrong
from lmtool.protocol.http.openai.requests import text_of
from lmtool.protocol.http.requests import (
    MAX_MESSAGES,
    Budget,
    CacheSalt,
    Deadline,
    Effort,
    Thinking,
    ThoughtOptions,
    TokenIds,
)
from lmtool.protocol.http.tools.definitions import MAX_TOOLS, Tool, ToolName, tool_use, without_foreign_tools
from lmtool.protocol.http.unsupported import MESSAGES, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.core.types import Constraint, Prompt
    from lmtool.protocol.http.tools.definitions import Mode


THINKING, REDACTED = "thinking", "redacted_thinking"
KINDS = frozenset({THINKING, REDACTED})
"""Types of thinking blocks; a redacted block has no readable text."""


def own_signature(text: str) -> str:
    """Signature for an unsigned thought: clients reject a thought without one. It is never verified."""
    return hashlib.sha256(text.encode()).hexdigest()


def signed_thought(block: Mapping[str, object]) -> SignedThought | None:
    """The signed thought in a block, to be sent back to its API; None if no other API signed it."""
    if block.get("type") == REDACTED:
        data = block.get("data")
        return SignedThought("", ThoughtSignature(data, is_redacted=True)) if isinstance(data, str) and data else None
    text, signature = block.get("thinking"), block.get("signature")
    if not isinstance(text, str) or not isinstance(signature, str) or signature in ("", own_signature(text)):
        return None
    return SignedThought(text, ThoughtSignature(signature))


def block_of(part: SignedThought) -> dict[str, Any]:
    """Block for a signed thought."""
    if part.signature.is_redacted:
        return {"type": REDACTED, "data": part.signature.value}
    return {"type": THINKING, "thinking": part.text, "signature": part.signature.value}


def blocks_of(reasoning: str, signed_thoughts: Sequence[SignedThought]) -> Iterator[dict[str, Any]]:
    """Blocks for a whole thought: its signed parts, then the rest."""
    yield from map(block_of, signed_thoughts)
    if rest := reasoning[sum(len(part.text) for part in signed_thoughts) :]:
        yield block_of(SignedThought(rest, ThoughtSignature(own_signature(rest))))


_RANGES = {name: parameter.anthropic.meta for name, parameter in NUMERIC_PARAMETERS.items()}
_Stops = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(max_length=64, description="up to 64 texts, none empty")
]


class AnthropicTool(Part):
    """A tool in Anthropic's form."""

    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """The tool."""
        return Tool(self.name, self.description, self.input_schema, self.strict or False)


class AnthropicToolChoice(Part):
    """True if the model may or must call a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicMessage(Part):
    """One message: text, or blocks of text, tool calls (assistant) and tool results (user)."""

    role: Literal["user", "assistant", "system"]
    """A system message may have text only; it may occur anywhere."""
    content: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    token_ids: TokenIds | None = None
    """Exact token ids of an assistant message, in place of its text and calls."""


class OutputFormat(Part):
    """Format of an answer's text."""

    type: Annotated[Literal["json_schema"], Meta(description="json_schema")]
    schema: dict[str, Any] | None = None


class OutputConfig(Part):
    """Format of the answer, and thinking effort."""

    format: OutputFormat | None = None
    effort: Effort | None = None


class MessagesRequest(Body, kw_only=True):
    """A request to `/v1/messages` or `/v1/messages/count_tokens`."""

    unsupported: ClassVar[Table] = MESSAGES

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    prompt_token_ids: TokenIds | None = None
    """Exact token ids of the prompt, in place of messages and system."""
    system: str | list[dict[str, Any]] | None = None
    max_tokens: Annotated[int, _RANGES["max_tokens"]] | None = None
    temperature: Annotated[float, _RANGES["temperature"]] | None = None
    top_k: Annotated[int, _RANGES["top_k"]] | None = None
    top_p: Annotated[float, _RANGES["top_p"]] | None = None
    stop_sequences: _Stops | None = None
    stream: bool | None = None
    thinking: Thinking | None = None
    thinking_token_budget: Budget | None = None
    tools: Annotated[list[AnthropicTool | None], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Older form of `output_config.format`."""
    return_token_ids: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    deadline: Deadline | None = None
    cache_salt: CacheSalt | None = None

    def thoughts(self) -> ThoughtOptions:
        """Options about thinking. Raises `ApiError`."""
        effort = None if self.output_config is None else self.output_config.effort
        return ThoughtOptions.of(self.thinking, self.thinking_token_budget, effort, effort_name="output_config.effort")


_MODES: Mapping[str, Mode] = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


def read(body: Mapping[str, Any], *, counting: bool = False) -> requests.Call:
    """Parse a request. counting: whether only to count its tokens, so `max_tokens` is optional. Raises `ApiError`."""
    own_body, warnings = without_foreign_tools(body, "custom")
    request = decode(MessagesRequest, own_body)
    if request.max_tokens is None and not counting:
        refuse("max_tokens", "max_tokens is missing; expected the most tokens of the answer")
    for name in ("tools", "chat_template_kwargs"):
        check_size(name, body.get(name))
    sampling = SamplingParams(
        max_tokens=request.max_tokens or 1,
        temperature=1.0 if request.temperature is None else float(request.temperature),
        top_k=request.top_k or 0,
        top_p=1.0 if request.top_p is None else float(request.top_p),
        stop=tuple(request.stop_sequences or ()),
        top_logprobs=0,
    )
    choice = request.tool_choice or AnthropicToolChoice(type="auto")
    parallel = not choice.disable_parallel_tool_use
    tools = [tool.tool() for tool in request.tools or () if tool is not None]
    use = tool_use(tools, _MODES[choice.type], choice.name, parallel=parallel)
    parameters = requests.set_parameters(request)
    call = requests.Call(
        request.model,
        (_prompt(request),),
        sampling,
        stream=request.stream or False,
        parameters=parameters,
        deadline=request.deadline,
        cache_salt=request.cache_salt or "",
        return_token_ids=request.return_token_ids or False,
        constraint=_constraint(request),
        thoughts=request.thoughts(),
        warnings=warnings,
    )
    return requests.with_tools(call, use)


def _prompt(request: MessagesRequest) -> Prompt:
    """The conversation, or `prompt_token_ids`. Raises `ApiError`."""
    if request.prompt_token_ids is not None:
        return requests.prompt_ids(request, ("messages", "system"))
    if request.messages is None:
        refuse("messages", "messages is missing; expected a list of messages, or prompt_token_ids")
    system = () if request.system is None else (ChatMessage("system", text_of(request.system, ("text",), "system")),)
    turns = (*system, *_turns(request.messages))
    kwargs = request.thoughts().variables(request.chat_template_kwargs or {})
    last = turns[-1]
    if last.role != "assistant" or last.tool_calls:
        return ChatPrompt(turns, chat_template_kwargs=kwargs)
    if last.tokens is not None:
        refuse(f"messages[{len(request.messages) - 1}].token_ids", "ids are not gone on with: send prompt_token_ids")
    return ChatPrompt(turns[:-1], chat_template_kwargs=kwargs, prefill=last.content)


def _constraint(request: MessagesRequest) -> Constraint | None:
    """Constraint on the answer's text. Raises `ApiError`."""
    config = None if request.output_config is None else request.output_config.format
    forms = {"output_config.format": config, "output_format": request.output_format}
    spellings: dict[str, object] = {}
    for name, form in forms.items():
        if form is not None:
            requests.check_schema(form.schema, f"{name}.schema")
            spellings[name] = {"json": form.schema}
    return requests.one_constraint(spellings)


def _turns(messages: Sequence[AnthropicMessage]) -> list[ChatMessage]:
    turns: list[ChatMessage] = []
    for at, message in enumerate(messages):
        if message.token_ids is not None:
            turns.append(ChatMessage(message.role, "", tokens=tuple(message.token_ids)))
        elif isinstance(message.content, str):
            turns.append(ChatMessage(message.role, message.content))
        else:
            turns += _turns_of(f"messages[{at}].content", message.role, message.content)
    return turns


def _turns_of(place: str, role: str, blocks: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    """Messages for one request message: tool results become messages of their own, before the user's text."""
    texts, calls, results, thoughts = [], [], [], []
    signed: list[SignedThought] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use" and role == "assistant":
            calls.append(_call(place, block))
        elif kind == "tool_result" and role == "user":
            results.append(_result(place, block))
        elif kind not in KINDS:
            texts.append(text_of([block], ("text",), place))
        elif role == "assistant":
            thought = block.get("thinking")
            thoughts.append(thought if isinstance(thought, str) else "")
            if (signed_part := signed_thought(block)) is not None:
                signed.append(signed_part)
    turn = ChatMessage(role, "".join(texts), tuple(calls), reasoning="".join(thoughts))
    turn = SignedMessage.of(turn, signed)
    message = [] if results and not texts else [turn]
    return [*results, *message]


def _call(place: str, block: Mapping[str, Any]) -> ToolCall:
    number, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(number, str) or not isinstance(name, str):
        raise wrong(place, dict(block), "tool_use with id, name and input")
    return ToolCall(number, name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def _result(place: str, block: Mapping[str, Any]) -> ChatMessage:
    number, content = block.get("tool_use_id"), block.get("content") or ""
    if not isinstance(number, str):
        raise wrong(place, dict(block), "tool_result with tool_use_id, and content of text")
    return ChatMessage("tool", text_of(content, ("text",), place), tool_call_id=number)
