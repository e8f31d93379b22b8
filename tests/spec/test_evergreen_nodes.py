"""Evergreen, nodes, fragments and the tree (EVG-1 to EVG-22)."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.messages import Chunk, ChunkMetadata, NodeFragment, SessionMessage
from lmtool.protocol.evergreen.session import Session
from lmtool.protocol.evergreen.status import Abort, Status
from tests.protocol.evergreen.harness import action, leaf, parent
from tests.protocol.evergreen.sessions import fed, leaves, refused, value

FIRST = leaf("a", "jam ", continued=True)
SECOND = leaf("a", "dough", 1, continued=True)
LAST = leaf("a", "nut", 2)


def test_defaults():
    """EVG-1: without `seq` and `continued`, a fragment is the only one of its node."""
    session = fed(NodeFragment("a", chunk_fragment=Chunk(ChunkMetadata("text/plain"), None, b"x")))
    node = session.graph.node("a")
    assert (node.in_order, node.final_seq, node.complete) == (1, 0, True)


def test_any_order():
    """EVG-2, EVG-6: whatever the order, the node is the same, and complete with the last that was missing."""
    for order in itertools.permutations([FIRST, SECOND, LAST]):
        session = Session()
        for count, fragment in enumerate(order, 1):
            session.feed(SessionMessage((fragment,)))
            assert session.graph.node("a").complete is (count == 3)
        assert value(session, "a") == b"jam doughnut"


@pytest.mark.parametrize(
    "again",
    [
        leaf("a", "other", 1, continued=True),
        leaf("a", "other", 1),
        parent("a", "child", seq=1),
        NodeFragment("a", 1, False, ("",), Chunk(ChunkMetadata("x/y"))),
        NodeFragment("a", 1),
    ],
    ids=str,
)
def test_the_first_of_a_seq_counts(again):
    """EVG-3: a second fragment with a seq is ignored, before the final one and after it, behind a gap or not."""
    for order in ([FIRST, SECOND, again, LAST], [FIRST, SECOND, LAST, again], [SECOND, again, FIRST, LAST]):
        session = fed(*order)
        assert value(session, "a") == b"jam doughnut"
        assert session.graph.node("a").complete


@pytest.mark.parametrize("late", [leaf("a", "x", 3), leaf("a", "x", 3, continued=True)], ids=str)
def test_nothing_follows_the_final_one(late):
    """EVG-4: a seq above the final one aborts."""
    refused(Status.INVALID_ARGUMENT, FIRST, SECOND, LAST, late, match="ended with seq 2")
    refused(Status.INVALID_ARGUMENT, LAST, late, match="ended with seq 2")


def test_a_final_one_below_another():
    """EVG-5: a final fragment below a seq that has arrived aborts."""
    refused(Status.INVALID_ARGUMENT, SECOND, leaf("a", "x"), match="ends with seq 0")
    refused(
        Status.INVALID_ARGUMENT, FIRST, leaf("a", "x", 4, continued=True), leaf("a", "y", 2), match="ends with seq 2"
    )


def test_boundaries_mean_nothing():
    """EVG-7: bytes are the same wherever they are cut, within a character too."""
    data = "Krapfen für später".encode()
    for at in range(len(data) + 1):
        session = fed(leaf("a", data[:at], continued=True), leaf("a", data[at:], 1))
        assert value(session, "a") == data


@pytest.mark.parametrize(
    "fragments",
    [
        [FIRST, parent("a", "b", seq=1)],
        [parent("a", "b", continued=True), leaf("a", "x", 1)],
        [leaf("a", "x", 1), parent("a", "b", continued=True)],
        [dataclasses.replace(FIRST, child_ids=("b",))],
    ],
    ids=["leaf, parent", "parent, leaf", "out of order", "in one"],
)
def test_leaf_or_parent(fragments):
    """EVG-8: payloads and children exclude each other."""
    refused(Status.INVALID_ARGUMENT, *fragments, match="both a chunk and children")


@pytest.mark.parametrize(
    "fragments",
    [
        [leaf("a", "x", mimetype=None)],
        [leaf("a", "x", 1), leaf("a", "x", continued=True, mimetype=None)],
        [NodeFragment("a", 0, True), leaf("a", "x", 1)],
        [leaf("a", "x", 1), NodeFragment("a", 0, True)],
    ],
    ids=["alone", "last", "no chunk on seq 0", "no chunk on seq 0, last"],
)
def test_metadata_is_required(fragments):
    """EVG-9: a leaf without metadata on seq 0 aborts, when seq 0 has arrived."""
    refused(Status.INVALID_ARGUMENT, *fragments, match="no metadata")


def with_metadata(seq: int, data: bytes | None, mimetype: str = "text/plain", **more) -> NodeFragment:
    return NodeFragment("a", seq, chunk_fragment=Chunk(ChunkMetadata(mimetype), None, data), **more)


def test_metadata_is_repeated_at_most():
    """EVG-10: metadata after seq 0 is that of seq 0, or without a payload; else it aborts, in any order."""
    same, closing = with_metadata(1, b"x", continued=True), with_metadata(2, None, "application/octet-stream")
    other = with_metadata(1, b"x", "text/html", continued=True)
    for order in itertools.permutations([FIRST, same, closing]):
        assert value(fed(*order), "a") == b"jam x"
    for order in itertools.permutations([FIRST, other, LAST]):
        refused(Status.INVALID_ARGUMENT, *order, match="other metadata after seq 0")
    for fragment in (same, closing):
        refused(Status.INVALID_ARGUMENT, fragment, match="metadata", limits=SessionLimits(strict_metadata=True))


def test_terminators():
    """EVG-11: a fragment without content ends a leaf or a parent; alone it is an empty node without leaves."""
    assert value(fed(FIRST, NodeFragment("a", 1)), "a") == b"jam "
    assert leaves(fed(parent("p", "a", continued=True), NodeFragment("p", 1), leaf("a", "x")), "p") == [b"x"]
    session = fed(NodeFragment("e"), parent("p", "e", "a", "e"), leaf("a", "x"))
    assert session.graph.node("p").complete
    assert leaves(session, "p") == [b"x"]
    assert leaves(session, "e") == []


def test_an_empty_leaf_is_a_value():
    """EVG-12: an empty payload with a mime type is a leaf among others."""
    end = leaf("end", mimetype="application/x-protobuf; type=EndOfTurn")
    assert leaves(fed(parent("p", "a", "end"), leaf("a", "x"), end), "p") == [b"x", b""]


@pytest.mark.parametrize(
    ("fragment", "match"),
    [
        (leaf("a", "x", -1), "seq -1"),
        (leaf("a", "x", -(2**31)), "seq -2147483648"),
        (leaf("", "x"), "id is empty"),
        (parent("p", "a", ""), "id is empty"),
    ],
)
def test_what_cannot_be(fragment, match):
    """EVG-13: a negative seq and empty ids abort."""
    refused(Status.INVALID_ARGUMENT, fragment, match=match)


def test_a_huge_seq():
    """EVG-13: a seq that could never be reached within the limits is refused as it comes; others take no memory."""
    refused(Status.RESOURCE_EXHAUSTED, leaf("a", "x", 2**31 - 1), match="max_fragments is 65,536")
    session = fed(leaf("a", "x", 65_535))
    assert session.graph.size < 1000


def test_children_before_and_after():
    """EVG-14: children may be named before and after they arrive, and grandchildren too."""
    fragments = [parent("p", "q", "b"), parent("q", "a"), leaf("a", "1"), leaf("b", "2")]
    for order in itertools.permutations(fragments):
        session = Session()
        for count, fragment in enumerate(order, 1):
            session.feed(SessionMessage((fragment,)))
            assert session.graph.node("p").complete is (count == 4)
        assert leaves(session, "p") == [b"1", b"2"]


def test_children_of_several_fragments():
    """EVG-14, EVG-2: children of several fragments are joined by seq, in whatever order these come."""
    session = fed(parent("p", "c", seq=2), parent("p", "b", seq=1, continued=True), leaf("b", "2"), leaf("c", "3"))
    assert leaves(session, "p") == []
    session.feed(SessionMessage((leaf("a", "1"), parent("p", "a", continued=True))))
    assert leaves(session, "p") == [b"1", b"2", b"3"]


def test_shared_nodes():
    """EVG-15: a node below two parents, twice below one, and an input of two actions."""
    session = fed(
        parent("p", "a", "b", "a"),
        parent("q", "a"),
        action("X", {"in": "a"}, {"out": "1"}),
        action("X", {"in": "a", "more": "a"}, {"out": "2"}),
        leaf("a", "1"),
        leaf("b", "2"),
    )
    assert leaves(session, "p") == [b"1", b"2", b"1"]
    assert leaves(session, "q") == [b"1"]
    assert len(session.running) == 2


def test_depth_first():
    """EVG-16: leaves come depth first and from left to right, of whatever type."""
    fragments = [parent("p", "1", "q", "4"), parent("q", "2", "r"), parent("r", "3")]
    fragments += [leaf(each, each, mimetype=f"x/{each}") for each in "4321"]
    assert leaves(fed(*fragments), "p") == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("length", [1, 2, 3, 60])
def test_circles(length):
    """EVG-17: the edge that closes a circle aborts as it comes, whichever it is."""
    ring = [parent(f"n{at}", f"n{(at + 1) % length}") for at in range(length)]
    for order in (ring, ring[::-1], ring[length // 2 :] + ring[: length // 2]):
        fed(*order[:-1])
        refused(Status.INVALID_ARGUMENT, *order, match="depend on itself")


@pytest.mark.parametrize(
    "messages",
    [
        [action("X", {"in": "a"}, {"out": "a"})],
        [parent("p", "out"), action("X", {"in": "p"}, {"out": "out"})],
        [action("X", {"in": "p"}, {"out": "out"}), parent("p", "out")],
        [action("X", {"in": "p"}, {"out": "1"}), action("X", {"in": "1"}, {"out": "2"}), parent("p", "q", "2")],
        [action("X", {"in": "1"}, {"out": "2"}), action("X", {"in": "2"}, {"out": "1"})],
    ],
    ids=["itself", "child before", "child after", "two actions and a parent", "two actions"],
)
def test_circles_through_actions(messages):
    """EVG-18: an action that waits for its own output aborts as that becomes known."""
    fed(*messages[:-1])
    refused(Status.INVALID_ARGUMENT, *messages, match="depend on itself")


@pytest.mark.parametrize("order", [1, -1], ids=["from the top", "from the leaf"])
def test_nesting(order):
    """EVG-19: 64 levels are accepted, one more is refused by the limit's name as it comes; 100,000 take no time."""
    chain = [parent(f"n{at}", f"n{at + 1}") for at in range(65)]
    session = fed(*chain[1:][::order], leaf("n65", "x"))
    assert leaves(session, "n1") == [b"x"]
    refused(Status.RESOURCE_EXHAUSTED, *chain[::order], match="max_nesting is 64")
    deep = [parent(f"n{at}", f"n{at + 1}") for at in range(100_000)]
    refused(Status.RESOURCE_EXHAUSTED, SessionMessage(tuple(deep[::order])), match="max_nesting|max_nodes")


@pytest.mark.parametrize("order", [1, -1], ids=["from the top", "from the leaf"])
def test_doubling(order):
    """EVG-20: 2^40 leaves by doubling are refused at the edge that exceeds the limit, and nothing is built."""
    chain = [parent(f"n{at}", f"n{at + 1}", f"n{at + 1}") for at in range(40)]
    refused(Status.RESOURCE_EXHAUSTED, *chain[::order], match="max_leaves is 100,000")
    fed(*chain[:16][::order])


def test_the_size_of_a_value():
    """EVG-20: a value of more than 64 MiB is refused when it would be complete."""
    limits = SessionLimits(max_value_bytes=1000)
    fed(parent("p", *["a"] * 10), leaf("a", "x" * 100), limits=limits)
    for order in ([parent("p", *["a"] * 11), leaf("a", "x" * 100)], [leaf("a", "x" * 100), parent("p", *["a"] * 11)]):
        refused(Status.RESOURCE_EXHAUSTED, *order, match="max_value_bytes is 1,000", limits=limits)


def test_nodes_belong_to_their_session():
    """EVG-21: a node of one session is unknown in another, and stays in its own until the end."""
    one, two = fed(leaf("a", "x")), Session()
    assert two.graph.find("a") is None
    for at in range(100):
        one.feed(SessionMessage((leaf(f"n{at}", "y"),)))
    assert value(one, "a") == b"x"


@pytest.mark.parametrize("name", ["ä", "\u202e", " ", "../../x", "0", "é" * 128, "x" * 256])
def test_ids_are_any_text(name):
    """EVG-22: any Unicode of up to 256 bytes is an id."""
    assert leaves(fed(parent("p", name), leaf(name, "x")), "p") == [b"x"]


def test_long_ids():
    """EVG-22: a longer id is refused by the limit's name, with at most 80 characters of it."""
    for name in ("x" * 257, "é" * 129, "x" * 1_000_000):
        with pytest.raises(Abort, match="max_id_bytes") as caught:
            fed(leaf(name, "x"))
        assert len(caught.value.sentence) < 200
