"""Requests to `/v1/chat/completions` and `/v1/completions`, and the messages of a conversation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from lmtool.core import logits_processors
from lmtool.core.errors import RequestError
from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.protocol.http import errors
from lmtool.protocol.http.decoding import (
    MAX_TOKENS,
    Body,
    Count,
    Fields,
    Part,
    Positive,
    check_range,
    check_size,
    decode,
    refuse,
    wrong,
)
from lmtool.protocol.http.requests import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    Budget,
    Call,
    Effort,
    ResponseFormat,
    SamplingFields,
    Thinking,
    ThoughtOptions,
    TokenIds,
    are_ids,
    one_constraint,
    prompt_ids,
    set_parameters,
    with_tools,
)
from lmtool.protocol.http.tools.definitions import MAX_TOOLS, FunctionTool, choose_tools, without_foreign_tools
from lmtool.protocol.http.unsupported import CHAT, COMPLETION, EMBEDDINGS, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.types import NamedProcessor, Prompt, SamplingParams


class ContentPart(Part):
    """A part of a message's content: text, refusal or thought."""

    type: Annotated[
        Literal["text", "refusal", "thinking", "redacted_thinking", "reasoning"],
        Meta(description="text; images and sounds cannot be read here"),
    ]
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None

    @property
    def answer_text(self) -> str:
        """Text that the part adds to the message."""
        return self.text or self.refusal or "" if self.type in {"text", "refusal"} else ""

    @property
    def reasoning_text(self) -> object:
        """Text that the part adds to the thought, if it is a string; None for other parts and redacted thoughts."""
        return {"thinking": self.thinking, "reasoning": self.text}.get(self.type)


TEXT = "a text, or parts of type text; images and sounds cannot be read here"


class FunctionCall(Part):
    """Name and arguments of a call."""

    name: Annotated[str, Meta(min_length=1, description="the name of a tool")]
    arguments: Annotated[str | dict[str, Any] | list[Any], Meta(description="the text of a JSON object")] | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        given = self.arguments or "{}"
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


class MessageToolCall(Part):
    """A call in an assistant message."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None

    def turn(self) -> ToolCall:
        """The call as part of a conversation."""
        return ToolCall(self.id or "", self.function.name, self.function.text)


class Message(Part):
    """One message. Other members, such as those of answers sent back, are ignored."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool", "function"],
        Meta(description="one of system, developer, user, assistant, tool"),
    ]
    content: Annotated[str | list[str | ContentPart], Meta(description=TEXT)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=MAX_MESSAGES)] | None = None
    function_call: FunctionCall | None = None
    """OpenAI's older form of a call."""
    refusal: str | None = None
    """Refusal of an assistant, in place of content."""
    prefix: bool | None = None
    """True if the answer continues this message, which must be the last; see `continue_final_message`."""
    reasoning_content: Any = None
    reasoning: Any = None
    """Thought of an assistant before this message, as a string in one of these; other types are ignored."""
    token_ids: TokenIds | None = None
    """Exact token ids of the message, such as those of an earlier answer; they replace its text and calls."""


def turns(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """Messages of a conversation. Raises `ApiError`."""
    return tuple(_turn(message, f"messages[{at}]") for at, message in enumerate(messages))


def chat_prompt(messages: Sequence[Message], *, continued: bool, generation_prompt: bool | None) -> ChatPrompt:
    """Prompt of a conversation. Raises `ApiError`.

    continued: whether the answer continues the last message. generation_prompt: whether the template adds the header of
    the answer; None: unless `continued`.
    """
    conversation = turns(messages)
    if not continued and not messages[-1].prefix:
        kwargs = {} if generation_prompt is not False else {"add_generation_prompt": False}
        return ChatPrompt(conversation, chat_template_kwargs=kwargs)
    last = conversation[-1]
    if continued and generation_prompt:
        refuse(
            "add_generation_prompt",
            "add_generation_prompt and continue_final_message contradict each other; send one of them",
        )
    if last.role != "assistant" or last.tool_calls:
        refuse("continue_final_message", "continue_final_message needs a last message of role assistant, without calls")
    if last.tokens is not None:
        refuse(f"messages[{len(messages) - 1}].token_ids", "ids cannot be gone on with here: send prompt_token_ids")
    return ChatPrompt(conversation[:-1], prefill=last.content)


def _turn(message: Message, place: str) -> ChatMessage:
    calls = tuple(call.turn() for call in message.tool_calls or ())
    if message.function_call is not None:
        calls += (ToolCall("", message.function_call.name, message.function_call.text),)
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    parts = message.content if isinstance(message.content, list) else [message.content or ""]
    if message.content is None and message.token_ids is None and role not in {"assistant", "tool"}:
        raise wrong(f"{place}.content", None, TEXT)
    for at, part in enumerate(parts):
        if isinstance(part, ContentPart) and part.type == "text" and part.text is None:
            refuse(f"{place}.content[{at}].text", f"{place}.content[{at}].text is missing; expected a text")
    text = "".join(part if isinstance(part, str) else part.answer_text for part in parts) or message.refusal or ""
    turn = ChatMessage(role, text, calls, message.tool_call_id, message.name, reasoning=_thought(message))
    if message.token_ids is None:
        return turn
    return replace(turn, tool_calls=(), tokens=tuple(message.token_ids))


def _thought(message: Message) -> str:
    """Thought of an assistant message, if it is a string."""
    if message.role != "assistant":
        return ""
    texts = [message.reasoning_content, message.reasoning]
    if isinstance(message.content, list):
        texts += [part.reasoning_text for part in message.content if isinstance(part, ContentPart)]
    return next((text for text in texts if isinstance(text, str) and text), "")


def text_of(content: object, kinds: Sequence[str], param: str) -> str:
    """Text of JSON content: a string, or parts of these kinds. Raises `ApiError` for images and sounds."""
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        text = part
        if isinstance(part, dict):
            is_refusal = part.get("type") == "refusal"
            text = part.get("refusal" if is_refusal else "text") if is_refusal or part.get("type") in kinds else None
        if not isinstance(text, str):
            expected = f"a text, or parts of type {kinds[0]}; images and sounds cannot be read here"
            raise wrong(param, content, expected)
        texts.append(text)
    return "".join(texts)


MAX_CHOICES = 128
"""Most answers to one request: prompts times `n`."""
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""vLLM's older names, and their names in `structured_outputs`."""

Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]


class StreamOptions(Fields):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """Padding of events against traffic analysis; ignored."""


class GenerationFields(SamplingFields):
    """Fields common to chat completions and completions."""

    n: Choices | None = None
    best_of: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: Count | None = None
    logits_processors: Any = None
    response_format: ResponseFormat | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    def call(
        self, prompts: tuple[Prompt, ...], sampling: SamplingParams, logprobs: int | None, *, echo: bool = False
    ) -> Call:
        """The parsed request, without tools. Raises `ApiError`."""
        stream, options = self.stream or False, self.stream_options or StreamOptions()
        best_of = None if self.best_of == (self.n or 1) else self.best_of
        continuous = options.continuous_usage_stats or False
        self._check(len(prompts), best_of)
        return Call(
            self.model,
            prompts,
            sampling if best_of is None else replace(sampling, logprobs_mode="raw"),
            self.n or 1,
            best_of,
            stream,
            options.include_usage or continuous,
            continuous,
            logprobs,
            self.prompt_logprobs,
            echo,
            self._constraint(),
            logits_processors=_processors(self.logits_processors),
            parameters=set_parameters(self),
            **self.options(),
        )

    def _check(self, prompts: int, best_of: int | None) -> None:
        n = self.n or 1
        if best_of is not None and best_of < n:
            refuse("best_of", f"best_of is {best_of}; expected n, which is {n}, or more")
        if (best_of or n) * prompts > MAX_CHOICES:
            refuse(
                "n" if self.best_of is None else "best_of",
                f"{prompts} prompts times {best_of or n} is above {MAX_CHOICES}",
            )
        if self.stream_options is not None and not self.stream:
            refuse("stream_options", "stream_options needs stream: true")
        if self.stream and best_of is not None:
            refuse("best_of", "best_of cannot be streamed: which answer is best is known at the end")
        if self.stream and self.prompt_logprobs is not None:
            refuse("prompt_logprobs", "prompt_logprobs cannot be streamed")

    def _constraint(self) -> Any:  # noqa: ANN401  # a Constraint or None
        older = {name: value for name in _GUIDED if (value := getattr(self, name)) is not None}
        form = None if self.response_format is None else self.response_format.constraint()
        guided = {name: {_GUIDED[name]: value} for name, value in older.items()}
        return one_constraint({"structured_outputs": self.structured_outputs, **guided, "response_format": form})


def _processors(given: object) -> tuple[NamedProcessor, ...]:
    try:
        return () if given is None else logits_processors.processors_from(given)
    except RequestError as error:
        raise errors.from_error(error, "logits_processors") from error


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """A request to `/v1/chat/completions`."""

    unsupported: ClassVar[Table] = CHAT

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    prompt_token_ids: TokenIds | None = None
    """Exact token ids of the prompt, in place of messages."""
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    tools: Annotated[list[FunctionTool | None], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Effort | None = None
    thinking: Thinking | None = None
    thinking_token_budget: Budget | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def prompt(self) -> Prompt:
        """The conversation, or `prompt_token_ids`. Raises `ApiError`."""
        if self.prompt_token_ids is not None:
            return prompt_ids(self, ("messages", "documents", "add_generation_prompt", "continue_final_message"))
        if self.messages is None:
            refuse("messages", "messages is missing; expected a list of messages, or prompt_token_ids")
        continued = self.continue_final_message or False
        chat = chat_prompt(self.messages, continued=continued, generation_prompt=self.add_generation_prompt)
        documents = {} if self.documents is None else {"documents": self.documents}
        given = {**chat.chat_template_kwargs, **documents, **(self.chat_template_kwargs or {})}
        return replace(chat, chat_template_kwargs=self.thoughts().variables(given))

    def thoughts(self) -> ThoughtOptions:
        """Options about thinking. Raises `ApiError`."""
        return ThoughtOptions.of(
            self.thinking, self.thinking_token_budget, self.reasoning_effort, visible=self.include_reasoning
        )


def chat(body: Mapping[str, Any], max_logprobs: int = MAX_LOGPROBS) -> Call:
    """Parse a chat completion request. max_logprobs: most alternatives per token. Raises `ApiError`."""
    own_body, warnings = without_foreign_tools(body)
    request = decode(ChatCompletionRequest, own_body)
    for name in ("top_logprobs", "prompt_logprobs"):
        check_range(name, getattr(request, name), 0, max_logprobs)
    if request.top_logprobs is not None and not request.logprobs:
        refuse("top_logprobs", "top_logprobs needs logprobs: true")
    for name in ("tools", "chat_template_kwargs", "documents"):
        check_size(name, body.get(name))
    limit = request.max_completion_tokens or request.max_tokens or MAX_TOKENS
    alternatives = request.alternatives((request.top_logprobs or 0) if request.logprobs else None)
    call = request.call((request.prompt(),), request.sampling(limit, alternatives), alternatives)
    call = replace(call, thoughts=request.thoughts(), warnings=warnings)
    tools = [tool.tool() for tool in request.tools or () if tool is not None]
    return with_tools(call, choose_tools(tools, request.tool_choice, parallel=request.parallel_tool_calls))


class CompletionRequest(GenerationFields, kw_only=True):
    """A request to `/v1/completions`."""

    unsupported: ClassVar[Table] = COMPLETION

    prompt: Annotated[
        str | list[int | str | list[int]], Meta(description="a text, a list of token ids, or a list of either")
    ]
    logprobs: Count | None = None
    max_tokens: Count | None = None
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    thinking_token_budget: Budget | None = None
    include_reasoning: bool | None = None

    @property
    def thought_parameter(self) -> str:
        """Value of `Call.thought_parameter`."""
        if self.thinking_token_budget not in {None, -1}:
            return "thinking_token_budget"
        return "include_reasoning" if self.include_reasoning is False else ""


def completion(body: Mapping[str, Any], max_logprobs: int = MAX_LOGPROBS) -> Call:
    """Parse a completion request. max_logprobs: most alternatives per token. Raises `ApiError`."""
    request = decode(CompletionRequest, body)
    for name in ("logprobs", "prompt_logprobs"):
        check_range(name, getattr(request, name), 0, max_logprobs)
    if request.suffix:
        refuse("suffix", "suffix is for models that fill gaps, which none here does")
    limit = 16 if request.max_tokens is None else request.max_tokens
    logprobs = request.alternatives(request.logprobs)
    sampling, echo = request.sampling(limit, logprobs), request.echo or False
    call = request.call(_prompts(request.prompt), sampling, logprobs, echo=echo)
    special = request.add_special_tokens is not False
    return replace(call, add_special_tokens=special, thought_parameter=request.thought_parameter)


def _prompts(given: str | list[Any]) -> tuple[Prompt, ...]:
    if isinstance(given, str):
        return (given,)
    if are_ids(given) and given:
        return (tuple(given),)
    if len(given) > MAX_CHOICES:
        refuse("prompt", f"{len(given)} prompts; expected at most {MAX_CHOICES}")
    if given and all(isinstance(one, str) for one in given):
        return tuple(given)
    if given and all(are_ids(one) and one for one in given):
        return tuple(tuple(one) for one in given)
    raise wrong("prompt", given, "a text, a list of token ids, or a list of either, none empty")


class EmbeddingRequest(Body):
    """A request to `/v1/embeddings`, `/v1/rerank` or `/v1/score`, which no model here can answer."""

    unsupported: ClassVar[Table] = EMBEDDINGS

    input: Any = None
    encoding_format: Any = None
    dimensions: Any = None
