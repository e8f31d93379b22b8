"""The grammar of hostile frames and requests: the same for a seed, wide, and never an order that harms the server."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random

import pytest

from lmtool.protocol.evergreen.codec import decode
from tests.lab.soak.attacks import GRPC, ROUTES, SOCKETS, Attack, generate, session_message
from tests.lab.soak.connection import TEXT, Address, frame
from tests.lab.soak.grammar import broken_json

ADDRESS = Address.of("127.0.0.1:8080")
WIRES = (*SOCKETS, *ROUTES, GRPC)


def drawn(wire: str, number: int, seed: int = 0) -> list[Attack]:
    random = Random(seed)
    return [generate(random, wire, ADDRESS, "lmtool-tiny", "own") for _ in range(number)]


@pytest.mark.parametrize("wire", WIRES)
def test_an_attack_can_be_repeated(wire: str) -> None:
    """A breach names seed and number, which give the same bytes again; another seed gives others."""
    assert [one.data for one in drawn(wire, 50)] == [one.data for one in drawn(wire, 50)]
    assert [one.data for one in drawn(wire, 50)] != [one.data for one in drawn(wire, 50, seed=1)]


def test_every_wire_is_attacked_in_every_way() -> None:
    """In its values, members and text, in its frames, and in HTTP itself."""
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for wire in WIRES:
        for one in drawn(wire, 600):
            kinds[wire].add(one.delivery)
            kinds[f"{wire} kinds"].add(one.kind)
    assert kinds["LMTP"] == kinds["Evergreen"] == kinds["chatStream"] == {"message", "frames"}
    assert kinds["chat"] == kinds["responses"] == {"request", "bytes"}
    assert kinds[GRPC] == {"call"}
    assert len(kinds["LMTP kinds"]) > 60
    assert {"nesting", "not UTF-8", "member twice", "a message in a message"} <= kinds["Evergreen kinds"]


def test_no_attack_unloads_the_model() -> None:
    """The server under load goes on serving: what is sent is wrong, and no valid order to stop."""
    for one in drawn("LMTP", 3000):
        assert b'"unload": "lmtool-tiny"' not in one.data


def test_broken_json_is_mostly_broken() -> None:
    """What is wrong is in the text, or in a value that the tree did not have."""
    random, tree = Random(0), {"prompt": [1, 2], "stream_id": 1}
    broken = 0
    for _ in range(300):
        _, text = broken_json(random, tree)
        try:
            broken += json.loads(text) != tree
        except (ValueError, RecursionError):
            broken += 1
    assert broken > 250  # a member twice with one value, and line breaks around it, change nothing


def test_a_plain_session_is_valid() -> None:
    """What is broken afterwards is a message that the codec reads."""
    message = decode(json.dumps(session_message("n", "Hello", "lmtool-tiny", 3)))
    assert message.actions[0].target == "lmtool-tiny"
    assert message.node_fragments[0].chunk_fragment.data == b"Hello"


def test_frames_may_lie() -> None:
    """A frame is written as it is described, valid or not (RFC 6455, 5.2)."""
    assert frame(TEXT, b"ab") == b"\x81\x82\0\0\0\0ab"
    assert (
        frame(TEXT, b"ab", fin=False, reserved=7, masked=False, length=2**40)
        == b"\x71\x7f" + (2**40).to_bytes(8, "big") + b"ab"
    )
    assert frame(TEXT, b"a" * 300)[:4] == b"\x81\xfe\x01\x2c"
