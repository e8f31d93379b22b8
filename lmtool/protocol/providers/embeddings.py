"""Embeddings: requests and answers of the providers that have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.protocol.providers.json_values import count_of, list_of, load, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.protocol.providers.answer_events import Api
    from lmtool.protocol.providers.http_request import HttpRequest, Settings
    from lmtool.protocol.providers.provider import Provider

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
