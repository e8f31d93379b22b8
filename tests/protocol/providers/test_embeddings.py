"""Embeddings, by the official clients' side."""

from __future__ import annotations

import json
from typing import Any

import cohere
import openai
import pytest

from lmtool.core.errors import RequestError
from lmtool.net.access.secret import Secret
from lmtool.net.http_client import open_client
from lmtool.protocol.providers.embeddings_and_speech import (
    Embeddings,
    embedding_request,
    has_embeddings,
    read_embeddings,
)
from lmtool.protocol.providers.provider import Settings
from lmtool.protocol.providers.registry import PROVIDERS, provider_for
from tests.fake_upstream import Behaviour, FakeUpstream

VECTORS = ((0.5, -1.0), (2.0, 0.25))
OPENAI = {
    "object": "list",
    "model": "m",
    "data": [{"object": "embedding", "index": i, "embedding": VECTORS[i]} for i in (1, 0)],
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}
META = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 4}}
COHERE = {"id": "e", "response_type": "embeddings_by_type", "embeddings": {"float": VECTORS}, "texts": ["a", "b"]}
OLLAMA = {"model": "m", "embeddings": VECTORS, "prompt_eval_count": 4}


async def theirs(name: str, url: str) -> list[list[float]]:
    """The vectors that an official client reads."""
    if name == "openai":
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            answer = await client.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
            return [one.embedding for one in sorted(answer.data, key=lambda one: one.index)]
    other = cohere.AsyncClientV2(base_url=url, api_key="k")
    words: dict[str, Any] = {"input_type": "search_document", "embedding_types": ["float"]}
    found = await other.embed(model="m", texts=["a", "b"], **words)
    await other._client_wrapper.httpx_client.httpx_client.aclose()
    return list(found.embeddings.float_ or ())


@pytest.mark.parametrize(
    ("name", "below", "path", "answer"),
    [
        ("openai", "", "/embeddings", OPENAI),
        ("cohere", "/v2", "/v2/embed", {**COHERE, "meta": META}),
        ("ollama", "", "/api/embed", OLLAMA),
    ],
)
async def test_embeddings(name: str, below: str, path: str, answer: dict[str, Any]) -> None:
    """The request is that of the official client, and so are the vectors, in the order of the texts."""
    async with FakeUpstream(Behaviour(body=json.dumps(answer).encode())) as upstream, open_client() as client:
        settings = Settings(upstream.url + below, Secret("k"))
        request = embedding_request(provider_for(name, settings), ["a", "b"], "m", settings)
        async with client.post(request.url, data=request.body, headers=request.wire_headers()) as response:
            found = read_embeddings(await response.read(), 2)
        assert found == Embeddings(VECTORS, 4)
        (ours,) = upstream.received
        assert ours.path == path
        if name == "ollama":
            assert ours.json == {"model": "m", "input": ["a", "b"]}
            return
        assert await theirs(name, upstream.url) == [list(one) for one in VECTORS]
        assert upstream.received[1].path == ours.path
        assert upstream.received[1].json == ours.json


def test_who_has_them() -> None:
    """All but Anthropic; that is said."""
    assert [name for name, one in PROVIDERS.items() if not has_embeddings(one)] == ["anthropic"]
    with pytest.raises(RequestError, match="anthropic has no embeddings"):
        embedding_request(PROVIDERS["anthropic"], ["a"], "m", Settings())


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"embeddings": [[1.0]]}',
        b'{"embeddings": [[1.0], []]}',
        b'{"embeddings": [[1.0], ["x"]]}',
        b'{"embeddings": [[1.0], [NaN]]}',
        b'{"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [2.0]}]}',
        b'{"data": [{"index": 0, "embedding": [1.0]}, {"index": 7, "embedding": [2.0]}]}',
    ],
)
def test_malformed_answers(body: bytes) -> None:
    """Too few vectors, empty ones, and what is no finite number."""
    assert read_embeddings(body, 2) is None
