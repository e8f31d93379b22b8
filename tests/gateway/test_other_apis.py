"""Embeddings, transcription and speech synthesis through a pool."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.fake_upstream import BAD, Behaviour, FakeUpstream
from tests.gateway.running import KEY, gateway, member, pool

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


async def test_nobody_sees() -> None:
    """Where no member takes images, that is said."""
    other = '{id: other, lmtp: {endpoint: "ws://127.0.0.1:1/"}}'
    async with FakeUpstream() as upstream, gateway(pool(member("here", upstream, "ollama"), other)) as running:
        status, _, answer = await running.post(MULTIMODAL, {"message": {"role": "user", "content": [PICTURE]}})
    assert status == 501
    assert "here has no multimodal; other has no multimodal" in answer["message"]
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
