"""The payloads of TOKEN and MSG: written as lists, read as lists or single objects."""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast, get_args

import msgspec
from msgspec import UNSET, UnsetType

from lmtool.core.seam import Seam  # noqa: TC001  # msgspec reads the annotation
from lmtool.core.types import FinishReason, LoadProgress, NamedToken, TokenOutput, ToolCallPart, Usage
from lmtool.protocol.lmtp import json_text
from lmtool.protocol.lmtp.json_text import JsonTextError
from lmtool.protocol.lmtp.messages import (
    BufferAnswer,
    FieldsIgnored,
    ModelInfoAnswer,
    ModelsAnswer,
    Progress,
    RequestFailed,
    ServerMessage,
    System,
    SystemMessage,
    UnknownMessage,
    Watched,
    wire_code,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST_LOGPROB = -3.4028234663852886e38
"""Stands for the logarithm of zero, which JSON cannot write: the lowest float32."""

LONGEST_RETRY = 86_400
"""Most seconds of a `retry_after` that are believed: a day."""
_FINISH_REASONS = get_args(FinishReason)


def write_output(output: TokenOutput, *, extended: bool) -> bytes:
    """One entry of a TOKEN list; `extended` adds `usage`, `warnings` and what EXT-4 and EXT-7 say of errors.

    `output.stream_id` is the id's JSON text. A logprob of minus infinity becomes `LEAST_LOGPROB`, an alternative that
    cannot occur is left out. Raises `ValueError` when the logprob is not a number at all.
    """
    stream_id = msgspec.Raw(str(output.stream_id).encode())
    if output.error is not None:
        told = (wire_code(output.error_code), output.retryable, output.retry_after, output.error_hints)
        entry = _error_entry(stream_id, output.error, *told if extended else ())
        return json_text.dump({**entry, "attempts": output.attempts} if output.attempts else entry)
    if output.named_tokens or output.tool_calls:
        return json_text.dump(_text_entry(stream_id, output))
    has_token, alternatives = output.token is not None, output.top_logprobs
    return json_text.dump(
        _WrittenEntry(
            output.token if has_token else UNSET,
            stream_id,
            _finite(output.logprob) if has_token else UNSET,
            output.finish_reason,
            UNSET if alternatives is None else {token: p for token, p in alternatives if math.isfinite(p)},
            UNSET if output.text is None else output.text,
            _written_usage(output.usage) if extended and output.usage is not None else UNSET,
            output.warnings if extended and output.warnings else UNSET,
            UNSET if output.seed is None else output.seed,
            output.attempts or UNSET,
            output.seam or UNSET,
            UNSET if output.reasoning is None else output.reasoning,
        )
    )


class _Counts(msgspec.Struct, gc=False, omit_defaults=True):
    """A `types.Usage` on the wire: a stream without a thought says nothing of one."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


def _written_usage(usage: Usage) -> _Counts:
    return _Counts(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)


class _WrittenEntry(msgspec.Struct, gc=False):
    """An entry of a TOKEN list: a struct is written in two thirds of the time of a dictionary."""

    token: int | UnsetType | None
    stream_id: msgspec.Raw
    logprob: float | UnsetType | None
    finish_reason: str | None
    top_logprobs: dict[int, float] | UnsetType
    text: str | UnsetType
    usage: _Counts | UnsetType
    warnings: tuple[str, ...] | UnsetType
    seed: int | UnsetType
    attempts: str | UnsetType
    seam: Seam | UnsetType
    reasoning: str | UnsetType


def _text_entry(stream_id: msgspec.Raw, output: TokenOutput) -> dict[str, object]:
    """An entry of a model without ids: tokens by their texts, and what was added to tool calls (TXT-5)."""
    entry: dict[str, object] = {
        "stream_id": stream_id,
        "finish_reason": output.finish_reason,
        "text": output.text or "",
    }
    if output.named_tokens:
        entry["tokens"] = [
            {
                "bytes": list(one.piece),
                "logprob": _finite(one.logprob),
                "top_logprobs": [
                    [list(piece), logprob] for piece, logprob in one.top_logprobs if math.isfinite(logprob)
                ],
            }
            for one in output.named_tokens
        ]
    if output.tool_calls:
        entry["tool_calls"] = output.tool_calls
    if output.seam is not None:
        entry["seam"] = output.seam
    if output.reasoning is not None:
        entry["reasoning"] = output.reasoning
    return entry


def write_message(
    message: ModelInfoAnswer | ModelsAnswer | BufferAnswer | RequestFailed | Progress | System | FieldsIgnored,
) -> bytes:
    """One entry of a MSG list."""
    stream_id = msgspec.Raw((message.stream_id or "null").encode())
    match message:
        case RequestFailed():
            told = (message.error_code, message.retryable, message.retry_after, message.hints)
            return json_text.dump(_error_entry(stream_id, message.error, *told))
        case ModelInfoAnswer():
            return json_text.dump({"stream_id": stream_id, "model_info": message.model_info})
        case ModelsAnswer():
            return json_text.dump({"stream_id": stream_id, "models": message.models})
        case BufferAnswer():
            buffer = {"name": message.name, "length": message.length}
            return json_text.dump({"stream_id": stream_id, "buffer": buffer})
        case Progress():
            return json_text.dump({"stream_id": stream_id, "progress": message.progress})
        case System():
            fields = {name: value for name, value in asdict(message.system).items() if value is not None}
            return json_text.dump({"stream_id": stream_id, "system": fields})
        case FieldsIgnored():
            return json_text.dump({"stream_id": stream_id, "ignored": message.fields})


def write_watched(stream_id: str, time: float, events: Sequence[bytes], lost: int) -> bytes:
    """One entry of a MSG list that tells what went over other connections. events: each as JSON."""
    watch = {"time": round(time, 6), "events": msgspec.Raw(b"[" + b",".join(events) + b"]"), "lost": lost}
    return json_text.dump({"stream_id": msgspec.Raw(stream_id.encode()), "watch": watch})


def _error_entry(
    stream_id: msgspec.Raw,
    error: str,
    error_code: str | None = None,
    retryable: bool | None = None,
    retry_after: int = 0,
    hints: tuple[str, ...] = (),
) -> dict[str, object]:
    """An entry that tells of an error, with what is known of it."""
    entry: dict[str, object] = {"stream_id": stream_id, "error": error}
    if error_code is not None:
        entry["error_code"] = error_code
    if retryable is not None:
        entry["retryable"] = retryable
    if retry_after:
        entry["retry_after"] = retry_after
    if hints:
        entry["hints"] = hints
    return entry


def _finite(logprob: float | None) -> float | None:
    if logprob is None or math.isfinite(logprob):
        return logprob
    if math.isnan(logprob):
        raise ValueError("the logprob is not a number")
    return LEAST_LOGPROB if logprob < 0 else 0.0


class _NamedToken(msgspec.Struct, kw_only=True):
    """A token of a model without ids."""

    bytes: list[Annotated[int, msgspec.Meta(ge=0, le=255)]]
    logprob: float | None = None
    top_logprobs: list[tuple[list[Annotated[int, msgspec.Meta(ge=0, le=255)]], float]] = []

    def token(self) -> NamedToken:
        """The token."""
        top = tuple((bytes(piece), logprob) for piece, logprob in self.top_logprobs)
        return NamedToken(bytes(self.bytes), self.logprob, top)


class _ErrorDetails(msgspec.Struct, kw_only=True):
    """What an entry says of its error beside the sentence and the code (EXT-7)."""

    retryable: bool | None = None
    retry_after: float | None = None
    hints: tuple[str, ...] | None = None

    @property
    def seconds(self) -> int:
        """`retry_after` in whole seconds, from 0 to `LONGEST_RETRY`."""
        return math.ceil(min(max(self.retry_after or 0, 0), LONGEST_RETRY))


class _Fields(_ErrorDetails, kw_only=True):
    """What an entry of a TOKEN list says of its stream."""

    token: int | None = None
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None
    finish_reason: str | None = None
    text: str | None = None
    usage: Usage | None = None
    error: str | None = None
    error_code: str | None = None
    warnings: tuple[str, ...] | None = None
    tokens: list[_NamedToken] | None = None
    tool_calls: tuple[ToolCallPart, ...] | None = None
    seed: int | None = None
    attempts: str = ""
    seam: Seam | None = None
    reasoning: str | None = None


class _Entry(_Fields, kw_only=True):
    stream_id: msgspec.Raw


_ENTRIES = msgspec.json.Decoder(list[_Entry])


def read_tokens(payload: str) -> tuple[TokenOutput, ...]:
    """The entries of a TOKEN; one that is malformed becomes an error of its stream. Raises `JsonTextError`."""
    try:
        return tuple([_output(bytes(entry.stream_id).decode(), entry) for entry in _ENTRIES.decode(payload)])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return tuple(map(_tolerant_output, _entries(payload)))


def read_messages(payload: str) -> list[ServerMessage]:
    """The entries of a MSG. Raises `JsonTextError`."""
    return [_message(entry) for entry in _entries(payload)]


def _entries(payload: str) -> list[Mapping[str, object]]:
    try:
        value = json_text.load(payload)
    except JsonTextError as error:
        raise JsonTextError(f"is not JSON: {error}") from None
    entries: list[Mapping[str, object]] = []
    for entry in value if isinstance(value, list) else [value]:
        if not json_text.is_object(entry) or "stream_id" not in entry:
            raise JsonTextError(f"has {json_text.kind_of(entry)} where an object with stream_id is expected")
        entries.append(entry)
    return entries


def _output(stream_id: str, entry: _Fields) -> TokenOutput:
    top_logprobs = entry.top_logprobs
    reason = entry.finish_reason
    if reason is not None and reason not in _FINISH_REASONS:
        reason = "stop"  # whatever the server calls it, the stream is over
    return TokenOutput(
        stream_id,
        entry.token,
        entry.logprob,
        None if top_logprobs is None else _best_first(top_logprobs),
        entry.text,
        cast("FinishReason | None", reason),
        entry.usage,
        entry.error,
        entry.error_code if entry.error is None else entry.error_code or "server",
        entry.warnings or (),
        named_tokens=() if entry.tokens is None else tuple([token.token() for token in entry.tokens]),
        tool_calls=entry.tool_calls or (),
        seed=entry.seed,
        error_hints=entry.hints or (),
        retryable=entry.retryable,
        retry_after=entry.seconds,
        attempts=entry.attempts,
        seam=entry.seam,
        reasoning=entry.reasoning,
    )


def _best_first(top_logprobs: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    if len(top_logprobs) == 1:
        return tuple(top_logprobs.items())
    return tuple(sorted(top_logprobs.items(), key=lambda alternative: -alternative[1]))


def _tolerant_output(entry: Mapping[str, object]) -> TokenOutput:
    """The output of an entry in a frame that the strict reader refused."""
    stream_id = _id_text(entry)
    fields = {name: value for name, value in entry.items() if name != "stream_id"}
    fields["logprob"] = _finite_or_none(entry.get("logprob"))
    alternatives = entry.get("top_logprobs")
    if json_text.is_object(alternatives):
        # LMQL's server writes -Infinity for what top_k or top_p removed.
        fields["top_logprobs"] = {
            token: logprob for token, logprob in alternatives.items() if _finite_or_none(logprob) is not None
        }
    try:
        return _output(stream_id, msgspec.convert(fields, _Fields, str_keys=True))
    except msgspec.ValidationError as error:
        return TokenOutput(
            stream_id, error=f"the server sent a TOKEN that makes no sense: {error}", error_code="protocol"
        )


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _id_text(entry: Mapping[str, object]) -> str:
    return json_text.dump(entry["stream_id"]).decode()


def _message(entry: Mapping[str, object]) -> ServerMessage:
    stream_id = None if entry["stream_id"] is None else _id_text(entry)
    if entry.get("error") is not None:
        code, details = entry.get("error_code"), _details(entry)
        return RequestFailed(
            stream_id,
            str(entry["error"]),
            code if isinstance(code, str) else None,
            details.hints or (),
            details.retryable,
            details.seconds,
        )
    if stream_id is None:
        return UnknownMessage("MSG")
    return _information(stream_id, entry) or UnknownMessage("MSG", stream_id)


def _details(entry: Mapping[str, object]) -> _ErrorDetails:
    """What an entry says of its error; nothing where that is not as it should be."""
    try:
        return msgspec.convert(dict(entry), _ErrorDetails)
    except msgspec.ValidationError:
        return _ErrorDetails()


def _information(stream_id: str, entry: Mapping[str, object]) -> ServerMessage | None:
    """The message of a MSG entry that is no error; None for one that is unknown, or not as it should be."""
    match entry:
        case {"model_info": value}:
            return ModelInfoAnswer(stream_id, value if json_text.is_object(value) else str(value))
        case {"models": value}:
            return ModelsAnswer(stream_id, value if isinstance(value, list) else ())
        case {"buffer": {"name": str(name), "length": int(length)}}:
            return BufferAnswer(stream_id, name, length)
        case {"watch": {"time": int(time) | float(time), "events": list(events), **more}}:
            lost = more.get("lost")
            return Watched(stream_id, float(time), events, lost if isinstance(lost, int) else 0)
        case {"progress": value}:
            with contextlib.suppress(msgspec.ValidationError):
                return Progress(stream_id, msgspec.convert(value, LoadProgress))
        case {"system": value}:
            with contextlib.suppress(msgspec.ValidationError):
                return System(stream_id, msgspec.convert(value, SystemMessage))
        case {"ignored": value}:
            return FieldsIgnored(stream_id, tuple(map(str, value)) if isinstance(value, list) else ())
    return None
