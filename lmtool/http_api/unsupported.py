"""Parameters of these APIs that nothing here reads: at which values each changes no answer, and what to send instead.

A request with such a value is served; any other value is refused by name, for its answer would not be what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from lmtool.http_api.errors import ApiError


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One parameter."""

    harmless: tuple[object, ...] = ()
    """Values that change nothing, beside null."""
    advice: str = ""
    """Why others are refused, and what to do instead."""
    any_value: bool = False
    """Whether no value changes anything."""

    def accepts(self, value: object) -> bool:
        """Whether a request with this value is served."""
        if value is None or self.any_value:
            return True
        return any(type(value) is type(one) and value == one for one in self.harmless)


Table: TypeAlias = Mapping[str, Unsupported]


def _table(*parts: Table) -> Table:
    return MappingProxyType({name: entry for part in parts for name, entry in part.items()})


_ANY = Unsupported(any_value=True)
_LORA = "LoRA adapters are not applied here: merge the adapter into the weights, and serve the folder"
_MEDIA = "images and sounds cannot be read here"
_TEXT_ONLY = "only text is made here"
_FORM = "send it as {} of structured_outputs"

_HINTS: Table = {
    **dict.fromkeys(("prompt_cache_retention", "prompt_cache_options", "cache_control"), _ANY),
    **dict.fromkeys(("verbosity", "moderation", "prediction", "stream_interval"), _ANY),
    "truncation": Unsupported(("disabled", "auto"), "expected disabled or auto"),
}
"""Of OpenAI's API: for caches (one by Anthropic's name, as routers take it), for moderation beside the answer, for
models that were trained to heed them. A prompt that does not fit is refused under each `truncation`."""
_THOUGHTS: Table = {
    "stream_reasoning": _ANY,
    "separate_reasoning": Unsupported(
        (True,), "what a model thinks comes apart from its answer: include_reasoning: false leaves it out"
    ),
}
"""Of SGLang's server; a thought comes as the answer does, in pieces or in one."""

SAMPLING: Table = _table(
    {
        "skip_special_tokens": Unsupported(
            (True,), "special tokens never show as text: return_token_ids has their ids"
        ),
        "spaces_between_special_tokens": _ANY,
        "use_beam_search": Unsupported((False,), "there is no beam search here: best_of chooses among several answers"),
        "length_penalty": _ANY,
        "early_stopping": _ANY,
        "guided_decoding_backend": _ANY,
        "guided_whitespace_pattern": Unsupported((), _FORM.format("disable_any_whitespace")),
        "typical_p": Unsupported((1, 1.0), "send top_p or min_p"),
        "mirostat": Unsupported((0,), "send temperature and top_p"),
        "cache_prompt": Unsupported(
            (True,), "send a cache_salt of your own: what it computes is then used by no other"
        ),
        "mm_processor_kwargs": Unsupported(({},), _MEDIA),
        "media_io_kwargs": Unsupported(({},), _MEDIA),
        "kv_transfer_params": Unsupported(({},), "keys and values are not moved between servers by requests"),
        "vllm_xargs": Unsupported(({},), "send logits_processors, each with its args"),
        "repetition_detection": Unsupported(({},), "send frequency_penalty, or a stop"),
        "lora_path": Unsupported(("",), _LORA),
        "lora_request": Unsupported(({},), _LORA),
        "regex": Unsupported((), _FORM.format("regex")),
        "ebnf": Unsupported((), _FORM.format("grammar")),
        "grammar": Unsupported((), _FORM.format("grammar")),
        "json_schema": Unsupported((), _FORM.format("json")),
        "extra_body": Unsupported(({},), "its members belong into the request itself"),
        "extra_query": Unsupported(({},), "leave it out"),
        "extra_headers": Unsupported(({},), "leave it out"),
    },
    _HINTS,
)
"""Of every route of OpenAI's that generates, with what vLLM, SGLang and llama.cpp's server have there beside it."""

CHAT: Table = _table(
    SAMPLING,
    _THOUGHTS,
    {
        "functions": Unsupported(([],), "it is OpenAI's older form: send tools"),
        "function_call": Unsupported(("none", "auto"), "it is OpenAI's older form: send tools and tool_choice"),
        "modalities": Unsupported((["text"],), 'expected ["text"]: ' + _TEXT_ONLY),
        "audio": Unsupported((), _TEXT_ONLY),
        "web_search_options": Unsupported((), "nothing is searched here: send a tool that does it"),
        "chat_template": Unsupported((), "start the server with --chat-template FILE"),
        "chat_template_content_format": _ANY,
        "add_special_tokens": Unsupported((False,), "the chat template writes those that the model expects"),
        "echo": Unsupported((False,), "send the text to /v1/completions"),
        "suffix": Unsupported(("",), "models that fill gaps are not served here"),
    },
)
COMPLETION: Table = _table(
    SAMPLING,
    dict.fromkeys(("separate_reasoning", "stream_reasoning"), _ANY),
    {"prompt_embeds": Unsupported((), "embeddings cannot be read as a prompt: send text or token ids")},
)
RESPONSES: Table = _table(
    SAMPLING,
    _THOUGHTS,
    {
        "background": Unsupported((False,), "responses are made while the client waits: send it without"),
        "conversation": Unsupported(("",), "send the conversation as input, or previous_response_id"),
        "prompt": Unsupported(({},), "prompts are not stored here: send the conversation as input"),
        "context_management": Unsupported(([],), "nothing of a conversation is left out: send what is to be read"),
        "max_tool_calls": _ANY,
        "modalities": Unsupported((["text"],), 'expected ["text"]: ' + _TEXT_ONLY),
    },
)
"""`max_tool_calls` counts tools that run at OpenAI."""
MESSAGES: Table = _table(
    {
        "cache_control": _ANY,
        "container": _ANY,
        "inference_geo": _ANY,
        "speed": _ANY,
        "user_profile_id": _ANY,
        "workspace_id": _ANY,
        "diagnostics": _ANY,
        "betas": _ANY,
        "mcp_servers": Unsupported(([],), "send the tools of the servers as tools, and call them yourself"),
        "context_management": Unsupported(
            ({}, {"edits": []}), "nothing of a conversation is left out: send what is read"
        ),
    }
)
EMBEDDINGS: Table = _table(
    dict.fromkeys(
        ("truncate_prompt_tokens", "add_special_tokens", "priority", "request_id", "query", "documents"), _ANY
    ),
    dict.fromkeys(
        ("texts", "queries", "items", "top_n", "text_1", "text_2", "data_1", "data_2", "return_documents"), _ANY
    ),
)
"""Of routes that are refused as a whole."""


def supported(table: Table, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The members of a request that are read. Raises `ApiError` 400 for a value that would change its answer."""
    if table.keys().isdisjoint(body):
        return body
    for name in body:
        if name in table and not table[name].accepts(body[name]):
            shown = repr(body[name])
            shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
            sentence = f"{name} is {shown}, which is not supported here: {table[name].advice}"
            raise ApiError(400, sentence, param=name, code="unsupported_parameter")
    return {name: value for name, value in body.items() if name not in table}
