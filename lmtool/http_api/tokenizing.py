"""The routes that turn texts and conversations into token ids, and ids into text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from starlette.responses import Response

from lmtool.http_api import conversation
from lmtool.http_api.errors import ApiError
from lmtool.http_api.http import asked
from lmtool.http_api.members import Members
from lmtool.http_api.requests import are_ids
from lmtool.http_api.tools.definitions import chat_tools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from lmtool.http_api.generation import Served
    from lmtool.prompt_limits import LimitsByModel, PromptLimits
    from lmtool.types import ChatMessage

    Serving: TypeAlias = "Callable[[str | None], Awaitable[Served]]"


class TokenizingRoutes:
    """Answers `/tokenize` and `/detokenize` as vLLM does."""

    def __init__(self, served: Serving, limits: Callable[[], LimitsByModel]) -> None:
        """served: the model of a name; raises `UnknownModelError`. limits: of the models' prompts."""
        self._served = served
        self._limits = limits

    def handlers(self) -> list[tuple[str, str, Callable[[Request], Any]]]:
        """Method, path and handler each."""
        return [("POST", "/tokenize", self._tokenize), ("POST", "/detokenize", self._detokenize)]

    async def _tokenize(self, request: Request) -> Response:
        asking = await asked(request, TokenizeRequest.read, self._limits())
        served = await self._served(asking.model)
        tokens = await served.spelt().encode_prompt(asking.prompt, asking.tools, asking.options, special=asking.special)
        return _json({"tokens": tokens, "count": len(tokens), "max_model_len": served.info.context_length})

    async def _detokenize(self, request: Request) -> Response:
        asking = await asked(request, DetokenizeRequest.read, self._limits())
        served = await self._served(asking.model)
        vocabulary = served.info.vocab_size or 0
        if max(asking.tokens, default=-1) >= vocabulary:
            raise _no_ids(f"from 0 to {vocabulary - 1}")
        return _json({"prompt": await served.spelt().decode_tokens(asking.tokens)})


def _json(value: object) -> Response:
    """A response; with 100,000 ids in it, Python's own writer would make all streams wait for 10 ms."""
    return Response(msgspec.json.encode(value), media_type="application/json")


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """What `/tokenize` is asked for."""

    model: str | None
    prompt: str | tuple[ChatMessage, ...]
    special: bool
    """Whether a text gets what the model expects at its start."""
    tools: Sequence[Mapping[str, object]] | None = None
    options: Mapping[str, object] | None = None

    @staticmethod
    def read(body: Mapping[str, object]) -> TokenizeRequest:
        """Read a request. Raises `ApiError`."""
        members = Members(body)
        model, prompt = members.text("model"), members.text("prompt")
        special = members.flag("add_special_tokens", default=True)
        if prompt is not None:
            members.end()
            return TokenizeRequest(model, prompt, special)
        turns, use = conversation.messages(members), chat_tools(members)
        options = members.mapping("chat_template_kwargs")
        members.end()
        tools = None if use is None else [tool.shown for tool in use.tools]
        return TokenizeRequest(model, turns, special, tools, options)

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for what cannot fit."""
        limits.check_prompt(self.prompt)


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """What `/detokenize` is asked for."""

    model: str | None
    tokens: tuple[int, ...]

    @staticmethod
    def read(body: Mapping[str, object]) -> DetokenizeRequest:
        """Read a request. Raises `ApiError`."""
        members = Members(body)
        model, tokens = members.text("model"), members.take("tokens")
        members.end()
        if not are_ids(tokens) or min(tokens, default=0) < 0:
            raise _no_ids("from 0 on")
        return DetokenizeRequest(model, tuple(tokens))

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for far more tokens than the model has room for."""
        limits.check_beginning(len(self.tokens))


def _no_ids(expected: str) -> ApiError:
    return ApiError(400, f"tokens must be a list of ids {expected}", param="tokens")
