"""Embeddings, transcription and speech synthesis through a pool."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartParser

from tests.fake_upstream import BAD, Behaviour, FakeUpstream, Received
from tests.gateway.pools.running import KEY, gateway, member, pool

VECTORS = [[0.5, -1.0], [2.0, 0.25]]
OPENAI = {"data": [{"index": i, "embedding": one} for i, one in enumerate(VECTORS)], "usage": {"prompt_tokens": 4}}
COHERE = {"embeddings": {"float": VECTORS}, "meta": {"billed_units": {"input_tokens": 4}}}
EMBED = "/v1/embeddings/default/embed/"
TRANSCRIBE = "/v1/speech/transcribers/default/"
MULTIMODAL = "/v1/multi/default/multimodal/"
SPEAK = "/v1/speech/synthesizers/default/"


def answering(value: object, content_type: str = "application/json") -> Behaviour:
    """A provider's answer."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Behaviour(body=body, content_type=content_type)


async def test_embeddings_fall_back() -> None:
    """The next member that can answers where one fails; counts, costs and attempts are told; Anthropic is not asked."""
    async with FakeUpstream(BAD["500"]) as ill, FakeUpstream(answering(COHERE)) as well, FakeUpstream() as other:
        members = [
            member("first", other, "anthropic"),
            member("second", ill),
            member("third", well, "cohere", prices="{prompt: 2}"),
        ]
        async with gateway(pool(*members)) as running:
            status, headers, answer = await running.post(EMBED, {"input": ["a", "b"]})
    assert status == 200
    assert answer["provider_response"]["embeddings"] == VECTORS
    assert answer["provider_response"]["token_count"] == {"prompt_tokens": 4, "response_tokens": 0, "total_tokens": 4}
    assert {name: answer[name] for name in ("provider", "pool", "model", "model_id", "cached", "cost")} == {
        "provider": "cohere",
        "pool": "default",
        "model": "model-third",
        "model_id": "third",
        "cached": False,
        "cost": 8e-06,
    }
    assert headers["x-lmtool-attempts"].startswith("second status 500")
    assert "third ok" in headers["x-lmtool-attempts"]
    assert not other.received
    assert well.received[0].json["texts"] == ["a", "b"]


async def test_failures() -> None:
    """Each failure is one of the pool's, in our words; what a member refuses is the request's fault."""
    plans = {name: one for name, one in BAD.items() if one.status != 200 or one.body or one.fault in ("reset", "half")}
    plans["too few vectors"] = answering({"data": OPENAI["data"][:1]})  # type: ignore[index]
    found = {}
    async with FakeUpstream() as upstream:
        for name, behaviour in plans.items():
            upstream.plan.append(behaviour)
            async with gateway(pool(member("main", upstream))) as running:
                status, _, answer = await running.post(EMBED, {"input": ["a", "b"]})
            assert [one["model"] for one in answer["attempts"]] == ["main"]
            assert KEY not in json.dumps(answer)
            found[name] = status
    assert found == {name: 400 if name in ("400", "400 context", "404") else 503 for name in plans}
    assert len(found) > 12


async def test_transcription() -> None:
    """The recording is the body; its content type names the file, the query its language."""
    async with FakeUpstream(answering({"text": "Hello"})) as upstream, gateway(pool(member("a", upstream))) as running:
        headers = {"content-type": "audio/wav"}
        status, _, answer = await running.post(f"{TRANSCRIBE}?language=en", data=b"RIFF\xff", headers=headers)
        assert (status, answer["provider_response"]["text"]) == (200, "Hello")
        assert b'filename="audio.wav"' in upstream.received[0].body
        assert b'name="language"\r\n\r\nen' in upstream.received[0].body
        assert b"RIFF\xff" in upstream.received[0].body
        wrong: list[tuple[int, str, dict[str, Any]]] = [
            (415, TRANSCRIBE, {"data": b"x", "headers": {"content-type": "text/plain"}}),
            (400, f"{TRANSCRIBE}?speaker=1", {"data": b"x", "headers": headers}),
            (400, TRANSCRIBE, {"data": b"", "headers": headers}),
            (413, TRANSCRIBE, {"data": io.BytesIO(bytes((32 << 20) + 1)), "headers": headers}),
        ]
        for expected, path, options in wrong:
            status, _, answer = await running.post(path, **options)
            assert (status, answer["attempts"]) == (expected, [])
        assert len(upstream.received) == 1


def form(**fields: Any) -> aiohttp.FormData:
    """A form; a pair is a file's name and its bytes."""
    data = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        if isinstance(value, tuple):
            data.add_field(name, io.BytesIO(value[1]), filename=value[0], content_type="application/octet-stream")
        else:
            data.add_field(name, value)
    return data


async def test_transcription_of_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """As OpenAI's clients send it: the file's name says its format, model may be the pool."""
    monkeypatch.setattr("lmtool.gateway.pools.recordings.MAX_AUDIO_BYTES", limit := 1 << 20)
    audio = b"RIFF\xff\r\n--\r\n\r\n--x"
    sent = form(file=("speech.MP3", audio), language="en", model="default", response_format="json")
    async with FakeUpstream(answering({"text": "Hello"})) as upstream, gateway(pool(member("a", upstream))) as running:
        status, _, answer = await running.post(TRANSCRIBE, data=sent)
        assert (status, answer["provider_response"]["text"]) == (200, "Hello")
        passed_on = await fields_of(upstream.received[0])
        file = passed_on.pop("file")
        assert isinstance(file, UploadFile)
        assert (file.filename, await file.read()) == ("audio.mp3", audio)
        await file.close()
        assert passed_on == {"model": "model-a", "response_format": "json", "language": "en"}
        head = {"content-type": "multipart/form-data; boundary=x"}
        wav = ("a.wav", b"RIFF")
        wrong: list[tuple[int, str, dict[str, Any]]] = [
            (400, "one file", {"data": form(language="en")}),
            (400, "one file", {"data": form(audio=wav)}),
            (400, "speaker is not known in the form", {"data": form(file=wav, speaker="1")}),
            (400, "model is 'whisper-1'; expected default", {"data": form(file=wav, model="whisper-1")}),
            (400, "response_format is 'srt'", {"data": form(file=wav, response_format="srt")}),
            (400, "recording is empty", {"data": form(file=("a.wav", b""))}),
            (415, "the file is 'a.txt'", {"data": form(file=("a.txt", b"x"))}),
            (400, "Missing boundary", {"data": b"x", "headers": {"content-type": "multipart/form-data"}}),
            (400, "Invalid multipart data", {"data": b"nonsense", "headers": head}),
            (400, "breaks off", {"data": b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1", "headers": head}),
            (
                400,
                "breaks off",
                {"data": b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--", "headers": head},
            ),
            (400, '"name" must be', {"data": b"--x\r\na: b\r\n\r\n1\r\n--x--", "headers": head}),
            (400, "fields is 20", {"data": form(**{f"a{number}": "1" for number in range(21)})}),
            (413, "the recording has more than", {"data": form(file=("a.wav", bytes(limit + 1)))}),
            (413, "the request has more than", {"data": form(file=("a.wav", bytes(2 * limit)))}),
        ]
        for expected, sentence, options in wrong:
            status, _, answer = await running.post(TRANSCRIBE, **options)
            assert (status, answer["attempts"]) == (expected, []), sentence
            assert sentence in answer["message"]
        assert len(upstream.received) == 1


async def fields_of(request: Received) -> dict[str, UploadFile | str]:
    """The fields of the form that a provider got."""

    async def body() -> AsyncGenerator[bytes, None]:
        yield request.body

    return dict(await MultiPartParser(Headers(request.headers), body()).parse())


async def test_synthesis() -> None:
    """The answer is the audio, in the form that was asked for; a text in its place is malformed."""
    async with FakeUpstream() as upstream, gateway(pool(member("a", upstream))) as running:
        upstream.plan += [answering(b"RIFF", "audio/x-anything"), answering({"error": {"message": KEY}})]
        async with running.session.post(running.url + SPEAK, json={"text": "Hi", "format": "wav"}) as response:
            assert (response.status, response.content_type, await response.read()) == (200, "audio/wav", b"RIFF")
            assert response.headers["x-lmtool-attempts"].startswith("a ok")
        assert upstream.received[0].json == {
            "model": "model-a",
            "input": "Hi",
            "voice": "alloy",
            "response_format": "wav",
        }
        status, _, answer = await running.post(SPEAK, {"text": "Hi"})
        assert (status, answer["attempts"][0]["outcome"]) == (503, "malformed answer")


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}
REMOTE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


async def test_images_and_sounds() -> None:
    """Parts go as they are to OpenAI's API, as blocks to Anthropic's, which takes no sounds; Ollama is not asked."""
    text = {"type": "text", "text": "What is it?"}
    async with FakeUpstream() as first, FakeUpstream(BAD["500"]) as second, FakeUpstream() as third:
        members = [
            member("local", first, "ollama"),
            member("claude", second, "anthropic", own=", default_params: {max_tokens: 7}"),
            member("gpt", third),
        ]
        async with gateway(pool(*members)) as running:
            turns = {"messageHistory": [{"role": "system", "content": "Be brief."}]}
            body = {**turns, "message": {"role": "user", "content": [text, PICTURE, REMOTE]}}
            status, headers, answer = await running.post(MULTIMODAL, body)
            heard, _, second_answer = await running.post(MULTIMODAL, {"message": {"role": "user", "content": [SOUND]}})
    assert (status, answer["provider_response"]["message"]["content"], answer["model_id"]) == (200, "Hello", "gpt")
    assert headers["x-lmtool-attempts"].startswith("claude status 500")
    assert third.received[0].json["messages"][1]["content"] == [text, PICTURE, REMOTE]
    sent = second.received[0].json
    assert (sent["system"], sent["max_tokens"]) == ("Be brief.", 7)
    assert sent["messages"][0]["content"] == [
        text,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ]
    assert (heard, second_answer["model_id"]) == (200, "gpt")
    assert (len(first.received), len(second.received)) == (0, 1)


@pytest.mark.parametrize("kind", ["ollama", "cohere"])
async def test_images_in_other_forms(kind: str) -> None:
    """Ollama takes the data of images beside the text; Cohere takes parts as OpenAI's API has them. Neither hears."""
    text = {"type": "text", "text": "What is it?"}
    async with FakeUpstream() as upstream, gateway(pool(member("eye", upstream, kind))) as running:
        body = {"message": {"role": "user", "content": [text, PICTURE, text]}}
        status, _, answer = await running.post(MULTIMODAL, body)
        assert (status, answer["provider_response"]["message"]["content"]) == (200, "Hello")
        status, _, answer = await running.post(MULTIMODAL, {"message": {"role": "user", "content": [text, SOUND]}})
        assert (status, "eye has no sounds" in answer["message"]) == (501, True)
    [received] = upstream.received
    content = "What is it?\nWhat is it?" if kind == "ollama" else [text, PICTURE, text]
    images = {"images": ["iVBORw0="]} if kind == "ollama" else {}
    assert received.json["messages"] == [{"role": "user", "content": content, **images}]


async def test_nobody_sees() -> None:
    """Where no member takes images, that is said."""
    other = '{id: other, lmtp: {endpoint: "ws://127.0.0.1:1/"}}'
    async with FakeUpstream() as upstream, gateway(pool(member("here", upstream, "ollama"), other)) as running:
        status, _, answer = await running.post(MULTIMODAL, {"message": {"role": "user", "content": [REMOTE]}})
    assert status == 501
    assert "here has no image_urls; other has no image_urls" in answer["message"]
    assert not upstream.received


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (EMBED, {"input": []}, 400, "input"),
        (EMBED, {"input": [""]}, 400, "input"),
        (EMBED, {"texts": ["a"]}, 400, "texts"),
        (EMBED, {}, 400, "input"),
        (SPEAK, {"text": "a", "format": "midi"}, 400, "format"),
        ("/v1/embeddings/other/embed", {"input": "a"}, 404, "other"),
        (EMBED, {"input": "a"}, 501, "main (anthropic)"),
        (SPEAK, {"text": "a"}, 501, "speech synthesis"),
        (MULTIMODAL, {}, 400, "message"),
        (MULTIMODAL, {"message": {"role": "user", "content": []}}, 400, "message.content"),
        (MULTIMODAL, {"message": {"role": "user", "content": [{"type": "video"}]}}, 400, "message.content[0].type"),
        (MULTIMODAL, {"message": {"role": "user", "content": [{"type": "text"}]}}, 400, "message.content[0].text"),
        (MULTIMODAL, {"message": {"role": "user", "content": [PICTURE | {"image_url": {}}]}}, 400, "image_url.url"),
        (
            MULTIMODAL,
            {
                "message": {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
                }
            },
            400,
            "message.content[0].image_url.url is 'file:///etc/passwd'",
        ),
        (MULTIMODAL, {"message": {"role": "user", "content": [SOUND | {"input_audio": {"data": "x"}}]}}, 400, "format"),
        (MULTIMODAL, {"message": {"role": "tool", "content": "a"}}, 400, "message.role"),
    ],
)
async def test_refusals(path: str, body: dict[str, object], status: int, said: str) -> None:
    """What is wrong with a request, or what no member can do, is named before anybody is called."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream, "anthropic"))) as running:
        found, _, answer = await running.post(path, body)
    assert found == status
    assert said in answer["message"]
    assert answer["attempts"] == []
    assert not upstream.received
