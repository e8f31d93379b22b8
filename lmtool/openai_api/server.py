"""The routes: read a request, run its streams, answer whole or by server-sent events (HTML, 9.2)."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from lmtool import ports
from lmtool.errors import LmtoolError
from lmtool.openai_api import errors, requests
from lmtool.openai_api.errors import ApiError
from lmtool.openai_api.replies import Answer, Pieces, Reply, chat_logprobs, text_logprobs
from lmtool.types import GenerateRequest, ModelInfo, ScoreRequest, TokenOutput, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

    from lmtool.openai_api.replies import Route as Kind
    from lmtool.openai_api.requests import Call
    from lmtool.ports import TokenModel

    Handler: TypeAlias = "Callable[[Request], Any]"

MOST_BYTES = 4 << 20
"""Of a request's body."""
_SERVER_SENT = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Spelling(Pieces, Protocol):
    """A served model's tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids."""


class OpenAIServer:
    """Answers OpenAI's API over a token model."""

    def __init__(
        self, model: TokenModel, tokenizer: Callable[[str | None], Spelling | None], api_key: str | None = None
    ) -> None:
        """tokenizer: of a served name, None where it has none. api_key: what clients must show as a bearer token."""
        self._model = model
        self._tokenizer = tokenizer
        self._key = api_key
        self._created = int(time.time())

    def routes(self) -> list[BaseRoute]:
        """Routes for a starlette application, with and without `/v1` in front."""
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/models", self._models),
            ("GET", "/models/{name:path}", self._one_model),
            ("POST", "/chat/completions", self._chat),
            ("POST", "/completions", self._completions),
            ("POST", "/tokenize", self._tokenize),
            ("POST", "/detokenize", self._detokenize),
        ]
        return [
            Route(front + path, self._guarded(handler), methods=[method])
            for method, path, handler in handlers
            for front in ("/v1", "")
        ]

    def _guarded(self, handler: Handler) -> Handler:
        """The handler behind the key, with errors in OpenAI's form."""

        async def answer(request: Request) -> Response:
            try:
                self._check_key(request)
                response: Response = await handler(request)
            except ApiError as error:
                return JSONResponse(error.body, error.status)
            except LmtoolError as problem:
                told = errors.of(problem)
                return JSONResponse(told.body, told.status)
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it
            return response

        return answer

    def _check_key(self, request: Request) -> None:
        if self._key is None:
            return
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), self._key.encode()):
            raise ApiError(401, "this server wants another API key: send it as Authorization: Bearer KEY")

    async def _models(self, _request: Request) -> Response:
        info = await self._model.info()
        return JSONResponse({"object": "list", "data": [self._card(info)]})

    async def _one_model(self, request: Request) -> Response:
        return JSONResponse(self._card(await self._model.info(request.path_params["name"])))

    def _card(self, info: ModelInfo) -> dict[str, object]:
        return {
            "id": info.model,
            "object": "model",
            "created": self._created,
            "owned_by": "lmtool",
            "max_model_len": info.context_length,
        }

    async def _tokenize(self, request: Request) -> Response:
        body = await _body(request)
        prompt, model = body.get("prompt"), body.get("model")
        if not isinstance(prompt, str):
            raise ApiError(400, "prompt is missing; expected a text", param="prompt")
        tokens = (await self._spelling(model)).encode(prompt, special=bool(body.get("add_special_tokens", True)))
        info = await self._model.info(model)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": info.context_length})

    async def _detokenize(self, request: Request) -> Response:
        body = await _body(request)
        tokens, model = body.get("tokens"), body.get("model")
        vocabulary = (await self._model.info(model)).vocab_size or 0
        if not isinstance(tokens, list) or not all(isinstance(one, int) and 0 <= one < vocabulary for one in tokens):
            raise ApiError(400, f"tokens must be a list of ids from 0 to {vocabulary - 1}", param="tokens")
        return JSONResponse({"prompt": (await self._spelling(model)).decode(tokens)})

    async def _chat(self, request: Request) -> Response:
        return await self._run(request, "chat", requests.chat(await _body(request)))

    async def _completions(self, request: Request) -> Response:
        return await self._run(request, "text", requests.completion(await _body(request)))

    async def _spelling(self, model: str | None) -> Spelling:
        await self._model.info(model)  # an unknown name, or one that still loads
        spelling = self._tokenizer(model)
        if spelling is None:
            raise ApiError(400, "this model has no tokenizer: it takes and gives token ids only", param="model")
        return spelling

    async def _run(self, request: Request, kind: Kind, call: Call) -> Response:
        info = await self._model.info(call.model)
        spelt = call.logprobs is not None or call.echo
        pieces = await self._spelling(call.model) if spelt else None
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        reply = Reply(kind, f"{prefix}-{uuid.uuid4().hex}", int(time.time()), info.model)
        if call.stream:
            events = self._events(call, reply, pieces)
            first = await anext(events)  # what cannot be answered at all is a status, not an event
            return StreamingResponse(_server_sent(first, events), media_type="text/event-stream", headers=_SERVER_SENT)
        return await _unless_gone(request, self._whole(call, reply, pieces))

    async def _whole(self, call: Call, reply: Reply, pieces: Spelling | None) -> Response:
        answers = [Answer(index, call.logprobs) for index in range(len(call.prompts) * call.n)]
        echoes = []
        if call.echo and pieces is not None:
            echoes = [await self._echo(call, index, pieces) for index in range(len(answers))]
        async with contextlib.aclosing(self._outputs(call)) as outputs:
            async for index, output in outputs:
                answers[index].add(output)
        for answer, (text, scored) in zip(answers, echoes, strict=False):
            answer.text, answer.outputs = text + answer.text, [*scored, *answer.outputs]
        return JSONResponse(reply.whole(answers, _total(call, answers), pieces))

    async def _echo(self, call: Call, index: int, pieces: Spelling) -> tuple[str, list[TokenOutput]]:
        """An answer's prompt as text, and, where logprobs are wanted, as if it had been generated."""
        prompt = call.prompts[index // call.n]
        if isinstance(prompt, str):
            text, ids = prompt, tuple(pieces.encode(prompt))
        else:
            ids = tuple(one for one in prompt if isinstance(one, int))
            text = pieces.decode(ids)
        if call.logprobs is None or not ids:
            return text, []
        request = ScoreRequest(index, ids[:1], ids[1:], call.model, call.logprobs)
        scored = [output async for output in ports.stream(self._model, request)]
        _raise_error(scored[-1])
        return text, [TokenOutput(index, ids[0]), *(output for output in scored if output.token is not None)]

    async def _events(
        self, call: Call, reply: Reply, pieces: Spelling | None
    ) -> AsyncGenerator[dict[str, object], None]:
        answers = [Answer(index, call.logprobs) for index in range(len(call.prompts) * call.n)]
        begun: set[int] = set()
        form = chat_logprobs if reply.route == "chat" else text_logprobs
        async with contextlib.aclosing(self._outputs(call)) as outputs:
            async for index, output in outputs:
                if reply.route == "chat" and index not in begun:
                    begun.add(index)
                    yield reply.start(index)
                offset = (len(answers[index].text),) if reply.route == "text" else ()
                answers[index].add(output)
                shown = [output] if output.token is not None else []
                told = None if call.logprobs is None or pieces is None else form(shown, pieces, call.logprobs, *offset)
                if output.text or told or output.finish_reason:
                    yield reply.piece(index, output.text or "", [output], told, output.finish_reason)
        if call.include_usage:
            yield reply.usage(_total(call, answers))

    async def _outputs(self, call: Call) -> AsyncGenerator[tuple[int, TokenOutput], None]:
        """Outputs of all answers as they come, with their index. Raises `ApiError` when one fails; ends all then."""
        queue: asyncio.Queue[tuple[int, TokenOutput]] = asyncio.Queue(256)

        async def pump(index: int) -> None:
            sampling = replace(call.sampling, seed=call.seed(index))
            prompt = call.prompts[index // call.n]
            request = GenerateRequest(index, prompt, sampling, call.model, text=True, constraint=call.constraint)
            async for output in ports.stream(self._model, request):
                await queue.put((index, output))

        running = len(call.prompts) * call.n
        pumps = [asyncio.create_task(pump(index)) for index in range(running)]
        try:
            while running:
                index, output = await queue.get()
                _raise_error(output)
                running -= output.last
                yield index, output
        finally:
            for one in pumps:
                one.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


def _raise_error(output: TokenOutput) -> None:
    if output.error is not None:
        raise errors.api_error(output.error, output.error_code)


def _total(call: Call, answers: Sequence[Answer]) -> Usage:
    """Each prompt once, however many answers it has."""
    used = [answer.usage for answer in answers if answer.usage is not None]
    firsts = used[:: call.n]
    return Usage(
        sum(usage.prompt_tokens for usage in firsts),
        sum(usage.completion_tokens for usage in used),
        sum(usage.cached_tokens for usage in firsts),
    )


async def _body(request: Request) -> Mapping[str, Any]:
    """The request's JSON object. Raises `ApiError`."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BYTES:
            raise ApiError(413, f"the request has more than {MOST_BYTES} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the request is not a JSON object")
    return body


async def _server_sent(first: dict[str, object], events: AsyncIterator[dict[str, object]]) -> AsyncIterator[str]:
    """Events on the wire; an error in their midst is the last one before `[DONE]`."""
    yield f"data: {json.dumps(first)}\n\n"
    try:
        async for event in events:
            yield f"data: {json.dumps(event)}\n\n"
    except ApiError as error:
        yield f"data: {json.dumps(error.body)}\n\n"
    yield "data: [DONE]\n\n"


async def _unless_gone(request: Request, work: Any) -> Response:  # noqa: ANN401  # a coroutine of a Response
    """What `work` answers; given up when the client hangs up meanwhile, which ends its streams."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        response: Response = working.result()
        return response
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
