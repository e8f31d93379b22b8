"""Requests and answers for embeddings, transcription and speech synthesis."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.protocol.providers.json_values import count_of, list_of, load, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.protocol.providers.answer_events import Api
    from lmtool.protocol.providers.provider import HttpRequest, Provider, Settings


_PATHS: Mapping[Api, str] = {
    "chat": "/embeddings",
    "cohere_v1": "/embed",
    "cohere_v2": "/embed",
    "ollama": "/api/embed",
}
_COHERE_INPUT = "search_document"
"""Purpose of the texts, which Cohere requires; `extra_body` may override it."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, in order."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int | None = None


def has_embeddings(provider: Provider) -> bool:
    """True if the provider's API has embeddings. A model may still reject the request."""
    return provider.api in _PATHS


def embedding_request(provider: Provider, texts: Sequence[str], model: str, settings: Settings) -> HttpRequest:
    """Request for the embeddings of texts. Raises `RequestError` if the API has none."""
    if not has_embeddings(provider):
        raise RequestError(f"{provider.name} has no embeddings")
    body: dict[str, object] = {"model": model}
    if provider.api in ("cohere_v1", "cohere_v2"):
        body |= {"texts": list(texts), "input_type": _COHERE_INPUT, "embedding_types": ["float"]}
    else:
        body["input"] = list(texts)
    if provider.api == "chat":
        body["encoding_format"] = "float"
    return provider.json_request(_PATHS[provider.api], model, body, settings)


def read_embeddings(body: bytes, expected: int) -> Embeddings | None:
    """Vectors in the body of an answer of any API; None if it is malformed. expected: number of vectors."""
    value = object_of(load(body))
    vectors = tuple(_vectors(value))
    if len(vectors) != expected or not all(vectors):
        return None
    usage, meta = object_of(value.get("usage")), object_of(value.get("meta"))
    counts = (
        usage.get("prompt_tokens"),
        object_of(meta.get("billed_units")).get("input_tokens"),
        value.get("prompt_eval_count"),
    )
    return Embeddings(vectors, next((count for count in map(count_of, counts) if count is not None), None))


def _vectors(value: Mapping[str, object]) -> list[tuple[float, ...]]:
    """Vectors in OpenAI's `data`, which have an index each, or in `embeddings`, which Cohere groups by type."""
    data = [object_of(item) for item in list_of(value.get("data"))]
    if data:
        by_index = {count_of(item.get("index")): _numbers(item.get("embedding")) for item in data}
        return [by_index.get(index, ()) for index in range(len(data))]
    embeddings = value.get("embeddings")
    return [_numbers(vector) for vector in list_of(object_of(embeddings).get("float", embeddings))]


def _numbers(value: object) -> tuple[float, ...]:
    """The value if it is a list of finite numbers; otherwise empty."""
    numbers = list_of(value)
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):  # type: ignore[arg-type]
        return ()
    return tuple(numbers)  # type: ignore[arg-type] # checked above


_FIELD = re.compile(r"[A-Za-z0-9_]+(?:\[\])?")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


def has_speech(provider: Provider) -> bool:
    """True if the provider's API has transcription and speech synthesis. A model may still reject the request."""
    return provider.api == "chat"


def _check(provider: Provider) -> None:
    if not has_speech(provider):
        raise RequestError(f"{provider.name} has neither transcription nor speech synthesis")


def transcription_request(
    provider: Provider,
    audio: bytes,
    file_name: str,
    model: str,
    settings: Settings,
    fields: Mapping[str, str] | None = None,
) -> HttpRequest:
    """Request for the transcription of a recording.

    fields: additional form fields, such as `language` or `prompt`. Raises `RequestError` for an invalid field name, and
    if the API has no transcription.
    """
    _check(provider)
    extra = {name: str(value) for name, value in settings.extra_body.items()}
    parts = {"model": model, "response_format": "json", **(fields or {}), **extra}
    if wrong := next((name for name in parts if not _FIELD.fullmatch(name)), None):
        raise RequestError(f"{wrong!r} is not a valid field name", "use letters, digits and _")
    boundary = hashlib.sha256(audio).hexdigest()  # a recording does not contain its own hash
    head = f'Content-Disposition: form-data; name="file"; filename="{_UNSAFE.sub("_", file_name)}"\r\n'
    body = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode("utf-8", "replace")
        for name, value in parts.items()
    ]
    body += [f"--{boundary}\r\n{head}Content-Type: application/octet-stream\r\n\r\n".encode("utf-8", "replace"), audio]
    body.append(f"\r\n--{boundary}--\r\n".encode())
    content_type = f"multipart/form-data; boundary={boundary}"
    return provider.post("/audio/transcriptions", model, b"".join(body), content_type, settings)


def read_transcription(body: bytes) -> str | None:
    """Text of an answer; None if it is malformed."""
    text = object_of(load(body)).get("text")
    return text if isinstance(text, str) else None


def speech_request(
    provider: Provider, text: str, voice: str, audio_format: str, model: str, settings: Settings
) -> HttpRequest:
    """Request for speech synthesis; the body of its answer is the audio. Raises `RequestError`."""
    _check(provider)
    body = {"model": model, "input": text, "voice": voice, "response_format": audio_format}
    return provider.json_request("/audio/speech", model, body, settings)
