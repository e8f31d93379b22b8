"""MODEL_INFO's answer: from a `ModelInfo` to the wire's object, and back from whatever a server tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.lmtp.messages import EXTENSIONS, PROTOCOL_VERSION
from lmtool.types import ModelInfo, TokenizerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

UNAVAILABLE = "<unavailable>"
"""What LMQL's server answers while it loads a model, and for ever when the load failed."""

_NUMBERS = ("vocab_size", "context_length", "bos_token_id", "parameters", "running", "waiting")
_TEXTS = ("architecture", "dtype", "device", "kernels")


def to_wire(info: ModelInfo) -> dict[str, object]:
    """The `model_info` object: the LMTP document's `model` and `constructor` first, then what else is known.

    Library versions stand at the top level, as with LMQL's server; what is not known is left out.
    """
    told: dict[str, object] = {"model": info.model, "model_type": info.backend, "constructor": info.constructor}
    told.update(info.versions)
    for name in (*_NUMBERS, *_TEXTS):
        value = getattr(info, name)
        if value is not None:
            told[name] = value
    told["eos_token_ids"] = info.eos_token_ids
    if info.tokenizer is not None:
        told["tokenizer"] = {"name": info.tokenizer.name, "sha256": info.tokenizer.sha256}
    told["chat_template"] = info.chat_template
    told["versions"] = dict(info.versions)
    told["lmtp"] = PROTOCOL_VERSION
    told["extensions"] = EXTENSIONS
    return told


def from_wire(told: Mapping[str, object] | str, model: str | None) -> ModelInfo:
    """What a server told, as far as it makes sense; `model` is the name that was asked for."""
    if isinstance(told, str):
        return ModelInfo(model=model or "", constructor=told, backend="unknown")
    name = _text(told, "model") or _text(told, "model_identifier") or model or ""
    return ModelInfo(
        model=name,
        constructor=_text(told, "constructor") or "",
        backend=_text(told, "model_type") or "unknown",
        eos_token_ids=tuple(token for token in _list(told, "eos_token_ids") if isinstance(token, int)),
        tokenizer=_tokenizer(told.get("tokenizer")),
        chat_template=told.get("chat_template") is True,
        versions=_versions(told),
        vocab_size=_number(told, "vocab_size"),
        context_length=_number(told, "context_length"),
        bos_token_id=_number(told, "bos_token_id"),
        parameters=_number(told, "parameters"),
        running=_number(told, "running"),
        waiting=_number(told, "waiting"),
        architecture=_text(told, "architecture"),
        dtype=_text(told, "dtype"),
        device=_text(told, "device"),
        kernels=_text(told, "kernels"),
    )


def _text(told: Mapping[str, object], field: str) -> str | None:
    value = told.get(field)
    return value if isinstance(value, str) else None


def _number(told: Mapping[str, object], field: str) -> int | None:
    value = told.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(told: Mapping[str, object], field: str) -> list[object]:
    value = told.get(field)
    return value if isinstance(value, list) else []


def _tokenizer(value: object) -> TokenizerInfo | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    return TokenizerInfo(value["name"], str(value.get("sha256", "")))


def _versions(told: Mapping[str, object]) -> dict[str, str]:
    versions = told.get("versions")
    if isinstance(versions, dict):
        return {str(library): str(version) for library, version in versions.items()}
    libraries = ("transformers", "bitsandbytes", "llama-cpp-python")
    return {library: str(told[library]) for library in libraries if library in told}
