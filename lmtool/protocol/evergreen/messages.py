"""The wire messages of `evergreen.v2`, each field with its number: the one table of which descriptors are built."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias

FieldKind: TypeAlias = Literal["string", "bytes", "int32", "int64", "double", "bool", "message"]
"""Types of protobuf that occur."""

_KEY = "wire"


class WireField(NamedTuple):
    """How one field of a dataclass travels."""

    number: int
    kind: FieldKind
    message: type | str | None = None
    """Of a field that is a message: its dataclass, or `google.protobuf.Struct`, which is a mapping here."""
    repeated: bool = False
    optional: bool = False
    """True if its absence differs from its default (proto3 `optional`); messages always have presence."""
    oneof: str | None = None


def wire(number: int, kind: FieldKind, default: Any = None, **more: Any) -> Any:  # noqa: ANN401  # as `field` is
    """A dataclass field that travels under this number; `more`: further fields of `WireField`."""
    default = () if more.get("repeated") else default
    return field(default=default, metadata={_KEY: WireField(number, kind, **more)})


def wire_fields(message: type) -> dict[str, WireField]:
    """The fields of a message that travel, by name, in the order of the dataclass."""
    return {each.name: each.metadata[_KEY] for each in fields(message) if _KEY in each.metadata}


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment in UTC, as `google.protobuf.Timestamp` has it."""

    seconds: int = wire(1, "int64", 0)
    """Since 1970."""
    nanos: int = wire(2, "int32", 0)


@dataclass(frozen=True, slots=True)
class AnyMessage:
    """A message of any type in its binary form, as `google.protobuf.Any` has it; `codec.unpack_config` reads it."""

    type_url: str = wire(1, "string", "")
    """Ends with `/` and the full name of the type."""
    value: bytes = wire(2, "bytes", b"")

    @property
    def type_name(self) -> str:
        """The full name of the type."""
        return self.type_url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ChunkMetadata:
    """What a leaf's bytes are; on its fragment with seq 0."""

    mimetype: str = wire(1, "string", "")
    """Unknown `text/*` is to be read as text/plain."""
    role: str = wire(2, "string", "")
    """In a conversation."""
    original_file_name: str = wire(3, "string", "")
    """Without folders."""
    capture_time: Timestamp | None = wire(6, "message", message=Timestamp)
    """For latency, never for ordering."""
    experimental: tuple[AnyMessage, ...] = wire(100, "message", message=AnyMessage, repeated=True)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a leaf's bytes: inline, or a reference to where they are; neither is an empty piece."""

    metadata: ChunkMetadata | None = wire(1, "message", message=ChunkMetadata)
    ref: str | None = wire(3, "string", oneof="payload")
    """URI of outside data."""
    data: bytes | None = wire(10, "bytes", oneof="payload")


@dataclass(frozen=True, slots=True)
class NodeFragment:
    """A piece of a node: of a leaf's bytes, of a parent's list of children, or of neither (a terminator)."""

    id: str = wire(1, "string", "")
    """The node's, chosen by its producer."""
    seq: int = wire(2, "int32", 0)
    """Place among the node's fragments, from 0."""
    continued: bool = wire(3, "bool", False)  # noqa: FBT003
    """True if fragments with higher seq follow; False: this one is final."""
    child_ids: tuple[str, ...] = wire(4, "string", repeated=True)
    chunk_fragment: Chunk | None = wire(5, "message", message=Chunk, optional=True)


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """A parameter of an action, and the root node that is its value."""

    name: str = wire(1, "string", "")
    id: str = wire(2, "string", "")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Who is to carry out an action."""

    id: str = wire(1, "string", "")
    """A model's name; empty: the server's default."""


@dataclass(frozen=True, slots=True)
class Action:
    """A call of a function over nodes, whose outputs are nodes. Field 1 is reserved."""

    name: str = wire(2, "string", "")
    inputs: tuple[NamedParameter, ...] = wire(3, "message", message=NamedParameter, repeated=True)
    outputs: tuple[NamedParameter, ...] = wire(4, "message", message=NamedParameter, repeated=True)
    configs: tuple[AnyMessage, ...] = wire(5, "message", message=AnyMessage, repeated=True)
    target_spec: TargetSpec | None = wire(6, "message", message=TargetSpec)

    @property
    def target(self) -> str:
        """The target's id; empty for the default."""
        return "" if self.target_spec is None else self.target_spec.id


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """All that travels, in both directions. Its fragments and actions are one step, without an order among them."""

    node_fragments: tuple[NodeFragment, ...] = wire(1, "message", message=NodeFragment, repeated=True)
    actions: tuple[Action, ...] = wire(2, "message", message=Action, repeated=True)


RESERVED: dict[type, tuple[int, ...]] = {Action: (1,)}
"""Field numbers that are never used again."""
