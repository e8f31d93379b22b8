"""Messages to bytes and back: protobuf's binary form, and proto-JSON, by the protobuf runtime over our own table.

What a message would hold is counted by a bounded scan before it is decoded: 4 MiB of empty fragments would take 130 MB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.descriptors import POOL, full_name, protobuf_class
from lmtool.protocol.evergreen.generate_config import GenerateConfig
from lmtool.protocol.evergreen.messages import AnyMessage, SessionMessage, WireField, wire_fields
from lmtool.protocol.evergreen.status import Abort, invalid, over_limit, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

M = TypeVar("M")
Plan: TypeAlias = "list[tuple[str, WireField, Callable[[Any], Any] | None]]"

STRUCT = "google.protobuf.Struct"
SCAN_BYTES = 4 * 1024
"""Shorter messages cannot hold enough to matter, and are not scanned."""
_SIGNS = 8
"""Braces, brackets and commas of JSON for each fragment."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_TYPE_PREFIX = "type.googleapis.com/"


def decode(frame: str | bytes, limits: SessionLimits | None = None) -> SessionMessage:
    """A message as it travels: text is proto-JSON, bytes are protobuf. Raises `Abort` (rule 41)."""
    limits = limits or SessionLimits()
    size = (
        len(frame)
        if isinstance(frame, bytes) or len(frame) > limits.max_message_bytes
        else len(frame.encode(errors="surrogatepass"))
    )
    if size > limits.max_message_bytes:
        raise over_limit("max_message_bytes", limits.max_message_bytes, f"a message has more than {size - 1:,} bytes")
    return _decode_binary(frame, limits) if isinstance(frame, bytes) else _decode_json(frame, limits)


def encode(message: SessionMessage) -> bytes:
    """The binary form."""
    return cast("bytes", _to_protobuf(message).SerializeToString())


def encode_json(message: SessionMessage) -> str:
    """The proto-JSON form, in camelCase and in one line. Raises `Abort` for an `Any` of a type that is not known."""
    return json.dumps(_to_json(message), ensure_ascii=False, separators=(",", ":"))


def json_value(message: SessionMessage) -> Mapping[str, object]:
    """The proto-JSON form as an object, for a record; `{"hex": ...}` for a message that JSON cannot write."""
    try:
        return _to_json(message)
    except Abort:
        return {"hex": encode(message).hex()}


def _to_json(message: SessionMessage) -> Mapping[str, object]:
    try:
        return json_format.MessageToDict(_to_protobuf(message), descriptor_pool=POOL)
    except (TypeError, ValueError, json_format.SerializeToJsonError) as error:
        raise invalid(f"a message cannot be written as JSON: {quoted(str(error))}") from error


# Binary.


def _decode_binary(data: bytes, limits: SessionLimits) -> SessionMessage:
    if len(data) >= SCAN_BYTES:
        _scan(data, limits.max_message_items)
    message = protobuf_class(full_name(SessionMessage))()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise invalid("a message is no evergreen.v2.SessionMessage in protobuf's binary form") from None
    return _from_protobuf(SessionMessage, message)


def _scan(data: bytes, most: int) -> None:
    """Raise `Abort` for more than `most` repeated fields at all levels, or a length that leads out of its message."""
    count = 0
    waiting: list[tuple[type, int, int]] = [(SessionMessage, 0, len(data))]
    while waiting:
        message, at, end = waiting.pop()
        fields = _REPEATED[message]
        while at < end:
            tag, at = _varint(data, at, end)
            number, kind = tag >> 3, tag & 7
            if kind == 2:
                length, at = _varint(data, at, end)
                inner = fields.get(number)
                if inner is not None:
                    count += inner[0]
                    if inner[1] is not None:
                        waiting.append((inner[1], at, at + length))
                at += length
            elif kind == 0:
                _, at = _varint(data, at, end)
            elif kind in _FIXED:
                at += _FIXED[kind]
            else:
                raise invalid(f"a message has a field of wire type {kind}, which protobuf does not use any more")
            if count > most:
                raise over_limit("max_message_items", most, "a message has too many fragments, parameters or ids")
        if at != end:
            raise invalid("a message has a field that is longer than the message")


_FIXED = {1: 8, 5: 4}


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise invalid("a message ends within a number, or has one of more than 64 bits")


def _repeated(message: type) -> dict[int, tuple[int, type | None]]:
    """By number: how much an occurrence of a field counts, and the message in it, for fields that are looked into."""
    found: dict[int, tuple[int, type | None]] = {}
    for each in wire_fields(message).values():
        inner = each.message if isinstance(each.message, type) else None
        if each.repeated or inner is not None:
            found[each.number] = (int(each.repeated), inner)
    return found


def _all_messages(root: type) -> Iterator[type]:
    yield root
    for each in wire_fields(root).values():
        if isinstance(each.message, type):
            yield from _all_messages(each.message)


_REPEATED = {message: _repeated(message) for message in _all_messages(SessionMessage)}


# JSON.


def _decode_json(text: str, limits: SessionLimits) -> SessionMessage:
    most = limits.max_message_items
    if sum(map(text.count, "{[,")) > most * _SIGNS + 64:
        raise over_limit("max_message_items", most, "a message has too many fragments, parameters or ids")
    try:
        values = json.loads(text)
        _check_json(values, most)
        message = json_format.ParseDict(values, protobuf_class(full_name(SessionMessage))(), descriptor_pool=POOL)
    except RecursionError:
        raise invalid("a message is JSON that is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise invalid(f"a message is no JSON: {error.msg} at character {error.pos}") from None
    except KeyError as error:  # protobuf's own, of an Any of a known type
        raise invalid(f"a message has an Any without its member {error}") from None
    except (json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        raise invalid(f"a message is no evergreen.v2.SessionMessage as JSON: {quoted(str(error))}") from None
    return _from_protobuf(SessionMessage, message)


def _check_json(values: object, most: int) -> None:
    if not isinstance(values, dict):
        raise invalid(f"a message is JSON's {type(values).__name__}; expected an object")
    found = [values.get(name) for name in ("nodeFragments", "node_fragments", "actions")]
    items = [item for value in found if isinstance(value, list) for item in value]
    if len(items) > most:
        raise over_limit("max_message_items", most, f"a message has {len(items):,} fragments and actions")
    for item in items:
        chunk = (item.get("chunkFragment") or item.get("chunk_fragment")) if isinstance(item, dict) else None
        data = chunk.get("data") if isinstance(chunk, dict) else None
        if isinstance(data, str) and not _BASE64.fullmatch(data):  # the library passes over foreign characters
            raise invalid(f"the data of a fragment is no base64: {quoted(data)}")


# Between protobuf's classes and ours.


def _reader(each: WireField) -> Callable[[Any], Any] | None:
    if isinstance(each.message, type):
        return partial(_from_protobuf, each.message)
    return None if each.message is None else _struct


_PLANS: dict[type, Plan] = {}


def _plan_of(message: type) -> Plan:
    if message not in _PLANS:
        _PLANS[message] = [(name, each, _reader(each)) for name, each in wire_fields(message).items()]
    return _PLANS[message]


def _from_protobuf(kind: type[M], message: Any) -> M:  # noqa: ANN401  # a class made at run time
    values: list[Any] = []
    for name, each, read in _plan_of(kind):
        if each.repeated:
            value = getattr(message, name)
            values.append(tuple(value) if read is None else tuple(map(read, value)))
        elif (each.message is not None or each.optional or each.oneof is not None) and not message.HasField(name):
            values.append(None)
        else:
            value = getattr(message, name)
            values.append(value if read is None else read(value))
    return kind(*values)


def _to_protobuf(message: object) -> Any:  # noqa: ANN401  # a class made at run time
    target = protobuf_class(full_name(type(message)))()
    _write(message, target)
    return target


def _write(message: object, target: Any) -> None:  # noqa: ANN401  # a class made at run time
    for name, each, _ in _plan_of(type(message)):
        value = getattr(message, name)
        if value is None or value == ():
            continue
        if each.message is None:
            if each.repeated:
                getattr(target, name).extend(value)
            else:
                setattr(target, name, value)
            continue
        for one in value if each.repeated else (value,):
            inner = getattr(target, name).add() if each.repeated else getattr(target, name)
            _write_inner(one, inner)


def _write_inner(value: object, target: Any) -> None:  # noqa: ANN401  # a class made at run time
    target.SetInParent()
    if isinstance(value, Mapping):
        target.update(value)
    else:
        _write(value, target)


# Any.


def unpack_config(config: AnyMessage) -> Mapping[str, object]:
    """A configuration message as a JSON object of OpenAI's names; numbers of a Struct are floats.

    Raises `Abort`, INVALID_ARGUMENT, for a type that is neither Struct nor `GenerateConfig`, and for what is none.
    """
    name = config.type_name
    if name not in {STRUCT, full_name(GenerateConfig)}:
        raise invalid(f"a config of type {quoted(name)} is not known", f"send {STRUCT} or {full_name(GenerateConfig)}")
    message = protobuf_class(name)()
    try:
        message.ParseFromString(config.value)
    except DecodeError:
        raise invalid(f"a config is no {name}") from None
    if name == STRUCT:
        return _struct(message)
    values = _from_protobuf(GenerateConfig, message)
    fields = {each: getattr(values, each) for each in wire_fields(GenerateConfig)}
    return {
        each: list(value) if isinstance(value, tuple) else value
        for each, value in fields.items()
        if value is not None and value != ()
    }


def pack_struct(values: Mapping[str, object]) -> AnyMessage:
    """A JSON object as an Any of a Struct. Raises `Abort` for what JSON does not have."""
    message = protobuf_class(STRUCT)()
    try:
        json_format.ParseDict(dict(values), message)
    except json_format.ParseError as error:
        raise invalid(f"a config is no JSON object: {quoted(str(error))}") from None
    return AnyMessage(_TYPE_PREFIX + STRUCT, message.SerializeToString())


def pack_generate_config(config: GenerateConfig) -> AnyMessage:
    """A `GenerateConfig` as an Any."""
    return AnyMessage(_TYPE_PREFIX + full_name(GenerateConfig), _to_protobuf(config).SerializeToString())


def _struct(message: Any) -> Mapping[str, object]:  # noqa: ANN401  # a class made at run time
    try:
        return json_format.MessageToDict(message, descriptor_pool=POOL)
    except (json_format.SerializeToJsonError, ValueError) as error:
        raise invalid(f"a Struct has a value that JSON does not have: {quoted(str(error))}") from None
