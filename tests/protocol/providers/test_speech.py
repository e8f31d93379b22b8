"""Speech, by the official client's side."""

from __future__ import annotations

import email
import json
from typing import cast

import openai
import pytest

from lmtool.core.errors import RequestError
from lmtool.net.access.secret import Secret
from lmtool.net.http_client import open_client
from lmtool.protocol.providers.embeddings_and_speech import (
    has_speech,
    read_transcription,
    speech_request,
    transcription_request,
)
from lmtool.protocol.providers.provider import Settings
from lmtool.protocol.providers.registry import ANTHROPIC, AZURE, OPENAI
from tests.fake_upstream import Behaviour, FakeUpstream, Received

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
