"""Table of providers by their names in configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from lmtool.core.errors import RequestError
from lmtool.protocol.providers import anthropic_messages, cohere, ollama, openai_completions
from lmtool.protocol.providers.provider import ALL_FEATURES, Provider, join_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.protocol.providers.provider import Headers, Settings

_SAMPLING = {"temperature": "temperature", "topP": "top_p", "seed": "seed"}
_PENALTIES = {"presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty"}
_OPENAI = {**_SAMPLING, **_PENALTIES, "n": "n", "stop": "stop", "logitBias": "logit_bias"}
_COHERE = {
    **_PENALTIES,
    "temperature": "temperature",
    "topP": "p",
    "topK": "k",
    "seed": "seed",
    "maxTokens": "max_tokens",
    "stop": "stop_sequences",
}
_COMPATIBLE = {"maxTokens": "max_tokens", "topK": "top_k", "minP": "min_p", "repetitionPenalty": "repetition_penalty"}

_ANTHROPIC_VERSION = "2023-06-01"
"""Value of `anthropic-version` if the settings have none."""
_AZURE_API_VERSION = "2024-10-21"
"""Value of `api-version` if the settings have none."""


def _azure_url(base_url: str, path: str, model: str, settings: Settings) -> str:
    """URL of a path of Azure's API: below the model's deployment, with the version of the API."""
    deployment, version = quote(model, safe=""), quote(settings.api_version or _AZURE_API_VERSION, safe="")
    return f"{join_url(base_url, f'openai/deployments/{deployment}{path}')}?api-version={version}"


def _azure_headers(settings: Settings) -> Headers:
    """Headers with Azure's key."""
    return {} if settings.api_key is None else {"api-key": settings.api_key}


def _anthropic_headers(settings: Settings) -> Headers:
    """Headers with Anthropic's key and the version of the API."""
    key = {} if settings.api_key is None else {"x-api-key": settings.api_key}
    return {"anthropic-version": settings.api_version or _ANTHROPIC_VERSION, **key}


OPENAI = Provider(
    name="openai",
    api="chat",
    base_url="https://api.openai.com/v1",
    chat_path="/chat/completions",
    write_chat=openai_completions.write_chat,
    parameters={**_OPENAI, "maxTokens": "max_completion_tokens"},
    compatible_parameters=_COMPATIBLE,
    own_parameters=frozenset(
        {"user", "metadata", "reasoning_effort", "service_tier", "store", "verbosity", "tools", "tool_choice"}
        | {"response_format", "parallel_tool_calls", "logprobs", "top_logprobs"}
    ),
    features=ALL_FEATURES,
    write_thinking=openai_completions.write_thinking,
    write_compatible_thinking=openai_completions.write_compatible_thinking,
    key_required=False,
)
AZURE = Provider(
    name="azureopenai",
    api="chat",
    base_url="",
    chat_path="/chat/completions",
    write_chat=openai_completions.write_chat,
    parameters={**_OPENAI, "maxTokens": "max_tokens"},
    own_parameters=OPENAI.own_parameters | {"max_completion_tokens"},
    features=ALL_FEATURES,
    write_thinking=openai_completions.write_thinking,
    write_compatible_thinking=openai_completions.write_thinking,
    authorize=_azure_headers,
    locate=_azure_url,
)
ANTHROPIC = Provider(
    name="anthropic",
    api="messages",
    base_url="https://api.anthropic.com/v1",
    chat_path="/messages",
    write_chat=anthropic_messages.write_chat,
    parameters={
        "temperature": "temperature",
        "topP": "top_p",
        "topK": "top_k",
        "maxTokens": "max_tokens",
        "stop": "stop_sequences",
    },
    own_parameters=frozenset({"system", "metadata", "service_tier", "thinking", "output_config"}),
    features=frozenset({"tools", "tool_choice", "response_format", "images", "image_urls"}),
    prefill="last_message",
    trims_prefill=True,
    write_thinking=anthropic_messages.write_thinking,
    write_compatible_thinking=anthropic_messages.write_thinking,
    ranges="anthropic",
    authorize=_anthropic_headers,
)
COHERE_V1 = Provider(
    name="cohere",
    api="cohere_v1",
    base_url="https://api.cohere.com/v1",
    chat_path="/chat",
    write_chat=cohere.write_chat_v1,
    parameters=_COHERE,
    own_parameters=frozenset(
        {"preamble", "conversation_id", "prompt_truncation", "connectors", "search_queries_only", "documents"}
        | {"citation_quality", "max_input_tokens", "safety_mode", "raw_prompting", "force_single_step"}
    ),
    features=frozenset({"tools", "response_format"}),
)
COHERE_V2 = Provider(
    name="cohere",
    api="cohere_v2",
    base_url="https://api.cohere.com/v2",
    chat_path="/chat",
    write_chat=cohere.write_chat_v2,
    parameters=_COHERE,
    own_parameters=frozenset(
        {"documents", "citation_options", "safety_mode", "strict_tools", "thinking", "priority", "preamble"},
    ),
    features=frozenset({"tools", "tool_choice", "response_format", "logprobs", "images", "image_urls"}),
    write_thinking=cohere.write_thinking_v2,
    write_compatible_thinking=cohere.write_thinking_v2,
)
OLLAMA = Provider(
    name="ollama",
    api="ollama",
    base_url="http://localhost:11434",
    chat_path="/api/chat",
    write_chat=ollama.write_chat,
    parameters={
        **_SAMPLING,
        **_PENALTIES,
        "topK": "top_k",
        "minP": "min_p",
        "maxTokens": "num_predict",
        "stop": "stop",
        "repetitionPenalty": "repeat_penalty",
    },
    own_parameters=frozenset(
        {"num_ctx", "num_gpu", "num_thread", "num_keep", "num_batch", "num_gqa", "repeat_last_n", "tfs_z", "typical_p"}
        | {"mirostat", "mirostat_eta", "mirostat_tau", "penalize_newline", "numa", "main_gpu", "use_mmap", "use_mlock"}
        | {"low_vram", "keep_alive", "think"}
    ),
    features=frozenset({"tools", "response_format", "logprobs", "top_logprobs", "images"}),
    write_thinking=ollama.write_thinking,
    write_compatible_thinking=ollama.write_thinking,
    prefill="last_message",
    key_required=False,
)

PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider for provider in (OPENAI, AZURE, ANTHROPIC, COHERE_V2, OLLAMA)
}
"""Providers by name; `cohere` is version 2, see `provider_for`."""
_INSTEAD: Mapping[str, str] = {
    "octoml": "OctoAI has closed; write openai with the base_url of another service",
    "bedrock": "write litellm with model bedrock/NAME (extra litellm), or openai with Bedrock's own base_url",
}


def provider_for(name: str, settings: Settings) -> Provider:
    """The provider with this name; Cohere's version follows from `api_version` or `base_url` and defaults to 2.

    Raises `RequestError` for an unknown name.
    """
    if name not in PROVIDERS:
        known = f"known are {', '.join(PROVIDERS)}"
        raise RequestError(f"there is no provider {name}", _INSTEAD.get(name, known))
    if name == "cohere":
        base = (settings.base_url or "").rstrip("/")
        version = settings.api_version or ("v1" if base.endswith("/v1") else "v2")
        if version not in ("v1", "v2"):
            raise RequestError(f"cohere has no api_version {version}", "expected v1 or v2")
        return COHERE_V1 if version == "v1" else COHERE_V2
    return PROVIDERS[name]
