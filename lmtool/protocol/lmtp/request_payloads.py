"""The payloads of clients' requests: read with every field checked by name, and written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

import msgspec

from lmtool.core.constraint import constraint_from, written
from lmtool.core.errors import LocalProtocolError, RequestError
from lmtool.core.logit_bias import PackedBias, pack_bias
from lmtool.core.logits_processors import processors_from
from lmtool.core.logits_processors import written as written_processors
from lmtool.core.prompt_limits import LimitsByModel, limits_of
from lmtool.core.reasoning import Reasoning
from lmtool.core.sampling_parameters import DEFAULTS
from lmtool.core.types import BufferSlice, GenerateRequest, MixedPrompt, SamplingParams, ScoreRequest
from lmtool.protocol.lmtp import json_text, request_fields
from lmtool.protocol.lmtp.json_text import JsonTextError
from lmtool.protocol.lmtp.messages import (
    PROTOCOL_VERSION,
    BufferRequest,
    Cancel,
    ClientMessage,
    Generate,
    ModelInfoRequest,
    ModelsRequest,
    Score,
    WatchRequest,
)
from lmtool.protocol.lmtp.prompt_payloads import entries_of, ids_and_texts, is_text, read_prompt, write_prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.types import Constraint, NamedProcessor

_NO_LIMITS: LimitsByModel = {}
_REPORTED_FIELDS = 20
_REPORTED_CHARACTERS = 64


def stream_id(members: Mapping[str, bytes]) -> str:
    """The request's id as JSON text without insignificant whitespace. Raises `RequestError`."""
    text = members.get("stream_id", b"null")
    if text == b"null":
        raise RequestError("stream_id is missing; expected any JSON value but null")
    longest = request_fields.MAX_STREAM_ID_BYTES
    if len(text) > longest:
        raise RequestError(f"stream_id has {len(text)} bytes; expected at most {longest}")
    try:
        return json_text.compact(text)
    except JsonTextError:
        raise RequestError(f"stream_id is {request_fields.excerpt(text)}; expected a JSON value") from None


def read(
    command: str, label: str, stream: str, members: Mapping[str, bytes], limits: LimitsByModel = _NO_LIMITS
) -> ClientMessage:
    """The message of a command with these members. Raises `RequestError`; `label` names the command in it.

    limits: what is beyond them is refused.
    """
    reader = _READERS.get(command)
    if reader is None:
        raise RequestError(f"Unknown command: {label}; expected {', '.join(_READERS)}")
    # null is the same as leaving a field out, so that a client may always send all its fields.
    message = reader(stream, {name: text for name, text in members.items() if text != b"null"})
    if isinstance(message, Generate | Score) and (own := limits_of(message.request.model, limits)) is not None:
        own.check(message.request)
    return message


def _read_generate(stream: str, members: Mapping[str, bytes]) -> Generate:
    prompt = read_prompt(members)
    request = GenerateRequest(
        stream,
        prompt,
        _sampling(members),
        model=request_fields.MODEL.read_optional("model", members),
        text=_switch(members, "text", default=is_text(prompt)),
        constraint=_constraint(members),
        priority=request_fields.PRIORITY.read_optional("priority", members) or 0,
        logits_processors=_processors(members),
        prefill_only=_switch(members, "prefill_only"),
        generated=request_fields.GENERATED.read_optional("generated", members) or (),
        resumable=_switch(members, "resumable"),
        into=request_fields.BUFFER_NAME.read_optional("into", members),
        logprob_token_ids=request_fields.LOGPROB_TOKEN_IDS.read_optional("logprob_token_ids", members) or (),
        deadline=request_fields.DEADLINE_SECONDS.read_optional("deadline", members),
        cache_salt=request_fields.CACHE_SALT.read_optional("cache_salt", members) or "",
        client=request_fields.CLIENT.read_optional("client", members) or "",
        reasoning=_reasoning(members),
    )
    if request.prefill_only and request.into is not None:
        raise RequestError("the request has both into and prefill_only, which brings no ids; expected one of them")
    return Generate(request, **_extras("GENERATE", members))


def _read_score(stream: str, members: Mapping[str, bytes]) -> Score:
    prompt = read_prompt(members)
    if "scored" not in members:
        raise RequestError(f"scored is missing; expected {request_fields.SCORED.expected}")
    scored = request_fields.SCORED.read("scored", members["scored"])
    request = ScoreRequest(
        stream,
        prompt,
        scored,
        model=request_fields.MODEL.read_optional("model", members),
        top_logprobs=request_fields.TOP_LOGPROBS.read_optional("top_logprobs", members),
        text=_switch(members, "text", default=is_text(prompt) or isinstance(scored, str)),
        deadline=request_fields.DEADLINE_SECONDS.read_optional("deadline", members),
        cache_salt=request_fields.CACHE_SALT.read_optional("cache_salt", members) or "",
        client=request_fields.CLIENT.read_optional("client", members) or "",
    )
    return Score(request, **_extras("SCORE", members))


def _read_model_info(stream: str, members: Mapping[str, bytes]) -> ModelInfoRequest:
    model = request_fields.MODEL.read_optional("model", members)
    return ModelInfoRequest(stream, model, listing=_switch(members, "list"), **_extras("MODEL_INFO", members))


def _read_models(stream: str, members: Mapping[str, bytes]) -> ModelsRequest:
    load, unload = (request_fields.MODEL.read_optional(name, members) for name in ("load", "unload"))
    if None not in (load, unload):
        raise RequestError("the request has both load and unload; expected one of them")
    return ModelsRequest(stream, load, unload, **_extras("MODELS", members))


def _read_buffer(stream: str, members: Mapping[str, bytes]) -> BufferRequest:
    if "name" not in members:
        raise RequestError(f"name is missing; expected {request_fields.BUFFER_NAME.expected}")
    name = request_fields.BUFFER_NAME.read("name", members["name"])
    drop = _switch(members, "drop")
    if not drop and not {"append", "ttl"} & members.keys():
        raise RequestError("BUFFER says nothing to do; expected append, ttl, or drop: true")
    if drop and (extra := next((field for field in ("append", "ttl") if field in members), None)):
        raise RequestError(f"the request has both drop and {extra}; expected one of them")
    value = request_fields.APPEND.read_optional("append", members)
    append = None if value is None else ids_and_texts((value,) if isinstance(value, str) else value)
    ttl, model = request_fields.TTL.read_optional("ttl", members), request_fields.MODEL.read_optional("model", members)
    extras = _extras("BUFFER", members)
    return BufferRequest(stream, name, append, drop, ttl, model, extras["extended"], extras["ignored"])


def _read_watch(stream: str, members: Mapping[str, bytes]) -> WatchRequest:
    extras = _extras("WATCH", members)
    return WatchRequest(stream, extras["extended"], extras["ignored"])


def _read_cancel(stream: str, members: Mapping[str, bytes]) -> Cancel:
    model = request_fields.MODEL.read_optional("model", members)
    return Cancel(stream, model, request_fields.LMTP.read_optional("lmtp", members) is not None)


_READERS: Mapping[str, Callable[[str, Mapping[str, bytes]], ClientMessage]] = {
    "GENERATE": _read_generate,
    "SCORE": _read_score,
    "MODEL_INFO": _read_model_info,
    "CANCEL": _read_cancel,
    "MODELS": _read_models,
    "BUFFER": _read_buffer,
    "WATCH": _read_watch,
}


def _sampling(members: Mapping[str, bytes]) -> SamplingParams:
    values = {
        name: field.read(name, members[name]) for name, field in request_fields.SAMPLING.items() if name in members
    }
    if "stop" in members:
        stop = request_fields.STOP.read("stop", members["stop"])
        entries = stop if isinstance(stop, tuple) else (stop,)
        values["stop"] = tuple(entry for entry in entries if isinstance(entry, str))
        ids = tuple(entry for entry in entries if isinstance(entry, int))
        values["stop_token_ids"] = ids + values.get("stop_token_ids", ())
    if "logit_bias" in values:
        values["logit_bias"] = pack_bias(values["logit_bias"], members["logit_bias"])
    return SamplingParams(**values)


def _constraint(members: Mapping[str, bytes]) -> Constraint | None:
    value = request_fields.CONSTRAINT.read_optional("constraint", members)
    return None if value is None else constraint_from(value)


def _reasoning(members: Mapping[str, bytes]) -> Reasoning | None:
    value = request_fields.REASONING.read_optional("reasoning", members)
    if isinstance(value, request_fields.ReasoningFields):
        return Reasoning(value.budget, value.prefill)
    return Reasoning() if value else None


def _processors(members: Mapping[str, bytes]) -> tuple[NamedProcessor, ...]:
    value = request_fields.PROCESSORS.read_optional("logits_processors", members)
    return () if value is None else processors_from(value)


def _switch(members: Mapping[str, bytes], name: str, *, default: bool = False) -> bool:
    value = request_fields.SWITCH.read_optional(name, members)
    return default if value is None else value


def _extras(command: str, members: Mapping[str, bytes]) -> dict[str, Any]:
    """The members of a message beside its request."""
    unknown = nsmallest(_REPORTED_FIELDS, members.keys() - request_fields.KNOWN[command])
    return {
        "extended": request_fields.LMTP.read_optional("lmtp", members) is not None,
        "progress": _switch(members, "progress"),
        "ignored": tuple(name[:_REPORTED_CHARACTERS] for name in unknown),
    }


def write(message: ClientMessage) -> tuple[str, bytes]:
    """The command and the JSON of a message, without fields that have their default value.

    Raises `LocalProtocolError` for a number that is not finite or text that is not Unicode.
    """
    payload: dict[str, object]
    match message:
        case Generate(request):
            command, payload = "GENERATE", _generate_payload(request)
        case Score(request):
            command, payload = "SCORE", _score_payload(request)
        case ModelInfoRequest():
            command, payload = "MODEL_INFO", _payload(message.model, message.stream_id)
        case ModelsRequest():
            command, payload = "MODELS", _models_payload(message)
        case BufferRequest():
            command, payload = "BUFFER", _buffer_payload(message)
        case WatchRequest():
            command, payload = "WATCH", _payload(None, message.stream_id)
        case Cancel():
            command, payload = "CANCEL", _payload(message.model, message.stream_id)
    payload |= _common_payload(message)
    try:
        return command, msgspec.json.encode(payload)
    except UnicodeEncodeError:
        raise LocalProtocolError(f"the text of {command} holds half a surrogate pair; expected Unicode") from None


def _common_payload(message: ClientMessage) -> dict[str, object]:
    """What messages have in common."""
    payload: dict[str, object] = {"lmtp": PROTOCOL_VERSION} if message.extended else {}
    if not isinstance(message, Cancel | BufferRequest | WatchRequest) and message.progress:
        payload["progress"] = True
    if isinstance(message, ModelInfoRequest) and message.listing:
        payload["list"] = True
    return payload


def extensions(request: GenerateRequest | ScoreRequest) -> list[str]:
    """Parts of a request that LMQL 0.7.3's server does not know, in words for people."""
    payload = _generate_payload(request) if isinstance(request, GenerateRequest) else _score_payload(request)
    payload.pop("client", None)  # which is left out unless known
    names = [name for name in payload if name not in _LMQL_FIELDS]
    if isinstance(request, GenerateRequest) and request.constraint is not None:
        names[names.index("constraint")] = f"constraint ({request.constraint.kind})"
    names += [f"{name} as text" for name in ("prompt", "scored") if isinstance(payload.get(name), str)]
    parts = request.prompt.parts if isinstance(request.prompt, MixedPrompt) else ()
    names += [f"buffer {part.buffer!r}" for part in parts if isinstance(part, BufferSlice)]
    return names + (["top_logprobs 0 (1 is its least)"] if payload.get("top_logprobs") == 0 else [])


_LMQL_FIELDS = {"model", "stream_id", "prompt", "scored", "max_tokens", "temperature", "logit_bias"} | {
    "top_logprobs", "top_k", "top_p", "repetition_penalty",
}  # fmt: skip


def _generate_payload(request: GenerateRequest) -> dict[str, object]:
    payload = _payload(request.model, str(request.stream_id))
    payload |= write_prompt(request.prompt)
    payload |= _PREFILL if request.prefill_only else _sampling_payload(request)
    if request.text != is_text(request.prompt):
        payload["text"] = request.text
    if request.priority:
        payload["priority"] = request.priority
    if request.into is not None:
        payload["into"] = request.into
    return payload | _deadline_and_salt(request)


_PREFILL: Mapping[str, object] = {"prefill_only": True, "max_tokens": 0}
"""With `max_tokens`, a server that does not know the first one samples nothing either."""


def _sampling_payload(request: GenerateRequest) -> dict[str, object]:
    """What a request says of the tokens to sample."""
    payload: dict[str, object] = {}
    for name, default in DEFAULTS.items():
        if (value := getattr(request.sampling, name)) != default:
            payload[name] = _json_value(name, value)
    if request.constraint is not None:
        payload["constraint"] = written(request.constraint)
    if request.logits_processors:
        payload["logits_processors"] = written_processors(request.logits_processors)
    given = ((name, getattr(request, name)) for name in ("generated", "resumable", "logprob_token_ids"))
    payload |= {name: value for name, value in given if value}
    if request.reasoning is not None:
        asked = {name: value for name, value in asdict(request.reasoning).items() if value not in (None, "")}
        payload["reasoning"] = asked or True
    return payload


def _score_payload(request: ScoreRequest) -> dict[str, object]:
    payload = _payload(request.model, str(request.stream_id))
    payload |= write_prompt(request.prompt)
    payload["scored"] = request.scored
    if request.top_logprobs is not None:
        payload["top_logprobs"] = request.top_logprobs
    if request.text != (is_text(request.prompt) or isinstance(request.scored, str)):
        payload["text"] = request.text
    return payload | _deadline_and_salt(request)


def _deadline_and_salt(request: GenerateRequest | ScoreRequest) -> dict[str, object]:
    payload = {} if request.deadline is None else {"deadline": _json_value("deadline", request.deadline)}
    names = {name: value for name in ("cache_salt", "client") if (value := getattr(request, name))}
    return payload | names


def _models_payload(message: ModelsRequest) -> dict[str, object]:
    """With `model` too: LMQL's server closes a connection on a frame without (MOD-4)."""
    asked = {name: value for name in ("load", "unload") if (value := getattr(message, name)) is not None}
    return {**_payload(message.load or message.unload, message.stream_id), **asked}


def _buffer_payload(message: BufferRequest) -> dict[str, object]:
    payload = {**_payload(message.model, message.stream_id), "name": message.name}
    if message.append is not None:
        payload["append"] = [entry for part in message.append for entry in entries_of(part)]
    if message.ttl is not None:
        payload["ttl"] = message.ttl
    return {**payload, "drop": True} if message.drop else payload


def _payload(model: str | None, stream: str) -> dict[str, object]:
    start: dict[str, object] = {} if model is None else {"model": model}
    return {**start, "stream_id": msgspec.Raw(stream.encode())}


def _json_value(name: str, value: object) -> object:
    if isinstance(value, PackedBias) and value.json is not None:
        return msgspec.Raw(value.json)
    _refuse_infinite(name, value)
    return dict(value) if isinstance(value, Mapping) else value


def _refuse_infinite(name: str, value: object) -> None:
    numbers = value.values() if isinstance(value, Mapping) else (value,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise LocalProtocolError(f"{name} is {value}; expected finite numbers, the only ones that JSON has")
