"""Decode JSON requests into structs; errors name the field, its value and what was expected."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, TypeVar

import msgspec
from msgspec import Meta, inspect

from lmtool.core.sampling_parameters import Range
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.unsupported import Table, supported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

MAX_FIELD_BYTES = 512 * 1024
"""Most JSON bytes of a field that is passed on undecoded."""
MAX_TOKENS = 2**31 - 1
"""Token limit if a request has none; the context length ends the answer."""
_SHOWN_CHARACTERS = 80

Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Positive = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An object of a request. `null` counts as absent; unknown fields are rejected, because they may be typos."""


class Part(msgspec.Struct, kw_only=True):
    """A part of a conversation, or a tool. Unknown fields are ignored.

    Clients send back fields from other servers, and add fields of their own.
    """


class Body(Fields):
    """A whole request. The fields here, except `model`, do not change the answer."""

    unsupported: ClassVar[Table] = MappingProxyType({})
    """Known parameters that the route does not support."""

    model: str | None = None
    user: str | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None


def read_object(read: Callable[[Mapping[str, Any]], T], data: bytes) -> T:
    """Result of `read` for the JSON object in a request's body. Raises `ApiError`."""
    try:
        try:
            body = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):  # `json` accepts more, and reports the position of an error
            body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the request is not a JSON object")
    try:
        return read(body)
    except UnicodeEncodeError as error:
        half = f"U+{ord(error.object[error.start]):04X}"
        raise ApiError(400, f"a name in the request has {half}, half a surrogate pair, which is no character") from None


def decode(kind: type[T], body: Mapping[str, Any], inside: str = "") -> T:
    """Struct of a JSON object. inside: path of the object within the request. Raises `ApiError` 400."""
    if issubclass(kind, Body):
        body = supported(kind.unsupported, body)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        if "unknown field" in str(error) and (present := _without_nulls(body)) != body:
            return decode(kind, present, inside)
        raise _refusal(kind, body, str(error), inside) from None


def _without_nulls(value: Any) -> Any:  # noqa: ANN401  # any JSON
    if isinstance(value, Mapping):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def check_size(param: str, value: object, limit: int = MAX_FIELD_BYTES) -> None:
    """Raise `ApiError` for a value whose JSON has more bytes than the limit."""
    if value is not None and (size := len(json.dumps(value))) > limit:
        raise ApiError(400, f"{param} has {size} bytes; expected at most {limit}", param=param)


def check_range(param: str, value: int | None, low: int, high: int) -> None:
    """Raise `ApiError` for a number outside a range that is known only at run time."""
    allowed = Range(low, high, integer=True)
    if value is not None and value not in allowed:
        raise wrong(param, value, str(allowed))


def refuse(param: str, sentence: str) -> NoReturn:
    """Raise `ApiError` for a field, with this message."""
    raise ApiError(400, sentence, param=param)


def wrong(param: str, value: object, expected: str) -> ApiError:
    """Error for a field with an invalid value."""
    if isinstance(value, str | list):
        value = value[: _SHOWN_CHARACTERS + 1]  # a long value is cut before `repr`
    excerpt = repr(value)
    excerpt = excerpt if len(excerpt) <= _SHOWN_CHARACTERS else f"{excerpt[:_SHOWN_CHARACTERS]}…"
    return ApiError(400, f"{param} is {excerpt}; expected {expected}", param=param, code="invalid_value")


def _refusal(kind: type, body: Any, problem: str, inside: str) -> ApiError:  # noqa: ANN401  # any JSON
    """Error for a message of msgspec, with the value and the expectation in place of msgspec's type names."""
    problem, _, path = problem.partition(" - at `$")
    path, value, expected = path.rstrip("`"), body, inspect.type_info(kind)
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        expected = _part(expected, value, name)
        value = value.get(name) if name else value[int(index)]
    place = f"{inside}{path}".removeprefix(".")
    name = (re.search("field `(.*)`", problem) or ["", ""])[1]
    param = ".".join(filter(None, (place, name)))
    if problem.startswith("Object contains unknown"):
        known = [field.encode_name for field in _fields(expected, value)]
        if issubclass(kind, Body) and not place:
            known += kind.unsupported
        near = [word for word in _OTHER_NAMES.get(name, ()) if word in known][:1]
        near = near or difflib.get_close_matches(name, known, n=1)
        advice = f"; did you mean {near[0]}?" if near else ""
        return ApiError(400, f"{param} is not known here{advice}", param=param, code="unknown_parameter")
    if problem.startswith("Object missing"):
        described = _described(_part(expected, value, name))
        return ApiError(400, f"{param} is missing; expected {described}", param=param, code="invalid_value")
    return wrong(param, value, _described(expected))


_OTHER_NAMES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict"),
        ("max_tokens", "max_output_tokens"),
    ),
    **dict.fromkeys(("stop", "stops", "stop_sequences", "stop_strings"), ("stop", "stop_sequences")),
    "repeat_penalty": ("repetition_penalty",),
    "system": ("instructions", "messages"),
    "messages": ("input", "prompt"),
    "input": ("messages", "prompt"),
    "response_format": ("output_config", "text"),
}
"""Names of the same field in other APIs and servers."""


def _part(info: inspect.Type, value: object, name: str) -> inspect.Type:
    """Type of a field, or of a list's items if the name is empty."""
    tags = [one.tag for one in _alternatives(info) if isinstance(one, inspect.StructType) and one.tag_field == name]
    if name and tags:
        return inspect.LiteralType(tuple(tag for tag in tags if isinstance(tag, str)))
    if name:
        return next((field.type for field in _fields(info, value) if field.encode_name == name), inspect.AnyType())
    lists = (one for one in _alternatives(info) if isinstance(one, inspect.ListType))
    return next((one.item_type for one in lists), inspect.AnyType())


def _fields(info: inspect.Type, value: object) -> Sequence[inspect.Field]:
    """Fields of the struct expected for an object; of several structs, the one its tag selects."""
    structs = [one for one in _alternatives(info) if isinstance(one, inspect.StructType)]
    tagged = (one for one in structs if isinstance(value, Mapping) and value.get(one.tag_field or "") == one.tag)
    struct = next(tagged, structs[0] if structs else None)
    return () if struct is None else struct.fields


def _alternatives(info: inspect.Type) -> list[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        return _alternatives(info.type)
    if isinstance(info, inspect.UnionType):
        return [one for part in info.types for one in _alternatives(part)]
    return [info]


_NAMES = {inspect.StrType: "a text", inspect.BoolType: "true or false", inspect.DictType: "an object"}


def _described(info: inspect.Type) -> str:
    """Readable description of the values that a field accepts."""
    if isinstance(info, inspect.Metadata):
        described = (info.extra_json_schema or {}).get("description")
        return str(described) if described else _described(info.type)
    if isinstance(info, inspect.UnionType):
        return ", or ".join(_described(one) for one in info.types if not isinstance(one, inspect.NoneType))
    if isinstance(info, inspect.IntType | inspect.FloatType):
        low = next((end for end in (info.ge, info.gt) if end is not None), -(2**63))
        high = 2**63 - 1 if info.le is None else info.le
        return str(Range(low, high, integer=isinstance(info, inspect.IntType), above=info.gt is not None))
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(map(str, info.values))
    if isinstance(info, inspect.ListType):
        length = f" of at most {info.max_length}" if info.max_length else ""
        return f"a list{length}, each {_described(info.item_type)}"
    if isinstance(info, inspect.StructType):
        needed = [field.encode_name for field in info.fields if field.required]
        return f"an object with {' and '.join(needed)}" if needed else "an object"
    return _NAMES.get(type(info), "another value")
