"""Classes and stubs of the public interface, compiled by grpcio-tools from its `.proto`, in a pool of their own."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2
from grpc_tools import protoc

PROTO = Path(__file__).parent.parent.parent / "data/evergreen/evergreen.proto"


def compiled(text: str) -> descriptor_pb2.FileDescriptorProto:
    """What protoc makes of a `.proto` text."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "one.proto", Path(folder) / "set"
        source.write_text(text)
        own = Path(grpc_tools.__path__[0]) / "_proto"
        assert protoc.main(["protoc", f"-I{folder}", f"-I{own}", f"--descriptor_set_out={out}", str(source)]) == 0
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


@functools.cache
def public_pool() -> descriptor_pool.DescriptorPool:
    """The public interface."""
    pool = descriptor_pool.DescriptorPool()
    for each in (any_pb2, struct_pb2, timestamp_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(compiled(PROTO.read_text()).SerializeToString())
    return pool


def public(name: str) -> Any:
    """A class of the public interface, such as `SessionMessage`."""
    return message_factory.GetMessageClass(public_pool().FindMessageTypeByName(f"evergreen.v2.{name}"))
