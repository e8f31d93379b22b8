"""OpenAI's own client and a server that asks for a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

from tests.net.access.knocking import KEY

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

ASK = {"model": "stories260K", "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}


def client(server: ServerProcess, key: str, **headers: str) -> openai.OpenAI:
    base = server.url.replace("ws://", "http://") + "v1"
    return openai.OpenAI(base_url=base, api_key=key, max_retries=0, default_headers=headers)


def test_with_the_key(keyed: ServerProcess) -> None:
    """It sends it as a bearer's token: whole answers and streams, listing and errors of its own."""
    with client(keyed, KEY) as http:
        whole = http.completions.create(**ASK)  # type: ignore[call-overload]
        streamed = http.completions.create(**ASK, stream=True)  # type: ignore[call-overload]
        assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text == ", there was a"
        assert [model.id for model in http.models.list()] == ["stories260K"]
        with pytest.raises(openai.NotFoundError):
            http.models.retrieve("other")


def test_with_another(keyed: ServerProcess) -> None:
    """Each refusal is its class of error, with a sentence that says what to do."""
    with client(keyed, "wrong") as http, pytest.raises(openai.AuthenticationError, match="Bearer KEY") as refused:
        http.completions.create(**ASK)  # type: ignore[call-overload]
    assert refused.value.code == "invalid_api_key"
    page = client(keyed, KEY, Origin="https://evil.example")
    with page as http, pytest.raises(openai.PermissionDeniedError, match="--allow-origin https://evil"):
        http.models.list()
    rebound = client(keyed, KEY, Host="evil.example")
    with rebound as http, pytest.raises(openai.APIStatusError, match="--allow-host evil") as refused_host:
        http.models.list()
    assert refused_host.value.status_code == 421
