"""HTTP server: routes of OpenAI's API, with those of Anthropic, Responses and tokenizing added."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lmtool.core.errors import LmtoolError
from lmtool.core.metrics import MetricFamily
from lmtool.net.access.request_tracker import RequestTracker
from lmtool.protocol.http import errors
from lmtool.protocol.http.anthropic.server import MessagesRoutes
from lmtool.protocol.http.decoding import decode
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.generation import prepare
from lmtool.protocol.http.http import FRONT, Endpoint, EventStream, document, json_response, unless_gone
from lmtool.protocol.http.models import ApiConfig, Models
from lmtool.protocol.http.openai import replies, requests
from lmtool.protocol.http.openai.replies import Reply
from lmtool.protocol.http.requests import MAX_LOGPROBS
from lmtool.protocol.http.responses.server import ResponsesRoutes
from lmtool.protocol.http.tokenizing import TokenizingRoutes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.core.interfaces import Catalogue, TokenModel
    from lmtool.core.model_entry import ModelEntry
    from lmtool.protocol.http.openai.replies import Route as Kind
    from lmtool.protocol.http.requests import Call

    Handler: TypeAlias = "Callable[[Request], Any]"


def _refusal(error: ApiError) -> Response:
    return json_response(error.body, error.status, error.headers)


class OpenAIServer:
    """Serves OpenAI's and Anthropic's APIs for a token model."""

    def __init__(
        self,
        model: TokenModel,
        config: ApiConfig | None = None,
        *,
        catalogue: Catalogue,
    ) -> None:
        """catalogue: models listed under `/models`."""
        self._catalogue = catalogue
        self._created = int(time.time())
        config = config or ApiConfig()
        self._max_logprobs = MAX_LOGPROBS if config.max_logprobs is None else config.max_logprobs
        self._models = Models(model, config)
        self._messages = MessagesRoutes(self._models)
        self._responses = ResponsesRoutes(self._models, self._max_logprobs)
        self._tracker = RequestTracker()

    @property
    def running(self) -> int:
        """Number of requests in progress."""
        return self._tracker.count

    def metrics(self) -> list[MetricFamily]:
        """Gauges for requests in progress and for stored responses."""
        stored_bytes = self._responses.store.memory_bytes
        return [
            MetricFamily.gauge("http_requests_running", "HTTP requests being answered.", self.running),
            MetricFamily.gauge(
                "stored_response_bytes", "Bytes of stored responses that later requests may continue.", stored_bytes
            ),
        ]

    async def drain(self, seconds: float) -> bool:
        """Reject new requests and wait for those in progress; return whether all ended within `seconds`."""
        return await self._tracker.drain(seconds)

    def routes(self) -> list[BaseRoute]:
        """Routes for a starlette application, with and without the prefix `/v1`."""
        counted = [Middleware(self._tracker.around)]
        routes = [(route, self._guarded(route.handler)) for route in self._endpoints()]
        routes += [
            (route, self._guarded(route.handler, self._messages.refusal)) for route in self._messages.endpoints()
        ]
        return [
            Route(prefix + route.path, handler, methods=[route.method], middleware=counted)
            for route, handler in routes
            for prefix in (FRONT, "")
        ]

    def _endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/openapi.json", self._document),
            Endpoint("GET", "/models", self._list),
            Endpoint("GET", "/models/{name:path}", self._one_model),
            Endpoint("POST", "/chat/completions", self._chat, requests.ChatCompletionRequest),
            Endpoint("POST", "/completions", self._completions, requests.CompletionRequest),
            Endpoint("POST", "/embeddings", self._embeddings, requests.EmbeddingRequest),
            Endpoint("POST", "/rerank", self._rerank, requests.EmbeddingRequest),
            Endpoint("POST", "/score", self._rerank, requests.EmbeddingRequest),
            *TokenizingRoutes(self._models).endpoints(),
            *self._responses.endpoints(),
        ]

    async def _document(self, _request: Request) -> Response:
        """The OpenAPI document of these routes."""
        return json_response(document([*self._endpoints(), *self._messages.endpoints()]))

    def _guarded(self, handler: Handler, refusal: Callable[[ApiError], Response] = _refusal) -> Handler:
        """The handler, with errors turned into responses in the API's form."""

        async def answer(request: Request) -> Response:
            if self._tracker.draining:
                sentence = "the server is shutting down; connect again when it is back"
                return refusal(ApiError(503, sentence, code="overloaded"))
            try:
                response: Response = await handler(request)
            except ApiError as error:
                return refusal(error)
            except LmtoolError as problem:
                return refusal(errors.from_error(problem))
            except ClientDisconnect:
                return Response(status_code=499)  # the client has disconnected
            return response

        return answer

    async def _list(self, _request: Request) -> Response:
        """List the models."""
        entries = self._catalogue.models()
        cards = [self._card(entry, name) for entry in entries for name in (entry.name, *entry.aliases)]
        return json_response({"object": "list", "data": cards})

    async def _one_model(self, request: Request) -> Response:
        """A model by its name."""
        name = request.path_params["name"]
        entry = self._catalogue.entry(name)
        return json_response(self._card(entry, name if name in entry.aliases else entry.name))

    def _card(self, entry: ModelEntry, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "lmtool",
            "root": entry.name,
            "max_model_len": entry.context_length,
            "phase": entry.phase,
            "error": entry.error,
            "sampling_defaults": entry.sampling_defaults,
            "size_bytes": entry.size_bytes,
            "idle_seconds": entry.idle_seconds,
        }

    async def _embeddings(self, request: Request) -> Response:
        """Rejected: the models here have no embeddings."""
        why = (
            "was trained to continue texts, not to compare them: what its layers hold is no embedding, and none is "
            "made up here; ask a server of an embedding model"
        )
        raise await self._unsupported(request, why)

    async def _rerank(self, request: Request) -> Response:
        """Rejected: the models here do not compare texts."""
        why = (
            "was trained to continue texts, not to compare or to rank them; ask a server of a model that was, or take "
            "the likelihood of one text behind another: /v1/completions with echo and logprobs"
        )
        raise await self._unsupported(request, why)

    async def _unsupported(self, request: Request, why: str) -> ApiError:
        entry = self._catalogue.entry(await self._models.read(request, _model_name))
        return ApiError(400, f"{entry.name} {why}", param="model", code="unsupported_model")

    async def _chat(self, request: Request) -> Response:
        """Continue a conversation (OpenAI's chat completions)."""
        call = await self._models.read(request, requests.chat, max_logprobs=self._max_logprobs)
        return await self._run(request, "chat", call)

    async def _completions(self, request: Request) -> Response:
        """Continue a text (OpenAI's completions)."""
        call = await self._models.read(request, requests.completion, max_logprobs=self._max_logprobs)
        return await self._run(request, "text", call)

    async def _run(self, request: Request, kind: Kind, call: Call) -> Response:
        generation = await prepare(self._models, call, count=call.continuous_usage)
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        number = call.request_id or uuid.uuid4().hex
        reply = Reply(
            kind,
            f"{prefix}-{number}",
            int(time.time()),
            generation.served.info.model,
            generation.prompt_ids,
            call.n,
            call.tokens_as_ids,
        )
        if call.stream:
            return await EventStream(replies.events(generation, reply)).start(request.receive)
        return json_response(await unless_gone(request.receive, replies.whole(generation, reply)))


def _model_name(body: Mapping[str, object]) -> str | None:
    return decode(requests.EmbeddingRequest, body).model
