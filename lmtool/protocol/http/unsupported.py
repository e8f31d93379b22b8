"""Unsupported parameters of each API: values that change no answer and are accepted, and advice for others.

Any other value is rejected with the parameter's name, because the answer would ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

from lmtool.protocol.http.errors import ApiError


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One unsupported parameter."""

    harmless: tuple[object, ...] = ()
    """Accepted values, in addition to null."""
    advice: str = ""
    """Reason for rejecting other values, and what to send instead."""
    any_value: bool = False
    """True if all values are accepted."""
    changes_nothing: Callable[[Any, Mapping[str, Any]], bool] | None = None
    """True if a value has no effect on this request (value, request)."""

    def accepts(self, value: object, body: Mapping[str, Any] = MappingProxyType({})) -> bool:
        """True if this value is accepted. body: the whole request."""
        if value is None or self.any_value:
            return True
        if self.changes_nothing is not None and self.changes_nothing(value, body):
            return True
        return any(type(value) is type(other) and value == other for other in self.harmless)


Table: TypeAlias = Mapping[str, Unsupported]


def _table(*parts: Table) -> Table:
    return MappingProxyType({name: entry for part in parts for name, entry in part.items()})


def _edits_nothing(management: Any, body: Mapping[str, Any]) -> bool:  # noqa: ANN401  # any JSON
    """True if no edit in Anthropic's `context_management` would remove a part of this conversation."""
    edits = management.get("edits") if isinstance(management, dict) else None
    return _are_few(edits) and all(isinstance(edit, dict) and _is_idle(edit, body) for edit in edits)


def _are_few(edits: object) -> TypeGuard[list[Any]]:
    """True if this is a list short enough to check each entry against the whole conversation."""
    return isinstance(edits, list) and len(edits) <= 8


def _is_idle(edit: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    kind, keep = str(edit.get("type")).rpartition("_")[0], edit.get("keep")
    if kind == "clear_thinking":
        return keep == "all" or len(_blocks(body, "thinking")) <= _number(keep, 1)
    if kind == "clear_tool_uses":
        calls, trigger = len(_blocks(body, "tool_use")), edit.get("trigger")
        counts_calls = isinstance(trigger, dict) and trigger.get("type") == "tool_uses"
        small = calls < _number(trigger, 0) if counts_calls else _is_below(_number(trigger, 100_000), body)
        return small or calls <= _number(keep, 3)
    return kind == "compact" and _is_below(_number(edit.get("trigger"), 150_000), body)


def _number(given: object, default: int) -> int:
    """The `value` of an edit's member; 0 if it is invalid, so that the edit counts as effective."""
    value = given.get("value") if isinstance(given, dict) else default if given is None else 0
    return value if type(value) is int else 0


def _blocks(body: Mapping[str, Any], kind: str) -> list[object]:
    messages = body.get("messages")
    turns = messages if isinstance(messages, list) else ()
    contents = [turn.get("content") for turn in turns if isinstance(turn, dict)]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


def _is_below(tokens: int, body: Mapping[str, Any]) -> bool:
    """True if a request certainly has fewer tokens, because it has fewer bytes."""
    return "previous_response_id" not in body and len(json.dumps(body)) < tokens


def _compacts_nothing(entries: Any, body: Mapping[str, Any]) -> bool:  # noqa: ANN401  # any JSON
    """True if no entry of OpenAI's `context_management` would compact this conversation."""
    return _are_few(entries) and all(
        isinstance(entry, dict)
        and entry.get("type") == "compaction"
        and _is_below(_number({"value": entry.get("compact_threshold")}, 0), body)
        for entry in entries
    )


_ANY = Unsupported(any_value=True)
_LORA = "LoRA adapters are not applied here: merge the adapter into the weights, and serve the folder"
_MEDIA = "images and sounds cannot be read here"
_TEXT_ONLY = "only text is made here"
_NO_EDITS = "it would leave out parts of this conversation, which is read whole here: send what is to be read"
_FORM = "send it as {} of structured_outputs"

_HINTS: Table = {
    **dict.fromkeys(("prompt_cache_retention", "prompt_cache_options", "cache_control"), _ANY),
    **dict.fromkeys(("verbosity", "moderation", "prediction", "stream_interval", "client_metadata"), _ANY),
    "truncation": Unsupported(("disabled", "auto"), "expected disabled or auto"),
}
"""Parameters of OpenAI's API for caches (one with Anthropic's name, which routers use), for moderation, and for models
trained to follow them. A prompt that does not fit is rejected with any `truncation`."""
_THOUGHTS: Table = {
    "stream_reasoning": _ANY,
    "separate_reasoning": Unsupported(
        (True,), "what a model thinks comes apart from its answer: include_reasoning: false leaves it out"
    ),
}
"""Parameters of SGLang's server; thoughts are streamed if the answer is."""

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
"""Parameters of all generating routes of OpenAI, vLLM, SGLang and llama.cpp's server."""

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
        "context_management": Unsupported(([],), _NO_EDITS, changes_nothing=_compacts_nothing),
        "max_tool_calls": _ANY,
        "modalities": Unsupported((["text"],), 'expected ["text"]: ' + _TEXT_ONLY),
    },
)
"""Parameters of `/v1/responses`; `max_tool_calls` counts only tools that run at OpenAI."""
MESSAGES: Table = _table(
    dict.fromkeys(("cache_control", "container", "inference_geo", "speed", "user_profile_id"), _ANY),
    dict.fromkeys(("workspace_id", "diagnostics", "betas"), _ANY),
    {
        "mcp_servers": Unsupported(([],), "send the tools of the servers as tools, and call them yourself"),
        "context_management": Unsupported(({}, {"edits": []}), _NO_EDITS, changes_nothing=_edits_nothing),
    },
)
EMBEDDINGS: Table = _table(
    dict.fromkeys(
        ("truncate_prompt_tokens", "add_special_tokens", "priority", "request_id", "query", "documents"), _ANY
    ),
    dict.fromkeys(
        ("texts", "queries", "items", "top_n", "text_1", "text_2", "data_1", "data_2", "return_documents"), _ANY
    ),
)
"""Parameters of routes that always reject the request."""


def supported(table: Table, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Supported members of a request. Raises `ApiError` 400 for an unsupported value that would change the answer."""
    if table.keys().isdisjoint(body):
        return body
    for name in body:
        if name in table and not table[name].accepts(body[name], body):
            excerpt = repr(body[name])
            excerpt = excerpt if len(excerpt) <= 80 else f"{excerpt[:80]}…"
            sentence = f"{name} is {excerpt}, which is not supported here: {table[name].advice}"
            raise ApiError(400, sentence, param=name, code="unsupported_parameter")
    return {name: value for name, value in body.items() if name not in table}
