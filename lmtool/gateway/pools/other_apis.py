"""Routes of the unified API that are no chat of texts: embeddings, speech, images, as members have them."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta
from starlette.responses import Response

from lmtool.core.errors import RequestError
from lmtool.core.types import ChatMessage
from lmtool.gateway.pools.caller import Caller
from lmtool.gateway.pools.pool_answer import begin_answer
from lmtool.gateway.pools.pool_fetch import Exchange, begin
from lmtool.gateway.pools.pool_request import PoolRequest
from lmtool.gateway.pools.recordings import read_recording
from lmtool.gateway.pools.unified_replies import Reply
from lmtool.protocol.http.decoding import Fields, decode, read_object, refuse, wrong
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.http import json_response, read_body, unless_gone
from lmtool.protocol.http.requests import Deadline
from lmtool.protocol.providers.chat_request import ChatRequest, MultimodalMessage
from lmtool.protocol.providers.embeddings_and_speech import (
    embedding_request,
    has_embeddings,
    has_speech,
    read_embeddings,
    read_transcription,
    speech_request,
    transcription_request,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from lmtool.gateway.pools.pool import Pool
    from lmtool.gateway.pools.pool_answer import PoolAnswer
    from lmtool.gateway.pools.pool_fetch import PoolFetch

MAX_TEXTS = 2048
"""Texts of one request for embeddings."""
_SPOKEN = {
    "aac": "audio/aac",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
}
MAX_PARTS = 1000
_PARTS: dict[str, type] = {"text": str, "image_url": dict, "input_audio": dict}
"""Types of parts of a content, and what the member of the same name is."""
_IMAGE = re.compile(r"https?://.|data:image/[a-z0-9.+-]+;base64,.")
_Text = Annotated[str, Meta(min_length=1)]


class EmbeddingRequest(Fields, kw_only=True):
    """A request to `/v1/embeddings/{pool}/embed`."""

    input: Annotated[
        _Text | Annotated[list[_Text], Meta(min_length=1, max_length=MAX_TEXTS)],
        Meta(description=f"a text, or 1 to {MAX_TEXTS} of them, none empty"),
    ]
    deadline: Deadline | None = None


class SpeechRequest(Fields, kw_only=True):
    """A request to `/v1/speech/synthesizers/{pool}`."""

    text: _Text
    voice: _Text = "alloy"
    format: Literal["aac", "flac", "mp3", "opus", "pcm", "wav"] = "mp3"
    deadline: Deadline | None = None


class MultimodalMessageFields(Fields, kw_only=True):
    """A turn of a conversation with more than text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_PARTS)]

    def turn(self, place: str) -> ChatMessage:
        """The turn. Raises `ApiError` for a part of a kind that is not known."""
        if isinstance(self.content, str):
            return ChatMessage(self.role, self.content)
        for at, part in enumerate(self.content):
            kind = part.get("type")
            expected = _PARTS.get(kind) if isinstance(kind, str) else None
            if not isinstance(kind, str) or expected is None:
                raise wrong(f"{place}.content[{at}].type", kind, "one of " + ", ".join(_PARTS))
            if not isinstance(part.get(kind), expected):
                raise wrong(
                    f"{place}.content[{at}].{kind}", part.get(kind), "a text" if expected is str else "an object"
                )
            _check_media(part, f"{place}.content[{at}]")
        return MultimodalMessage.of(self.role, self.content)


def _check_media(part: Mapping[str, Any], place: str) -> None:
    """Raise `ApiError` for an image or a sound that no provider could read."""
    if part["type"] == "image_url":
        url = part["image_url"].get("url")
        if not isinstance(url, str) or not _IMAGE.match(url):
            raise wrong(f"{place}.image_url.url", url, "an http address, or data:image/TYPE;base64,DATA")
    elif part["type"] == "input_audio":
        for name in ("data", "format"):
            value = part["input_audio"].get(name)
            if not isinstance(value, str) or not value:
                raise wrong(f"{place}.input_audio.{name}", value, "a text")


class MultimodalRequest(Fields, kw_only=True):
    """A request to `/v1/multi/{pool}/multimodal`."""

    message: MultimodalMessageFields
    messageHistory: list[MultimodalMessageFields] | None = None  # noqa: N815  # GEP's name
    message_history: list[MultimodalMessageFields] | None = None
    deadline: Deadline | None = None


async def embed(request: Request, pool: Pool) -> tuple[Response, PoolFetch[Any]]:
    """One vector for each text. Raises `ApiError`, `PoolFailedError`."""
    arrived = asyncio.get_running_loop().time()
    asked = read_object(partial(decode, EmbeddingRequest), await read_body(request))
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    call = begin(
        pool,
        Exchange(
            "embeddings",
            has_embeddings,
            partial(embedding_request, texts=texts),
            lambda _, body: read_embeddings(body, len(texts)),
            "\n".join(texts),
            lambda answer: answer.prompt_tokens,
        ),
        Caller(deadline=asked.deadline, arrived=arrived),
    )
    answer = await unless_gone(request.receive, call.result())
    count = answer.prompt_tokens
    tokens = {"prompt_tokens": count, "response_tokens": 0, "total_tokens": count}
    return _reply(call, {"embeddings": answer.vectors, "token_count": tokens}), call


async def transcribe(request: Request, pool: Pool) -> tuple[Response, PoolFetch[Any]]:
    """The text of a recording, which is the body itself or a form's file. Raises `ApiError`, `PoolFailedError`."""
    arrived = asyncio.get_running_loop().time()
    recording = await read_recording(request, pool.id)
    if not recording.audio:
        raise ApiError(400, "the recording is empty; expected its bytes", param="file")
    fields, name = recording.hints, f"audio.{recording.ending}"
    write = partial(transcription_request, audio=recording.audio, file_name=name, fields=fields)
    exchange = Exchange("transcription", has_speech, write, lambda _, body: read_transcription(body))
    call = begin(pool, exchange, Caller(deadline=recording.deadline, arrived=arrived))
    text = await unless_gone(request.receive, call.result())
    return _reply(call, {"text": text}), call


async def speak(request: Request, pool: Pool) -> tuple[Response, PoolFetch[Any]]:
    """A text as audio, which is the whole answer. Raises `ApiError`, `PoolFailedError`."""
    arrived = asyncio.get_running_loop().time()
    asked = read_object(partial(decode, SpeechRequest), await read_body(request))
    write = partial(speech_request, text=asked.text, voice=asked.voice, audio_format=asked.format)
    exchange = Exchange("speech synthesis", has_speech, write, _audio, asked.text)
    call = begin(pool, exchange, Caller(deadline=asked.deadline, arrived=arrived))
    audio = await unless_gone(request.receive, call.result())
    return Response(audio, media_type=_SPOKEN[asked.format]), call


def _audio(content_type: str, body: bytes) -> bytes | None:
    """The body if it is audio and not, for one, an error's text."""
    is_audio = content_type.lower().startswith(("audio/", "application/octet-stream"))
    return body if is_audio and body else None


async def multimodal(request: Request, pool: Pool) -> tuple[Response, PoolAnswer]:
    """A chat with images and sounds, in one piece. Raises `ApiError`, `PoolFailedError`."""
    arrived = asyncio.get_running_loop().time()
    asked = read_object(partial(decode, MultimodalRequest), await read_body(request))
    history = asked.messageHistory or asked.message_history or []
    if asked.messageHistory and asked.message_history:
        refuse("message_history", "messageHistory and message_history are one thing; send one of them")
    turns = [one.turn(f"message_history[{at}]") for at, one in enumerate(history)]
    chat = ChatRequest((*turns, asked.message.turn("message")))
    try:
        answer = begin_answer(pool, PoolRequest(chat), Caller(deadline=asked.deadline, arrived=arrived))
    except RequestError as error:
        raise ApiError(501, error.sentence, code="not_implemented") from None
    reply = Reply(answer)
    await unless_gone(request.receive, reply.collect())
    return json_response(reply.whole()), answer


def _reply(call: PoolFetch[Any], provider_response: dict[str, Any]) -> Response:
    reply = Reply(call)
    provider_response = {"response_id": {"id": reply.id}, **provider_response}
    cost = {} if call.cost is None else {"cost": round(call.cost, 9)}
    return json_response(reply.head() | {"provider_response": provider_response} | cost)


ROUTES = {
    "/v1/embeddings/{pool}/embed": embed,
    "/v1/speech/transcribers/{pool}": transcribe,
    "/v1/speech/synthesizers/{pool}": speak,
    "/v1/multi/{pool}/multimodal": multimodal,
}
"""Handlers by path; each gives its response and the calls that were made for it."""
