"""The routes: read a request, run its streams, answer whole or by server-sent events."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from lmtool.errors import LmtoolError
from lmtool.http_api import errors, requests
from lmtool.http_api.anthropic.server import MessagesRoutes
from lmtool.http_api.errors import ApiError
from lmtool.http_api.generation import Generation, Served
from lmtool.http_api.http import asked, server_sent, unless_gone
from lmtool.http_api.in_flight import InFlight
from lmtool.http_api.members import Members
from lmtool.http_api.openai import completions
from lmtool.http_api.replies import Reply
from lmtool.http_api.responses.server import ResponsesRoutes
from lmtool.http_api.scored_prompts import ScoredPrompts
from lmtool.http_api.tokenizing import TokenizingRoutes
from lmtool.interfaces import current_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.http_api.generation import Counted, Spelling
    from lmtool.http_api.replies import Route as Kind
    from lmtool.http_api.requests import Call
    from lmtool.http_api.tools.parsers import Form
    from lmtool.interfaces import Catalogue, TokenModel
    from lmtool.prompt_limits import LimitsByModel
    from lmtool.types import ModelEntry, TokenOutput

    Handler: TypeAlias = "Callable[[Request], Any]"


def _refusal(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status)


def _uncounted(_last: TokenOutput | None, _tokens: int) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """How a server answers over HTTP."""

    calls_form: Form | None = None
    """How models write calls of tools; None: as their chat templates teach."""
    counted: Counted | None = None
    """Is told of each stream that ended."""
    max_logprobs: int | None = None
    """Most alternatives that may be asked for beside a token; None: `requests.MOST_LOGPROBS`."""


class OpenAIServer:
    """Answers OpenAI's API, and Anthropic's messages, over a token model."""

    def __init__(
        self,
        model: TokenModel,
        tokenizer: Callable[[str | None], Spelling | None],
        config: ApiConfig | None = None,
        *,
        catalogue: Catalogue,
    ) -> None:
        """tokenizer: of a served name, None where this process does not have it."""
        self._model = model
        self._catalogue = catalogue
        self._tokenizer = tokenizer
        self._config = config or ApiConfig()
        self._created = int(time.time())
        self._scored = ScoredPrompts()
        most = self._config.max_logprobs
        self._most_logprobs = requests.MOST_LOGPROBS if most is None else most
        self._tokenizing = TokenizingRoutes(self.served, self._limits)
        self._responses = ResponsesRoutes(self.served, self._limits, most_logprobs=self._most_logprobs)
        self._messages = MessagesRoutes(self.served, self._limits)
        self._in_flight = InFlight()

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return self._in_flight.count

    async def drain(self, seconds: float) -> bool:
        """Take nothing new, and wait for what runs; whether all of it ended within so many seconds."""
        return await self._in_flight.drain(seconds)

    def routes(self) -> list[BaseRoute]:
        """Routes for a starlette application, with and without `/v1` in front."""
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/models", self._models),
            ("GET", "/models/{name:path}", self._one_model),
            ("POST", "/chat/completions", self._chat),
            ("POST", "/completions", self._completions),
            ("POST", "/embeddings", self._embeddings),
            *self._tokenizing.handlers(),
            *self._responses.handlers(),
        ]
        own = [(method, path, self._guarded(handler)) for method, path, handler in handlers]
        own += [
            (method, path, self._guarded(handler, self._messages.refusal))
            for method, path, handler in self._messages.handlers()
        ]
        counted = [Middleware(self._in_flight.around)]
        return [
            Route(front + path, handler, methods=[method], middleware=counted)
            for method, path, handler in own
            for front in ("/v1", "")
        ]

    async def served(self, model: str | None) -> Served:
        """The model of this name. Raises `UnknownModelError`; waits while it loads."""
        info = await self._model.info(model)
        config = self._config
        spelling, counted = self._tokenizer(model), config.counted or _uncounted
        return Served(self._model, info, spelling, config.calls_form, self._scored, counted)

    def _limits(self) -> LimitsByModel:
        return current_limits(self._model)

    def _guarded(self, handler: Handler, refusal: Callable[[ApiError], Response] = _refusal) -> Handler:
        """The handler, with errors in the API's form."""

        async def answer(request: Request) -> Response:
            try:
                self._in_flight.admit()
                response: Response = await handler(request)
            except ApiError as error:
                return refusal(error)
            except LmtoolError as problem:
                return refusal(errors.of(problem))
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it
            return response

        return answer

    async def _models(self, _request: Request) -> Response:
        """Every name that clients are shown, at once: nothing is loaded or waited for."""
        entries = self._catalogue.models()
        cards = [self._card(entry, name) for entry in entries for name in (entry.name, *entry.aliases)]
        return JSONResponse({"object": "list", "data": cards})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        entry = self._catalogue.entry(name)
        return JSONResponse(self._card(entry, name if name in entry.aliases else entry.name))

    def _card(self, entry: ModelEntry, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "lmtool",
            "root": entry.name,
            "max_model_len": entry.context_length,
            "phase": entry.phase,
            "size_bytes": entry.size_bytes,
            "idle_seconds": entry.idle_seconds,
        }

    async def _embeddings(self, request: Request) -> Response:
        entry = self._catalogue.entry(await asked(request, _model_name))
        raise ApiError(
            400,
            f"{entry.name} was trained to continue texts, not to compare them: what its layers hold is no embedding, "
            "and none is made up here; ask a server of an embedding model",
            param="model",
            code="unsupported_model",
        )

    async def _chat(self, request: Request) -> Response:
        call = await asked(request, partial(requests.chat, most_logprobs=self._most_logprobs), self._limits())
        return await self._run(request, "chat", call)

    async def _completions(self, request: Request) -> Response:
        call = await asked(request, partial(requests.completion, most_logprobs=self._most_logprobs), self._limits())
        return await self._run(request, "text", call)

    async def _run(self, request: Request, kind: Kind, call: Call) -> Response:
        served = await self.served(call.model)
        generation = Generation(served, call)
        await generation.start(count=call.continuous_usage)
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        reply = Reply(kind, f"{prefix}-{uuid.uuid4().hex}", int(time.time()), served.info.model)
        if call.stream:
            return await server_sent(completions.events(generation, reply))
        return await unless_gone(request, _json(completions.whole(generation, reply)))


def _model_name(body: Mapping[str, object]) -> str | None:
    return Members(body).text("model")


async def _json(work: Any) -> Response:  # noqa: ANN401  # a coroutine of a JSON object
    return JSONResponse(await work)
