"""The codec: our table is the public interface, and both encodings carry every message."""

from __future__ import annotations

import base64
import json
import pickle
import time

import pytest
from google.protobuf import descriptor_pb2, json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.protocol.evergreen.codec import (
    decode,
    encode,
    encode_json,
    pack_generate_config,
    pack_struct,
    unpack_config,
)
from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.descriptors import MESSAGES, POOL, file_name, proto_text
from lmtool.protocol.evergreen.generate_config import GenerateConfig
from lmtool.protocol.evergreen.messages import (
    Action,
    AnyMessage,
    Chunk,
    ChunkMetadata,
    NamedParameter,
    NodeFragment,
    SessionMessage,
    TargetSpec,
    Timestamp,
)
from lmtool.protocol.evergreen.status import Abort, Status
from tests.protocol.evergreen.stubs import PROTO, compiled, public

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
structs = st.dictionaries(texts, st.none() | st.booleans() | texts | st.lists(st.integers(-9, 9)), max_size=1)
anys = structs.map(pack_struct)
stamps = st.builds(Timestamp, st.integers(0, 2**32), st.integers(0, 999_999_999))
metadata = st.builds(ChunkMetadata, texts, texts, texts, st.none() | stamps, st.lists(anys, max_size=2).map(tuple))
payloads = st.one_of(
    st.builds(Chunk, st.none() | metadata),
    st.builds(Chunk, st.none() | metadata, st.none(), st.binary(max_size=8)),
    st.builds(Chunk, st.none() | metadata, texts),
)
ids = st.lists(texts, max_size=3).map(tuple)
fragments = st.builds(NodeFragment, texts, st.integers(-(2**31), 2**31 - 1), st.booleans(), ids, st.none() | payloads)
parameters = st.lists(st.builds(NamedParameter, texts, texts), max_size=3).map(tuple)
actions = st.builds(
    Action,
    texts,
    parameters,
    parameters,
    st.lists(anys, max_size=2).map(tuple),
    st.none() | st.builds(TargetSpec, texts),
)
messages = st.builds(
    SessionMessage, st.lists(fragments, max_size=3).map(tuple), st.lists(actions, max_size=2).map(tuple)
)


def facts(file: descriptor_pb2.FileDescriptorProto) -> dict[str, object]:
    """All that travels of an interface: messages, fields with number, type and presence, reserved numbers, methods."""
    found: dict[str, object] = {}
    for message in file.message_type:
        for each in message.field:
            oneof = message.oneof_decl[each.oneof_index].name if each.HasField("oneof_index") else None
            found[f"{message.name}.{each.name}"] = (
                each.number, each.type, each.label, each.type_name, oneof, each.proto3_optional
            )  # fmt: skip
        found[message.name] = [(each.start, each.end) for each in message.reserved_range]
    for service in file.service:
        for method in service.method:
            streaming = (method.client_streaming, method.server_streaming)
            found[f"{service.name}/{method.name}"] = (method.input_type, method.output_type, streaming)
    return {"package": file.package, "syntax": file.syntax, **found}


def own(package: str) -> descriptor_pb2.FileDescriptorProto:
    """Our descriptors of a package."""
    return descriptor_pb2.FileDescriptorProto.FromString(POOL.FindFileByName(file_name(package)).serialized_pb)


def test_the_table_is_the_public_interface():
    """Field by field: names, numbers, types, labels, oneofs, presence, reserved numbers, and the service."""
    assert facts(own("evergreen.v2")) == facts(compiled(PROTO.read_text()))


@pytest.mark.parametrize("package", MESSAGES)
def test_the_printed_proto_compiles_to_the_table(package):
    """What is printed can be compiled, and says what we speak."""
    assert facts(compiled(proto_text(package))) == facts(own(package))


@settings(max_examples=60, deadline=None)
@given(messages)
def test_both_encodings_carry_every_message(message):
    """A message is the same after binary and after JSON, also by way of the public interface's own classes."""
    data = encode(message)
    assert decode(data) == message
    assert decode(encode_json(message)) == message
    theirs = public("SessionMessage").FromString(data)
    assert decode(theirs.SerializeToString()) == message


def test_json_in_both_spellings():
    """JSON may have camelCase or snake_case, base64 or base64url; what is unknown there is refused."""
    data = b"\xfb\xff\xfe"
    expected = SessionMessage((NodeFragment("a", 0, False, (), Chunk(ChunkMetadata("x/y"), None, data)),))
    url_safe = base64.urlsafe_b64encode(data).decode().rstrip("=")
    for fragment in (
        {"id": "a", "chunkFragment": {"metadata": {"mimetype": "x/y"}, "data": base64.b64encode(data).decode()}},
        {"id": "a", "chunk_fragment": {"metadata": {"mimetype": "x/y"}, "data": url_safe}},
    ):
        assert decode(json.dumps({"nodeFragments": [fragment]})) == expected
        assert decode(json.dumps({"node_fragments": [fragment]})) == expected


def test_json_leaves_out_defaults():
    """What is a default is absent from JSON, as the library has it."""
    text = encode_json(SessionMessage((NodeFragment("a", 0, False, (), Chunk(ChunkMetadata("a/b"))),)))
    assert json.loads(text) == {"nodeFragments": [{"id": "a", "chunkFragment": {"metadata": {"mimetype": "a/b"}}}]}
    assert text == json.dumps(json.loads(text), separators=(",", ":"))


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff",
        b"\x0a\x05ab",
        b"\x0a" + b"\xff" * 11,
        b"\x0b",
        b"\x0a\x03\x0a\x01\xff",
        b"\x0a\xff\xff\xff\xff\x0f" + b"a" * 5000,
        b"\x0b" * 5000,
        b"\xff" * 5000,
        "",
        "[]",
        "{",
        '"a"',
        '{"nodes": []}',
        '{"nodeFragments": {}}',
        '{"nodeFragments": [5]}',
        '{"nodeFragments": [{"id": 5}]}',
        '{"nodeFragments": [{"seq": 3000000000}]}',
        '{"nodeFragments": [{"seq": 1e400}]}',
        '{"nodeFragments": [{"id": "\\ud800"}]}',
        '{"nodeFragments": [{"chunkFragment": {"data": "*"}}]}',
        '{"nodeFragments": [{"chunkFragment": {"data": "", "ref": ""}}]}',
        '{"actions": [{"configs": [{"@type": "x/unknown.Type"}]}]}',
        '{"actions": [{"configs": [{"value": {}}]}]}',
        '{"actions": [{"configs": [{"@type": "type.googleapis.com/google.protobuf.Struct"}]}]}',
        '{"actions": [{"configs": [{"@type": "type.googleapis.com/google.protobuf.Any", "value": {"@type": "a"}}]}]}',
        '{"actions": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"nodeFragments": [{"seq": ' + "9" * 5000 + "}]}",
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(frame):
    """Malformed bytes and texts are INVALID_ARGUMENT, too many RESOURCE_EXHAUSTED, in a short sentence (rule 41)."""
    with pytest.raises(Abort) as caught:
        decode(frame)
    assert caught.value.status in {Status.INVALID_ARGUMENT, Status.RESOURCE_EXHAUSTED}
    assert len(caught.value.sentence) < 300


def nested_any(levels: int) -> bytes:
    """A message with an Any in an Any in an Any."""
    inner = AnyMessage("type.googleapis.com/google.protobuf.Struct", b"")
    for _ in range(levels):
        value = public_any(inner)
        inner = AnyMessage("type.googleapis.com/google.protobuf.Any", value)
    return encode(SessionMessage(actions=(Action("A", configs=(inner,)),)))


def public_any(message: AnyMessage) -> bytes:
    """An Any in binary form."""
    from google.protobuf import any_pb2

    return any_pb2.Any(type_url=message.type_url, value=message.value).SerializeToString()


def repeated(count: int, data: bytes) -> bytes:
    """So many copies."""
    return data * count


@pytest.mark.parametrize(
    "frame",
    [
        repeated(2_000_000, b"\x0a\x00"),
        repeated(2_000_000, b"\x12\x00"),
        b"\x0a" + b"\x80\x92\xf4\x01" + repeated(2_000_000, b"\x22\x00"),
        b"\x12" + b"\x80\x92\xf4\x01" + repeated(2_000_000, b"\x1a\x00"),
        b"\x12" + b"\x80\x92\xf4\x01" + repeated(2_000_000, b"\x2a\x00"),
        '{"nodeFragments": [' + "{}," * 1_300_000 + "{}]}",
        '{"nodeFragments": [' + "{}," * 20_000 + "{}]}",
        '{"nodeFragments": [{"childIds": [' + '"",' * 1_300_000 + '""]}]}',
        b" " * (4 * 1024 * 1024 + 1),
        " " * (4 * 1024 * 1024 + 1),
    ],
    ids=lambda frame: f"{type(frame).__name__} {frame[:14]!r}",
)
def test_what_would_not_fit_is_counted_before_it_is_decoded(frame):
    """A message of two million empty parts is RESOURCE_EXHAUSTED, before memory is taken for them."""
    began = time.process_time()
    with pytest.raises(Abort, match="the limit max_message_") as caught:
        decode(frame)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert time.process_time() - began < 2


def test_a_scan_changes_nothing():
    """A long message within the limits is read whole; one item more than the limit is refused."""
    message = SessionMessage(
        tuple(NodeFragment("n", seq, True, ("a", "b")) for seq in range(1000)),
        (Action("A", (NamedParameter("p", "n"),)),),
    )
    assert decode(encode(message), SessionLimits(max_message_items=3002)) == message
    with pytest.raises(Abort, match="max_message_items"):
        decode(encode(message), SessionLimits(max_message_items=3001))


def test_configs():
    """A Struct and a GenerateConfig are the same options by name; another type is refused by name."""
    config = GenerateConfig(
        max_tokens=16, seed=2**60, stop=("a", "b"), logit_bias={"5": -100.0}, ignore_eos=False, deadline=2.5
    )
    expected = {
        "max_tokens": 16,
        "seed": 2**60,
        "stop": ["a", "b"],
        "logit_bias": {"5": -100.0},
        "ignore_eos": False,
        "deadline": 2.5,
    }
    assert unpack_config(pack_generate_config(config)) == expected
    assert unpack_config(pack_struct({"max_tokens": 16, "stop": "a"})) == {"max_tokens": 16.0, "stop": "a"}
    with pytest.raises(Abort, match=r"'a\.B' is not known"):
        unpack_config(AnyMessage("x/a.B", b""))
    with pytest.raises(Abort, match="Struct"):
        unpack_config(AnyMessage("x/google.protobuf.Struct", b"\xff"))


def test_nested_any_stays_closed():
    """An Any in an Any is not opened: a thousand levels are bytes."""
    [action] = decode(nested_any(1000)).actions
    with pytest.raises(Abort, match=r"google\.protobuf\.Any"):
        unpack_config(action.configs[0])


def test_json_of_the_library():
    """Our JSON is read by the public interface's classes, and theirs by ours."""
    message = SessionMessage((NodeFragment("ä", 3, True, ("b",)),))
    theirs = json_format.Parse(encode_json(message), public("SessionMessage")())
    assert decode(json_format.MessageToJson(theirs)) == message


def test_aborts_travel_between_processes():
    """A refusal keeps its status and sentence where a long message is read in another process."""
    abort = Abort(Status.NOT_FOUND, "there is none", "ask again")
    copied = pickle.loads(pickle.dumps(abort))
    assert (copied.status, copied.sentence) == (abort.status, abort.sentence)
