"""JSON without the words of a conversation: what requests and answers keep of their structure when they are redacted.

Both keep what is listed here and nothing else: a member that no list names is one in which anything may stand.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.trace.content import JsonText
from lmtool.trace.stream_events import PROMPT_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.trace.content import Content
    from lmtool.trace.events import Frame

LEFT_OUT = "***"
"""Stands for a text."""
_COMMANDS = ("GENERATE", "SCORE", "MODEL_INFO", "MODELS", "BUFFER", "WATCH", "CANCEL", "TOKEN", "MSG")
_EVENT_NAME = re.compile(r"^event: [\w.-]{1,64}\n", re.MULTILINE)
_SESSION_WORDS = frozenset({"id", "name", "@type", "mimetype", "role", "childIds"})
_SESSION = _SESSION_WORDS.union(
    ("actions", "inputs", "outputs", "targetSpec", "configs", "value", "nodeFragments", "metadata")
)
"""Members of Evergreen's messages; payloads are not among them."""
_DEEPEST = 32
"""Levels of an answer that are looked into."""
_KEPT_OF_REQUESTS = frozenset({"model", "stream_id", "id", "logprobs_mode", "stream_options"})
"""Members of a request that may be other than numbers and truth values."""
_WORDS = frozenset(
    {
        *("id", "object", "type", "event_type", "role", "model", "status", "code", "error_code", "finish_reason"),
        *("done_reason", "finishReason", "created_at", "stream_id", "item_id", "call_id", "tool_call_id", "model_id"),
        *("response_id", "generation_id", "responseId", "modelVersion", "system_fingerprint", "service_tier", "cached"),
        *("member", "stop_reason", "reason", "is_finished", "done", "created", "index", "choice", "sequence_number"),
        *("output_index", "content_index", "summary_index", "retryable", "length", "at", "ms", "outcome", "attempts"),
        *("before", "after"),
    }
)
"""Members of an answer that hold a word of the protocol or a number."""
_NUMBERS = re.compile(r"(?:tokens?|_count|_duration|_ms|_units|_bytes|Count)$")
_WORD = re.compile(r"[\w.:/@+-]{1,128}")
_STOP_REASONS = frozenset({"end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal", "pause_turn"})
"""Of Anthropic; other servers name the stop string there, which is the client's."""
_TEXTS = frozenset(
    {
        *("content", "text", "delta", "reasoning", "reasoning_content", "thinking", "refusal", "partial_json", "name"),
        *("response", "signature", "tool_plan", "transcript", "summary", "tool_name"),
    }
)
"""Members of an answer that hold a text of the model, or what has one."""
_CONTAINERS = frozenset(
    {
        *("choices", "message", "output", "item", "part", "content_block", "tool_calls", "function_call", "function"),
        *("candidates", "parts", "functionCall", "usage", "usageMetadata", "meta", "billed_units", "tokens_details"),
        *("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details"),
        *("error", "incomplete_details", "provider_response", "token_count", "chunk", "seam", "data", "buffer"),
    }
)
"""Members of an answer that hold objects whose members are judged in turn; a text in their place is left out."""
_WHOLE = frozenset(
    {
        *("arguments", "args", "parameters", "parsed", "token", "tokens", "token_ids", "bytes", "b64_json", "logprob"),
        *("top_logprobs", "logprobs", "token_logprobs", "text_offset"),
    }
)
"""Members of an answer that are the model's words, whatever is in them. Their logprobs, too: they tell the tokens."""
_KNOWN = _WORDS | _TEXTS | _CONTAINERS | _WHOLE


def redact_request(members: Mapping[str, object], mark: Callable[[object], object]) -> dict[str, object]:
    """A request's members, those that may hold words of the client replaced by marks."""
    return {name: value if _is_setting(name, value) else mark(value) for name, value in members.items()}


def _is_setting(name: str, value: object) -> bool:
    if name in _KEPT_OF_REQUESTS:  # in a `model` that is no name the unified API has the prompt
        return name in ("stream_id", "stream_options") or not isinstance(value, dict | list)
    return name not in PROMPT_MEMBERS and (value is None or isinstance(value, bool | int | float))


def redact_answer(value: object, name: str = "", *, texts: bool, depth: int = 0) -> object:
    """An answer's value without what the client said, which answers repeat; texts: whether the model's words stay."""
    if isinstance(value, dict) and depth < _DEEPEST:
        tool = "tool" in str(value.get("type"))  # `input` is the model's in a call, else the client's
        return {
            each: redact_member(each, one, texts=texts, depth=depth + 1)
            for each, one in value.items()
            if each in _KNOWN or _NUMBERS.search(each) or (tool and each == "input")
        }
    if isinstance(value, list) and depth < _DEEPEST:
        return [redact_answer(one, name, texts=texts, depth=depth + 1) for one in value]
    if isinstance(value, str):
        return value if not value or (texts and name in _TEXTS) else LEFT_OUT
    return None


def redact_member(name: str, value: object, *, texts: bool, depth: int = 0) -> object:
    """A member of an answer without what the client said; texts: whether the model's words stay."""
    if name == "stream_id" or (texts and (name in _WHOLE or name == "input")):
        return value
    if name in _WHOLE or name == "input":
        return _emptied(value)
    if name in _TEXTS or name in _CONTAINERS or not isinstance(value, str | int | float):
        return redact_answer(value, name, texts=texts, depth=depth)
    if isinstance(value, str):
        is_word = _WORD.fullmatch(value) and (name != "stop_reason" or value in _STOP_REASONS)
        return value if is_word and name in _WORDS else LEFT_OUT
    return None if name == "stop_reason" else value


def _emptied(value: object) -> object:
    if isinstance(value, str):
        return value and LEFT_OUT
    return type(value)() if isinstance(value, list | dict) else None


def redact_content(content: Content, redact: Callable[[object], object]) -> JsonText | str:
    """A body, or a part of one, whose JSON value was redacted; `***` where it is no JSON."""
    if isinstance(content, JsonText):
        return JsonText("", redact(content.value), content.style)
    try:
        value = redact(json.loads(content))
    except (ValueError, RecursionError):
        return LEFT_OUT
    return json.dumps(value) + "\n" * (content[-1:] in ("\n", b"\n"))


def redact_sse(content: Content, redact: Callable[[object], object]) -> Content:
    """A server-sent event whose JSON value was redacted; a comment where it has none."""
    if isinstance(content, bytes) or (isinstance(content, str) and "data: " not in content):
        return f": {LEFT_OUT}\n\n"
    lead, _, rest = (content.lead, "", "") if isinstance(content, JsonText) else content.rpartition("data: ")
    name = _EVENT_NAME.search(lead)
    head = f"{name[0] if name else ''}data: "
    if isinstance(content, JsonText):
        return JsonText(head, redact(content.value), content.style)
    shown = rest if rest.strip() == "[DONE]" else redact_content(rest.rstrip(), redact)
    return f"{head}{str(shown).rstrip()}\n\n"


def redact_frame(frame: Frame, command: str | None, redact: Callable[[object], object]) -> Content:
    """The content of a frame whose JSON value was redacted; `***` where it is neither an LMTP command nor an object."""
    content = frame.content
    if command not in _COMMANDS:
        is_object = isinstance(content, str) and content.startswith("{")
        return redact_content(content, redact) if is_object else LEFT_OUT
    value = redact(frame.parse().value)
    return replace(content, value=value) if isinstance(content, JsonText) else f"{command} {json.dumps(value)}"


def redact_session(value: Mapping[str, object]) -> dict[str, object]:
    """The structure of a message of an Evergreen session, or of a part of one: ids, names, types, numbers."""
    return {name: one for name, each in value.items() if (one := _session(each, name)) is not None}


def _session(value: object, name: str) -> object:
    if isinstance(value, dict):
        return redact_session(value) if name in _SESSION else None
    if isinstance(value, list):
        return [one for each in value if (one := _session(each, name)) is not None] if name in _SESSION else None
    return value if isinstance(value, bool | int | float) or name in _SESSION_WORDS else None
