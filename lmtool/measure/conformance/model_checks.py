"""What can be expected of a server's answers to MODEL_INFO and MODELS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.measure.conformance.transcript import msg_refusal, short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.measure.conformance.transcript import Transcript

    _Problems = Iterator[str]

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
    "list": list,
    "number": (int, float),
}


def model_info(log: Transcript, *, of: object, has: Mapping[str, str] | None = None, kind: str = "object") -> _Problems:
    """The request is answered once with `model_info` of a kind, whose members `has` are of these kinds."""
    infos = [entry["model_info"] for entry in log.replies(of) if "model_info" in entry]
    if len(infos) != 1:
        yield f"request {of}: expected one MSG entry with model_info, got {len(infos)}{msg_refusal(log, of, 'a')}"
        return
    info = infos[0]
    if kind == "object" and not isinstance(info, dict):
        yield f"model_info is {short(info)}; expected an object"
        return
    for name, type_name in (has or {}).items():
        member = info.get(name) if isinstance(info, dict) else None
        if not isinstance(member, _KINDS[type_name]) or (isinstance(member, bool) and type_name != "boolean"):
            yield f"model_info.{name} is {short(member)}; expected {type_name}"


def listed(log: Transcript, *, of: object) -> _Problems:
    """The request is answered once with `models`, a list of objects with a name and a phase."""
    listings = [entry["models"] for entry in log.replies(of) if "models" in entry]
    entries = listings[0] if len(listings) == 1 and isinstance(listings[0], list) else None
    if entries is None:
        yield f"request {of}: expected one MSG entry with a list of models, got {len(listings)}{msg_refusal(log, of)}"
    for entry in entries or ():
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("name", "phase")):
            yield f"an entry of models is {short(entry)}; expected an object with name and phase"


def fingerprints(log: Transcript, *, of: Sequence[object], without: object) -> _Problems:
    """Answers to these requests have one fingerprint, or none where the server does not know it.

    That of the request `without`, which was sent before any asked for extensions, has none.
    """
    found = [_fingerprint(log, request) for request in of]
    if (early := _fingerprint(log, without)) is not None:
        yield f"the answer to request {without} has the fingerprint {short(early)}; nothing has asked for extensions"
    if any(one != found[0] for one in found):
        yield f"the fingerprints of one model differ: {short(found)}"
    for one in {str(value) for value in found if value is not None}:
        if not re.fullmatch("[0-9a-f]{64}", one):
            yield f"the fingerprint is {short(one)}; expected 64 digits of lower-case hex"


def key_limits(log: Transcript, *, of: object, without: object) -> _Problems:
    """Limits of the client's key are whole numbers, where it has any.

    The request `without`, which was sent before any asked for extensions, is not told of them.
    """
    if (early := _member(log, without, "key_limits")) is not None:
        yield f"the answer to request {without} has key_limits {short(early)}; nothing has asked for extensions"
    found = _member(log, of, "key_limits")
    if found is not None and not (isinstance(found, dict) and all(type(one) is int for one in found.values())):
        yield f"key_limits is {short(found)}; expected an object of whole numbers"


def _fingerprint(log: Transcript, of: object) -> object:
    return _member(log, of, "fingerprint")


def _member(log: Transcript, of: object, name: str) -> object:
    """A member of the description in the answer to a request."""
    for entry in log.replies(of):
        if isinstance(info := entry.get("model_info"), dict):
            return info.get(name)
    return None
