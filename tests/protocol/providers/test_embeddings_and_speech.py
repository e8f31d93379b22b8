"""Embeddings, transcription and speech synthesis, as sent by the official clients."""

from __future__ import annotations

import email
import json
from typing import Any, cast

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
    has_speech,
    read_embeddings,
    read_transcription,
    speech_request,
    transcription_request,
)
from lmtool.protocol.providers.provider import Settings
from lmtool.protocol.providers.registry import ANTHROPIC, AZURE, OPENAI, PROVIDERS, provider_for
from tests.fake_upstream import Behaviour, FakeUpstream, Received

VECTORS = ((0.5, -1.0), (2.0, 0.25))
OPENAI_ANSWER = {
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
        ("openai", "", "/embeddings", OPENAI_ANSWER),
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


AUDIO = b"RIFF\x00\r\n--x\r\n\xff"


def fields(request: Received) -> dict[str, bytes]:
    """The fields of a form."""
    message = email.message_from_bytes(
        f"content-type: {request.headers['content-type']}\r\n\r\n".encode() + request.body
    )
    parts = cast("list[email.message.Message]", message.get_payload())
    return {
        str(part.get_param("name", header="content-disposition")): cast("bytes", part.get_payload(decode=True))
        for part in parts
    }


async def test_transcription() -> None:
    """The form is that of the official client, and so is the text."""
    async with FakeUpstream(Behaviour(body=b'{"text": "Zo\xc3\xab"}')) as upstream, open_client() as client:
        settings = Settings(upstream.url, Secret("k"))
        request = transcription_request(OPENAI, AUDIO, 'a"\r\n.wav', "m", settings, {"language": "nl"})
        async with client.post(request.url, data=request.body, headers=request.wire_headers()) as response:
            assert read_transcription(await response.read()) == "Zoë"
        async with openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0) as other:
            file = ("a.wav", AUDIO)
            theirs = await other.audio.transcriptions.create(
                model="m", file=file, language="nl", response_format="json"
            )
        assert theirs.text == "Zoë"
    ours, official = upstream.received
    assert ours.path == official.path == "/audio/transcriptions"
    assert fields(ours) == fields(official)
    assert fields(ours)["file"] == AUDIO


async def test_synthesis() -> None:
    """The request is that of the official client; the answer's body is the audio."""
    async with FakeUpstream(Behaviour(body=AUDIO, content_type="audio/wav")) as upstream, open_client() as client:
        settings = Settings(upstream.url, Secret("k"))
        request = speech_request(OPENAI, "Hi", "alloy", "wav", "m", settings)
        async with client.post(request.url, data=request.body, headers=request.wire_headers()) as response:
            assert await response.read() == AUDIO
        async with openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0) as other:
            await other.audio.speech.create(model="m", input="Hi", voice="alloy", response_format="wav")
    ours, official = upstream.received
    assert (ours.path, ours.json) == (official.path, official.json)


def test_who_has_speech() -> None:
    """OpenAI's API and Azure's; that is said."""
    settings = Settings("https://x", Secret("k"))
    assert [has_speech(one) for one in (OPENAI, AZURE, ANTHROPIC)] == [True, True, False]
    with pytest.raises(RequestError, match="anthropic has neither"):
        speech_request(ANTHROPIC, "Hi", "alloy", "wav", "m", settings)
    request = speech_request(AZURE, "Hi", "alloy", "wav", "m", settings)
    assert request.url == "https://x/openai/deployments/m/audio/speech?api-version=2024-10-21"


def test_fields_that_no_form_can_have() -> None:
    """A name with a line break would be another part of the form."""
    with pytest.raises(RequestError, match="is not a valid field name"):
        transcription_request(OPENAI, AUDIO, "a", "m", Settings(), {'x"\r\n': "1"})


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", json.dumps({"text": 5}).encode()])
def test_malformed_transcriptions(body: bytes) -> None:
    """What has no text is none."""
    assert read_transcription(body) is None
