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
"""What the texts are for, which Cohere wants to know; `extra_body` may say otherwise."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, in order."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int | None = None


def has_embeddings(provider: Provider) -> bool:
    """Whether the provider's API has embeddings; whether a model makes them shows when it is asked."""
    return provider.api in _PATHS


def embedding_request(provider: Provider, texts: Sequence[str], model: str, settings: Settings) -> HttpRequest:
    """The request for the embeddings of texts. Raises `RequestError` where the API has none."""
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
    """The vectors in the body of an answer, of whichever API; None where it is malformed.

    expected: how many there must be.
    """
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
    return Embeddings(vectors, next((one for one in map(count_of, counts) if one is not None), None))


def _vectors(value: Mapping[str, object]) -> list[tuple[float, ...]]:
    """OpenAI's `data`, each with its index; lists in `embeddings`, which Cohere has by type."""
    data = [object_of(one) for one in list_of(value.get("data"))]
    if data:
        indexed = [(count_of(one.get("index")), _numbers(one.get("embedding"))) for one in data]
        places = {place: vector for place, vector in indexed if place is not None}
        return [places.get(place, ()) for place in range(len(data))]
    found = value.get("embeddings")
    return [_numbers(one) for one in list_of(object_of(found).get("float", found))]


def _numbers(value: object) -> tuple[float, ...]:
    """A vector of finite numbers; an empty one for anything else."""
    numbers = list_of(value)
    if not all(type(one) in (int, float) and math.isfinite(one) for one in numbers):  # type: ignore[arg-type]
        return ()
    return tuple(numbers)  # type: ignore[arg-type] # as just seen


_FIELD = re.compile(r"[A-Za-z0-9_]+(?:\[\])?")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


def has_speech(provider: Provider) -> bool:
    """Whether the provider's API has speech; whether a model makes it shows when it is asked."""
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
    """The request for the text of a recording.

    fields: further ones of the form, such as `language` or `prompt`. Raises `RequestError` for names of fields that a
    form cannot have, and where the API has no transcription.
    """
    _check(provider)
    extra = {name: str(value) for name, value in settings.extra_body.items()}
    parts = {"model": model, "response_format": "json", **(fields or {}), **extra}
    if wrong := next((name for name in parts if not _FIELD.fullmatch(name)), None):
        raise RequestError(f"{wrong!r} is no name of a field", "letters, digits and _")
    boundary = hashlib.sha256(audio).hexdigest()  # no recording has its own hash in it
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
    """The text in an answer; None where it is malformed."""
    text = object_of(load(body)).get("text")
    return text if isinstance(text, str) else None


def speech_request(
    provider: Provider, text: str, voice: str, audio_format: str, model: str, settings: Settings
) -> HttpRequest:
    """The request for a text to be spoken; the body of its answer is the audio. Raises `RequestError`."""
    _check(provider)
    body = {"model": model, "input": text, "voice": voice, "response_format": audio_format}
    return provider.json_request("/audio/speech", model, body, settings)
