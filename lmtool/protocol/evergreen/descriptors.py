"""The protobuf classes of the table in `messages`, built at import in a pool of their own, and its `.proto` text.

No file is generated: the table is where the fields are known. Other packages' messages of these names do not clash.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2

from lmtool.protocol.evergreen import messages
from lmtool.protocol.evergreen.generate_config import GenerateConfig
from lmtool.protocol.evergreen.messages import RESERVED, WireField, wire_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = "evergreen.v2"
SERVICE = "EvergreenService"
METHOD = "StartSession"
MESSAGES: Mapping[str, tuple[type, ...]] = {
    PACKAGE: (
        messages.NodeFragment,
        messages.Chunk,
        messages.ChunkMetadata,
        messages.NamedParameter,
        messages.TargetSpec,
        messages.Action,
        messages.SessionMessage,
    ),
    "lmtool.evergreen": (GenerateConfig,),
}
"""The messages of each package."""
_IMPORTS = (any_pb2, struct_pb2, timestamp_pb2)
_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "message": descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
}
_FULL_NAMES: dict[type, str] = {
    messages.AnyMessage: "google.protobuf.Any",
    messages.Timestamp: "google.protobuf.Timestamp",
    **{message: f"{package}.{message.__name__}" for package, group in MESSAGES.items() for message in group},
}


def full_name(message: type | str | None) -> str:
    """The name of a message with its package."""
    return message if isinstance(message, str) else _FULL_NAMES[message or object]


def file_name(package: str) -> str:
    """The file that a package's `.proto` text would be in."""
    return f"{package.replace('.', '/')}.proto"


def _file(package: str) -> descriptor_pb2.FileDescriptorProto:
    imports = [each.DESCRIPTOR.name for each in _IMPORTS]
    file = descriptor_pb2.FileDescriptorProto(
        name=file_name(package), package=package, syntax="proto3", dependency=imports
    )
    for message in MESSAGES[package]:
        _add_message(file.message_type.add(name=message.__name__), message)
    if package == PACKAGE:
        service = file.service.add(name=SERVICE)
        session = f".{full_name(messages.SessionMessage)}"
        service.method.add(
            name=METHOD, input_type=session, output_type=session, client_streaming=True, server_streaming=True
        )
    return file


def _add_message(descriptor: descriptor_pb2.DescriptorProto, message: type) -> None:
    fields = wire_fields(message)
    oneofs = list(dict.fromkeys(each.oneof for each in fields.values() if each.oneof is not None))
    oneofs += [f"_{name}" for name, each in fields.items() if each.optional]  # proto3's form of presence
    for name in oneofs:
        descriptor.oneof_decl.add(name=name)
    for name, each in fields.items():
        field = descriptor.field.add(name=name, number=each.number, type=_TYPES[each.kind])
        kind = descriptor_pb2.FieldDescriptorProto
        field.label = kind.LABEL_REPEATED if each.repeated else kind.LABEL_OPTIONAL
        if each.message is not None:
            field.type_name = f".{full_name(each.message)}"
        if each.optional or each.oneof is not None:
            field.proto3_optional = each.optional
            field.oneof_index = oneofs.index(each.oneof or f"_{name}")
    for number in RESERVED.get(message, ()):
        descriptor.reserved_range.add(start=number, end=number + 1)


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for each in _IMPORTS:
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    for package in MESSAGES:
        pool.AddSerializedFile(_file(package).SerializeToString())
    return pool


POOL = _pool()


@functools.cache
def protobuf_class(name: str) -> Any:  # noqa: ANN401  # made at run time
    """The class of a message by its full name. Raises `KeyError`."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def proto_text(package: str = PACKAGE) -> str:
    """The `.proto` file of a package, as it may be compiled for any language."""
    return "\n".join(_lines(package)) + "\n"


def _lines(package: str) -> Iterator[str]:
    fields = [each for message in MESSAGES[package] for each in wire_fields(message).values()]
    used = {full_name(each.message) for each in fields if each.message is not None}
    yield from ('syntax = "proto3";', "", f"package {package};", "")
    yield from (f'import "{each.DESCRIPTOR.name}";' for each in _IMPORTS if used & {m.full_name for m in _types(each)})
    if package == PACKAGE:
        session = messages.SessionMessage.__name__
        yield from ("", f"service {SERVICE} {{", f"  rpc {METHOD}(stream {session}) returns (stream {session});", "}")
    for message in MESSAGES[package]:
        yield from ("", f"message {message.__name__} {{")
        yield from (f"  reserved {number};" for number in RESERVED.get(message, ()))
        yield from _field_lines(wire_fields(message))
        yield "}"


def _types(module: Any) -> list[Any]:  # noqa: ANN401  # a generated module
    return list(module.DESCRIPTOR.message_types_by_name.values())


def _field_lines(fields: Mapping[str, WireField]) -> Iterator[str]:
    oneof = None
    for name, each in fields.items():
        if each.oneof != oneof:
            yield from ["  }"] if oneof is not None else []
            yield from [f"  oneof {each.oneof} {{"] if each.oneof is not None else []
            oneof = each.oneof
        kind = each.kind if each.message is None else full_name(each.message)
        label = "repeated " if each.repeated else "optional " if each.optional else ""
        yield f"{'    ' if oneof else '  '}{label}{kind} {name} = {each.number};"
    if oneof is not None:
        yield "  }"
