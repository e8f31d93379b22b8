"""Answers of every provider as their public documentation has them, complete enough for the official clients."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.core.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.protocol.providers.answer_events import Api

LINES = ("ollama", "cohere_v1")
"""APIs that stream JSON lines; the others stream server-sent events."""
CALL = ToolCall("call_7", "weather", '{"city": "Oslo"}')


@dataclass(frozen=True, slots=True)
class Words:
    """What an upstream answers."""

    texts: tuple[str, ...] = ("Hel", "lo")
    """Pieces, as a stream brings them."""
    calls: tuple[ToolCall, ...] = ()
    reason: str = "stop"
    """In OpenAI's words."""
    prompt_tokens: int = 7
    completion_tokens: int = 5
    thoughts: tuple[str, ...] = ()
    """Pieces of a thought before it; chat, messages and responses have them."""
    argument_size: int = 1000
    """Characters of arguments that a stream brings at once."""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)


def argument_pieces(call: ToolCall, words: Words) -> list[str]:
    """The arguments of a call, as a stream brings them."""
    size = words.argument_size
    return [call.arguments[i : i + size] for i in range(0, len(call.arguments), size)]


_REASONS: dict[str, dict[str, str]] = {
    "messages": {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"},
    "cohere_v1": {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "COMPLETE"},
    "cohere_v2": {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"},
    "ollama": {"stop": "stop", "length": "length", "tool_calls": "stop"},
}


def _reason(api: Api, words: Words) -> str:
    return _REASONS.get(api, {}).get(words.reason, words.reason)


def _arguments(call: ToolCall) -> Any:
    return json.loads(call.arguments)


def _function(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(api: Api, words: Words) -> dict[str, Any]:
    if api == "chat":
        total = words.prompt_tokens + words.completion_tokens
        return {
            "prompt_tokens": words.prompt_tokens,
            "completion_tokens": words.completion_tokens,
            "total_tokens": total,
        }
    counts = {"input_tokens": words.prompt_tokens, "output_tokens": words.completion_tokens}
    return (
        counts
        if api in ("messages", "responses")
        else {"billed_units": {"input_tokens": 1, "output_tokens": 1}, "tokens": counts}
    )


def whole(api: Api, words: Words, model: str) -> dict[str, Any]:
    """The JSON of an answer that is not streamed."""
    if api == "chat":
        calls = {"tool_calls": [_function(call) for call in words.calls]} if words.calls else {}
        message = {"role": "assistant", "content": words.text or None, **calls}
        choice = {"index": 0, "message": message, "finish_reason": words.reason, "logprobs": None}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model}
        return {**head, "system_fingerprint": "fp_1", "choices": [choice], "usage": _usage(api, words)}
    if api == "messages":
        text = [{"type": "text", "text": words.text}] if words.text else []
        uses = [{"type": "tool_use", "id": c.id, "name": c.name, "input": _arguments(c)} for c in words.calls]
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [*text, *uses]}
        return {**head, "stop_reason": _reason(api, words), "stop_sequence": None, "usage": _usage(api, words)}
    if api == "responses":
        return _response(words, model, "completed", _response_items(words))
    if api == "cohere_v1":
        calls = {"tool_calls": [{"name": c.name, "parameters": _arguments(c)} for c in words.calls]}
        head = {"response_id": "r-1", "generation_id": "g-1", "text": words.text, "chat_history": []}
        end = {"finish_reason": _reason(api, words), "meta": _usage(api, words)}
        return {**head, **(calls if words.calls else {}), **end}
    if api == "cohere_v2":
        calls = {"tool_calls": [_function(call) for call in words.calls]} if words.calls else {}
        text = [{"type": "text", "text": words.text}] if words.text else []
        message = {"role": "assistant", "content": text, **calls}
        end = {"finish_reason": _reason(api, words), "usage": _usage(api, words)}
        return {"id": "r-1", "message": message, **end}
    assert api == "ollama"
    calls = {"tool_calls": [{"function": {"name": c.name, "arguments": _arguments(c)}} for c in words.calls]}
    message = {"role": "assistant", "content": words.text, **(calls if words.calls else {})}
    return {"model": model, "created_at": "2026-01-01T00:00:00Z", "message": message, **_ollama_end(words)}


def _ollama_end(words: Words) -> dict[str, Any]:
    counts = {"prompt_eval_count": words.prompt_tokens, "eval_count": words.completion_tokens}
    return {"done": True, "done_reason": _reason("ollama", words), **counts}


def events(api: Api, words: Words, model: str) -> Iterator[dict[str, Any]]:
    """The JSON of each event of a stream."""
    if api == "chat":
        yield from _chat_events(words, model)
    elif api == "messages":
        yield from _messages_events(words, model)
    elif api == "responses":
        yield from _responses_events(words, model)
    elif api == "cohere_v1":
        yield {"is_finished": False, "event_type": "stream-start", "generation_id": "g-1"}
        for text in words.texts:
            yield {"is_finished": False, "event_type": "text-generation", "text": text}
        if words.calls:
            calls = [{"name": c.name, "parameters": _arguments(c)} for c in words.calls]
            yield {"is_finished": False, "event_type": "tool-calls-generation", "text": "", "tool_calls": calls}
        end = {"is_finished": True, "event_type": "stream-end", "finish_reason": _reason(api, words)}
        yield {**end, "response": whole(api, words, model)}
    elif api == "cohere_v2":
        yield from _cohere_events(words)
    else:
        head = {"model": model, "created_at": "2026-01-01T00:00:00Z"}
        for text in words.texts:
            yield {**head, "message": {"role": "assistant", "content": text}, "done": False}
        if words.calls:
            message = {**whole(api, words, model)["message"], "content": ""}
            yield {**head, "message": message, "done": False}
        yield {**head, "message": {"role": "assistant", "content": ""}, **_ollama_end(words)}


def _chat_events(words: Words, model: str) -> Iterator[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    head["system_fingerprint"] = "fp_1"

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}

    yield chunk({"role": "assistant", "content": ""})
    for text in words.thoughts:
        yield chunk({"reasoning_content": text})
    for text in words.texts:
        yield chunk({"content": text})
    for index, call in enumerate(words.calls):
        function = _function(call)
        begun = {**function, "index": index, "function": {"name": call.name, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for piece in argument_pieces(call, words):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, words.reason)
    yield {**head, "choices": [], "usage": _usage("chat", words)}


def _messages_events(words: Words, model: str) -> Iterator[dict[str, Any]]:
    usage = {**_usage("messages", words), "output_tokens": 1}
    message = {**whole("messages", words, model), "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": message}
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if words.thoughts:
        thought = [{"type": "thinking_delta", "thinking": one} for one in words.thoughts]
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*thought, signed]))
    if words.texts:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": one} for one in words.texts]))
    for call in words.calls:
        use = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        pieces = argument_pieces(call, words)
        blocks.append((use, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]))
    for index, (block, deltas) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": _reason("messages", words), "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": _usage("messages", words)}
    yield {"type": "message_stop"}


def _response(words: Words, model: str, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    """An object of OpenAI's responses."""
    head = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": model, "output": items}
    fixed = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "error": None, "incomplete_details": None}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    total = words.prompt_tokens + words.completion_tokens
    usage = {**_usage("messages", words), **details, "total_tokens": total} if status == "completed" else None
    return {**head, **fixed, "instructions": None, "metadata": {}, "temperature": 1, "top_p": 1, "usage": usage}


def _response_items(words: Words) -> list[dict[str, Any]]:
    summary = [{"type": "summary_text", "text": "".join(words.thoughts)}]
    items: list[dict[str, Any]] = []
    if words.thoughts:
        items.append({"id": "rs_1", "type": "reasoning", "summary": summary})
    if words.texts:
        content = [{"type": "output_text", "text": words.text, "annotations": [], "logprobs": []}]
        items.append({"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content})
    for call in words.calls:
        function = {"name": call.name, "arguments": call.arguments, "status": "completed"}
        items.append({"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id, **function})
    return items


def _responses_events(words: Words, model: str) -> Iterator[dict[str, Any]]:
    items = _response_items(words)
    empty = {"content": [], "summary": [], "arguments": "", "status": "in_progress"}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response(words, model, "in_progress", [])},
    ]
    for place, item in enumerate(items):
        begun = item | {name: value for name, value in empty.items() if name in item}
        where = {"item_id": item["id"], "output_index": place}
        events.append({"type": "response.output_item.added", "output_index": place, "item": begun})
        if item["type"] == "reasoning":
            kind, pieces = "reasoning_summary_text", list(words.thoughts)
            where["summary_index"] = 0
            events.append(
                {"type": "response.reasoning_summary_part.added", **where, "part": {"type": "summary_text", "text": ""}}
            )
        elif item["type"] == "message":
            kind, pieces = "output_text", list(words.texts)
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            where |= {"content_index": 0}
            events.append({"type": "response.content_part.added", **where, "part": part})
            where |= {"logprobs": []}
        else:
            call = next(one for one in words.calls if one.id == item["call_id"])
            kind, pieces = "function_call_arguments", argument_pieces(call, words)
        events += [{"type": f"response.{kind}.delta", **where, "delta": piece} for piece in pieces]
        whole = {"arguments": item["arguments"]} if kind == "function_call_arguments" else {"text": "".join(pieces)}
        events.append({"type": f"response.{kind}.done", **where, **whole})
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": "response.completed", "response": _response(words, model, "completed", items)})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _cohere_events(words: Words) -> Iterator[dict[str, Any]]:
    yield {"type": "message-start", "id": "r-1", "delta": {"message": {"role": "assistant"}}}
    if words.texts:
        start = {"message": {"content": {"type": "text", "text": ""}}}
        yield {"type": "content-start", "index": 0, "delta": start}
        for text in words.texts:
            yield {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}}
        yield {"type": "content-end", "index": 0}
    for index, call in enumerate(words.calls):
        begun = {**_function(call), "function": {"name": call.name, "arguments": ""}}
        yield {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": begun}}}
        more = {"function": {"arguments": call.arguments}}
        yield {"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": more}}}
        yield {"type": "tool-call-end", "index": index}
    end = {"finish_reason": _reason("cohere_v2", words), "usage": _usage("cohere_v2", words)}
    yield {"type": "message-end", "id": "r-1", "delta": end}


def error(api: Api, message: str, code: str = "server_error") -> dict[str, Any]:
    """The JSON of an error, also inside a stream."""
    if api == "messages":
        return {"type": "error", "error": {"type": code, "message": message}}
    if api == "ollama":
        return {"error": message}
    if api == "cohere_v1":
        return {"event_type": "stream-end", "is_finished": True, "finish_reason": "ERROR", "message": message}
    if api == "cohere_v2":
        return {"type": "message-end", "message": message, "delta": {"finish_reason": "ERROR", "error": message}}
    return {"error": {"message": message, "type": code, "code": code}}


def line(api: Api, event: dict[str, Any]) -> bytes:
    """An event as the stream of its API has it; characters as they are, U+2028 among them."""
    text = json.dumps(event, ensure_ascii=False)
    if api in LINES:
        return f"{text}\n".encode()
    kind = event.get("type")
    return (f"event: {kind}\n" if kind and api != "chat" else "").encode() + f"data: {text}\n\n".encode()
