"""What providers take, where their requests go, and what no repr of a request shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmtool.core.errors import RequestError
from lmtool.core.types import ChatMessage
from lmtool.net.access.secret import Secret
from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS, ChatRequest
from lmtool.protocol.providers.provider import Settings
from lmtool.protocol.providers.registry import PROVIDERS, provider_for

HELLO = ChatRequest((ChatMessage("user", "Hello there"),))
KEY = Settings(api_key=Secret("sk-canary"))
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("name", "settings", "url", "headers"),
    [
        ("openai", KEY, "https://api.openai.com/v1/chat/completions", {"authorization": "Bearer sk-canary"}),
        ("openai", Settings("http://127.0.0.1:8000/v1/"), "http://127.0.0.1:8000/v1/chat/completions", {}),
        ("openai", Settings("http://h/api", chat_endpoint="/v3/talk"), "http://h/api/v3/talk", {}),
        (
            "azureopenai",
            Settings("https://x.openai.azure.com", Secret("sk-canary"), api_version="2024-06-01"),
            "https://x.openai.azure.com/openai/deployments/a%20b/chat/completions?api-version=2024-06-01",
            {"api-key": "sk-canary"},
        ),
        (
            "anthropic",
            KEY,
            "https://api.anthropic.com/v1/messages",
            {"x-api-key": "sk-canary", "anthropic-version": "2023-06-01"},
        ),
        ("cohere", KEY, "https://api.cohere.com/v2/chat", {"authorization": "Bearer sk-canary"}),
        ("cohere", Settings("https://api.cohere.ai/v1"), "https://api.cohere.ai/v1/chat", {}),
        ("cohere", Settings("http://h:1", api_version="v1"), "http://h:1/chat", {}),
        ("ollama", Settings(headers={"x-team": "a"}), "http://localhost:11434/api/chat", {"x-team": "a"}),
    ],
)
def test_where_a_request_goes_and_with_what_key(
    name: str, settings: Settings, url: str, headers: dict[str, str]
) -> None:
    """Each API has its own path, header of the key, and version; `base_url` and `chat_endpoint` replace its own."""
    request = provider_for(name, settings).request(HELLO, "a b", settings)
    assert (request.method, request.url) == ("POST", url)
    assert request.wire_headers() == {"content-type": "application/json", **headers}
    assert "canary" not in repr(request) + repr(settings)
    assert "Hello" not in repr(request)


def test_versions_of_cohere() -> None:
    """The base URL decides, `api_version` over it; 2 where neither says."""
    versions = {None: "cohere_v2", "https://api.cohere.ai/v1": "cohere_v1", "http://h/v2": "cohere_v2"}
    assert {url: provider_for("cohere", Settings(url)).api for url in versions} == versions
    assert provider_for("cohere", Settings("http://h/v1", api_version="v2")).api == "cohere_v2"
    with pytest.raises(RequestError, match="v3"):
        provider_for("cohere", Settings(api_version="v3"))


@pytest.mark.parametrize(
    ("name", "said"), [("octoml", "closed"), ("bedrock", "litellm"), ("opanai", "known are openai, azureopenai")]
)
def test_unknown_providers(name: str, said: str) -> None:
    """An unknown name is refused with what to write instead."""
    with pytest.raises(RequestError) as caught:
        provider_for(name, Settings())
    assert said in caught.value.sentence


def test_a_provider_without_an_address_of_its_own() -> None:
    """Azure needs `base_url`, and says so."""
    with pytest.raises(RequestError, match="azureopenai needs base_url"):
        PROVIDERS["azureopenai"].request(HELLO, "m", KEY)


class TestParameters:
    """One table of unified names; what an API lacks is refused by name."""

    @pytest.mark.parametrize(
        ("name", "values", "expected"),
        [
            ("openai", {"topP": 0.5, "max_tokens": 9, "stop": "x"}, {"topP": 0.5, "maxTokens": 9, "stop": ["x"]}),
            ("openai", {"max_completion_tokens": 9, "user": "me"}, {"maxTokens": 9, "user": "me"}),
            ("cohere", {"p": 0.5, "k": 3, "stop_sequences": ["a"]}, {"topP": 0.5, "topK": 3, "stop": ["a"]}),
            ("anthropic", {"system": "Be brief."}, {"system": "Be brief."}),
            ("ollama", {"num_predict": 5, "num_ctx": 2048}, {"maxTokens": 5, "num_ctx": 2048}),
            ("openai", {"logitBias": {5: 3.5}}, {"logitBias": {"5": 3.5}}),
        ],
    )
    def test_of_a_configuration(self, name: str, values: dict[str, Any], expected: dict[str, Any]) -> None:
        """Unified, Glide's and the API's own spelling are known."""
        assert PROVIDERS[name].default_parameters(values, KEY) == expected

    @pytest.mark.parametrize(
        ("name", "values", "said"),
        [
            ("cohere", {"p": 0.5, "k": 3, "stopSequences": 1}, "there is no parameter stopSequences"),
            ("anthropic", {"seed": 1}, "anthropic has no parameter seed"),
            ("anthropic", {"temperature": 1.5}, "temperature is 1.5"),
            ("openai", {"topK": 5}, "openai has no parameter topK"),
            ("openai", {"n": 0}, "n is 0"),
            ("openai", {"maxTokens": True}, "maxTokens is True"),
            ("openai", {"stop": ["a"] * 17}, "at most 16"),
            ("openai", {"stop": [""]}, "none empty"),
            ("openai", {"logitBias": {5: 300}}, "from -100 to 100"),
        ],
    )
    def test_faults_of_a_configuration(self, name: str, values: dict[str, Any], said: str) -> None:
        """What an API lacks, unknown names and wrong values are named."""
        with pytest.raises(RequestError, match=said):
            PROVIDERS[name].default_parameters(values, KEY)

    def test_of_compatible_servers(self) -> None:
        """Servers at other base URLs take what OpenAI's own does not, and its older name for the limit."""
        local, chat = Settings("http://127.0.0.1:8000/v1"), {"topK": 5, "minP": 0.1, "maxTokens": 7}
        request = PROVIDERS["openai"].request(ChatRequest(HELLO.messages, chat), "m", local)
        body = json.loads(request.body)
        assert {name: body[name] for name in body if name not in ("model", "messages")} == {
            "top_k": 5,
            "min_p": 0.1,
            "max_tokens": 7,
        }
        assert PROVIDERS["openai"].missing_parameters(ChatRequest(HELLO.messages, chat), KEY) == ["topK", "minP"]

    @pytest.mark.parametrize("name", PROVIDERS)
    def test_every_name_of_the_tables_is_unified(self, name: str) -> None:
        """No provider maps a parameter that the unified API does not have."""
        provider = PROVIDERS[name]
        assert {*provider.parameters, *provider.compatible_parameters} <= set(UNIFIED_PARAMETERS)

    def test_no_stops(self) -> None:
        """An empty list of stops, as Glide's configurations may have, is none."""
        request = PROVIDERS["openai"].request(ChatRequest(HELLO.messages, {"stop": [], "seed": 0}), "m", KEY)
        assert json.loads(request.body) == {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello there"}],
            "seed": 0,
        }

    def test_of_a_request_that_the_api_lacks(self) -> None:
        """Nothing is dropped in silence."""
        with pytest.raises(RequestError, match="anthropic has no parameter n"):
            PROVIDERS["anthropic"].request(ChatRequest(HELLO.messages, {"n": 2}), "m", KEY)


@pytest.mark.parametrize(
    ("name", "chat", "missing"),
    [
        ("anthropic", ChatRequest(HELLO.messages, logprobs=True, top_logprobs=2), ["logprobs", "top_logprobs"]),
        ("ollama", ChatRequest(HELLO.messages, tools=(TOOL,), tool_choice="required"), ["tool_choice"]),
        ("ollama", ChatRequest(HELLO.messages, tools=(TOOL,), tool_choice="auto"), []),
        ("openai", ChatRequest(HELLO.messages, tools=(TOOL,), tool_choice="required", logprobs=True), []),
        ("cohere", ChatRequest(HELLO.messages, response_format={"type": "json_object"}, logprobs=True), []),
    ],
)
def test_features_that_a_provider_lacks(name: str, chat: ChatRequest, missing: list[str]) -> None:
    """They are named, and such a request is not written."""
    provider = PROVIDERS[name]
    assert provider.missing_features(chat) == missing
    if missing:
        with pytest.raises(RequestError, match=missing[0]):
            provider.request(chat, "m", KEY)


def test_text_that_is_no_unicode() -> None:
    """Half of a surrogate pair is the request's fault, told before anything is sent."""
    with pytest.raises(RequestError, match="surrogate"):
        PROVIDERS["openai"].request(ChatRequest((ChatMessage("user", "\ud83d"),)), "m", KEY)
