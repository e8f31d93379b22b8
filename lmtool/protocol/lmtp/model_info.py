"""MODEL_INFO's answers, a description or a list: written as objects, read from any server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import msgspec

from lmtool.core import sampling_defaults
from lmtool.core.model_entry import ModelEntry, ModelPhase
from lmtool.core.reasoning import ReasoningFormat
from lmtool.core.types import ModelInfo, TokenizerInfo, ToolCallFormat
from lmtool.protocol.lmtp.messages import EXTENSIONS, PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

UNAVAILABLE = "<unavailable>"
"""What LMQL's server answers while it loads a model, and for ever when the load failed."""

_NUMBERS = ("vocab_size", "context_length", "bos_token_id", "parameters", "running", "waiting")
_TEXTS = ("architecture", "dtype", "device", "kernels")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def to_wire(
    info: ModelInfo, limits: Mapping[str, int | None] | None = None, *, extended: bool = False, trusted: bool = False
) -> dict[str, object]:
    """The `model_info` object: the LMTP document's `model` and `constructor` first, then what else is known.

    Library versions stand at the top level, as with LMQL's server; what is not known is left out. limits: of the
    server, by their names on the wire (INF-7). extended: for a client that knows the extensions, with `fingerprint`
    (INF-8) and `key_limits` (INF-9). trusted: for one that is believed for whom it asks (GEN-21).
    """
    members: dict[str, object] = {"model": info.model, "model_type": info.backend, "constructor": info.constructor}
    members.update(info.versions)
    for name in (*_NUMBERS, *_TEXTS):
        value = getattr(info, name)
        if value is not None:
            members[name] = value
    if extended and info.fingerprint is not None:
        members["fingerprint"] = info.fingerprint
    members["eos_token_ids"] = info.eos_token_ids
    if info.tokenizer is not None:
        members["tokenizer"] = {"name": info.tokenizer.name, "sha256": info.tokenizer.sha256}
    members["chat_template"] = info.chat_template
    if info.text_only:
        members["text_only"] = True
    if info.batch_invariant is not None:
        members["batch_invariant"] = info.batch_invariant
    if info.sampling_defaults:
        members["sampling_defaults"] = dict(info.sampling_defaults)
    if info.tool_calls is not None:
        members["tool_calls"] = info.tool_calls
    members["versions"] = dict(info.versions)
    all_limits = {"top_logprobs": info.max_top_logprobs, **(limits or {})}
    if extended:
        members |= {"key_limits": dict(info.key_limits)} if info.key_limits else {}
        members |= {} if info.reasoning is None else {"reasoning": info.reasoning}
    members["limits"] = {name: limit for name, limit in all_limits.items() if limit is not None}
    members["lmtp"] = PROTOCOL_VERSION
    members["extensions"] = EXTENSIONS if trusted else tuple(name for name in EXTENSIONS if name != "client")
    return members


def from_wire(members: Mapping[str, object] | str, model: str | None) -> ModelInfo:
    """The description in a server's answer, as far as it makes sense; `model` is the name in the request."""
    if isinstance(members, str):
        return ModelInfo(model=model or "", constructor=members, backend="unknown")
    known: dict[str, Any] = {name: _number(members, name) for name in _NUMBERS}
    known |= {name: _text(members, name) for name in _TEXTS}
    limits = members.get("limits")
    return ModelInfo(
        model=_text(members, "model") or _text(members, "model_identifier") or model or "",
        constructor=_text(members, "constructor") or "",
        backend=_text(members, "model_type") or "unknown",
        eos_token_ids=tuple(token for token in _list(members, "eos_token_ids") if isinstance(token, int)),
        tokenizer=_tokenizer(members.get("tokenizer")),
        chat_template=members.get("chat_template") is True,
        fingerprint=digest if _FINGERPRINT.fullmatch(digest := _text(members, "fingerprint") or "") else None,
        text_only=members.get("text_only") is True,
        batch_invariant=value if isinstance(value := members.get("batch_invariant"), bool) else None,
        sampling_defaults=sampling_defaults.known(members.get("sampling_defaults")),
        tool_calls=_format(members.get("tool_calls"), ToolCallFormat, ToolCallFormat()),
        reasoning=_format(members.get("reasoning"), ReasoningFormat, None),
        versions=_versions(members),
        key_limits=_key_limits(members.get("key_limits")),
        max_top_logprobs=_number(limits, "top_logprobs") if isinstance(limits, dict) else None,
        **known,
    )


def entry_to_wire(entry: ModelEntry) -> dict[str, object]:
    """One entry of `models`; what is not known is left out."""
    members: dict[str, object] = {"name": entry.name, "phase": entry.phase}
    if entry.aliases:
        members["aliases"] = entry.aliases
    for name in ("size_bytes", "context_length", "architecture", "idle_seconds", "error"):
        value = getattr(entry, name)
        if value is not None:
            members[name] = value
    if entry.sampling_defaults:
        members["sampling_defaults"] = dict(entry.sampling_defaults)
    if entry.pinned:
        members["pinned"] = True
    return members


def entry_from_wire(members: Mapping[str, object]) -> ModelEntry:
    """One entry of a server's `models`, as far as it makes sense; a phase of a later server counts as ready."""
    phase, idle = members.get("phase"), members.get("idle_seconds")
    return ModelEntry(
        _text(members, "name") or "",
        tuple(alias for alias in _list(members, "aliases") if isinstance(alias, str)),
        cast("ModelPhase", phase) if phase in get_args(ModelPhase) else "ready",
        _number(members, "size_bytes"),
        _number(members, "context_length"),
        float(idle) if isinstance(idle, int | float) else None,
        members.get("pinned") is True,
        _text(members, "error"),
        _text(members, "architecture"),
        sampling_defaults.known(members.get("sampling_defaults")) or None,
    )


def _text(members: Mapping[str, object], field: str) -> str | None:
    value = members.get(field)
    return value if isinstance(value, str) else None


def _number(members: Mapping[str, object], field: str) -> int | None:
    value = members.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(members: Mapping[str, object], field: str) -> list[object]:
    value = members.get(field)
    return value if isinstance(value, list) else []


def _key_limits(value: object) -> dict[str, int]:
    return {name: limit for name, limit in value.items() if type(limit) is int} if isinstance(value, dict) else {}


def _tokenizer(value: object) -> TokenizerInfo | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    return TokenizerInfo(value["name"], str(value.get("sha256", "")))


def _format(value: object, kind: type[T], otherwise: T | None) -> T | None:
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError:  # of a later server
        return otherwise


def _versions(members: Mapping[str, object]) -> dict[str, str]:
    versions = members.get("versions")
    if isinstance(versions, dict):
        return {str(library): str(version) for library, version in versions.items()}
    libraries = ("transformers", "bitsandbytes", "llama-cpp-python")
    return {library: str(members[library]) for library in libraries if library in members}
