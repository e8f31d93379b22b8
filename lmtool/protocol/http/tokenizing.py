"""Routes `/tokenize` and `/detokenize`: texts and conversations to token ids, and ids to text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from lmtool.core.types import ChatPrompt
from lmtool.protocol.http.decoding import Body, Count, check_size, decode, refuse
from lmtool.protocol.http.http import Endpoint, json_response
from lmtool.protocol.http.openai.requests import Message, turns
from lmtool.protocol.http.requests import MAX_MESSAGES
from lmtool.protocol.http.tools.definitions import MAX_TOOLS, FunctionTool, choose_tools, without_foreign_tools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from lmtool.core.prompt_limits import PromptLimits
    from lmtool.protocol.http.models import Models


class TokenizingRoutes:
    """Serves `/tokenize` and `/detokenize` in vLLM's form."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def endpoints(self) -> list[Endpoint]:
        """Routes of this API."""
        return [
            Endpoint("POST", "/tokenize", self._tokenize, TokenizeRequest),
            Endpoint("POST", "/detokenize", self._detokenize, DetokenizeRequest),
        ]

    async def _tokenize(self, request: Request) -> Response:
        """Token ids of a text, or of a conversation under the chat template."""
        to_tokenize = await self._models.read(request, ToTokenize.read)
        served = await self._models.served(to_tokenize.model)
        tokens = await served.need_tokenizer().tokenize(to_tokenize.prompt, special=to_tokenize.special)
        return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": served.info.context_length})

    async def _detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        to_tokenize = await self._models.read(request, DetokenizeRequest.read)
        served = await self._models.served(to_tokenize.model)
        vocabulary = served.info.vocab_size or 0
        if max(to_tokenize.tokens, default=-1) >= vocabulary:
            refuse("tokens", f"tokens must be ids from 0 to {vocabulary - 1}")
        return json_response({"prompt": await served.need_tokenizer().detokenize(to_tokenize.tokens)})


class TokenizeRequest(Body):
    """A request to `/tokenize`: a text, or a conversation."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    """True to add special tokens, such as BOS, to a text."""
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[FunctionTool | None], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToTokenize:
    """A prompt to tokenize."""

    model: str | None
    prompt: str | ChatPrompt
    special: bool = True
    """True to add special tokens, such as BOS, to a text."""

    @staticmethod
    def read(body: Mapping[str, Any]) -> ToTokenize:
        """Parse a request. Raises `ApiError`."""
        request = decode(TokenizeRequest, without_foreign_tools(body)[0])
        special = request.add_special_tokens is not False
        if request.prompt is not None:
            for name in ("messages", "tools", "chat_template_kwargs"):
                if getattr(request, name) is not None:
                    refuse(name, f"{name} has no meaning beside prompt; send one of them")
            return ToTokenize(request.model, request.prompt, special)
        if request.messages is None:
            refuse("messages", "messages is missing; expected a list of messages, or a prompt")
        for name in ("tools", "chat_template_kwargs"):
            check_size(name, body.get(name))
        tools = [tool.tool() for tool in request.tools or () if tool is not None]
        use = choose_tools(tools, request.tool_choice, parallel=request.parallel_tool_calls)
        entries = () if use is None else tuple(tool.template_entry for tool in use.tools)
        chat = ChatPrompt(turns(request.messages), entries, request.chat_template_kwargs or {})
        return ToTokenize(request.model, chat, special)

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for a prompt that cannot fit."""
        limits.check_prompt(self.prompt)


class DetokenizeRequest(Body, kw_only=True):
    """A request to `/detokenize`."""

    tokens: Annotated[list[Count], Meta(description="a list of ids from 0 on")]

    @staticmethod
    def read(body: Mapping[str, Any]) -> DetokenizeRequest:
        """Parse a request. Raises `ApiError`."""
        return decode(DetokenizeRequest, body)

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for far more tokens than the context length."""
        limits.check_beginning(len(self.tokens))
