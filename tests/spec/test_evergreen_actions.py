"""Evergreen, actions and payloads (EVG-23 to EVG-37)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lmtool.protocol.evergreen.actions import ActionCall, ActionType, Port
from lmtool.protocol.evergreen.codec import pack_struct
from lmtool.protocol.evergreen.messages import (
    AnyMessage,
    Chunk,
    ChunkMetadata,
    NodeFragment,
    SessionMessage,
    TargetSpec,
)
from lmtool.protocol.evergreen.session import Session
from lmtool.protocol.evergreen.status import Abort, Status
from tests.protocol.evergreen.harness import action, leaf, parent, registry, session
from tests.protocol.evergreen.models import Only
from tests.protocol.evergreen.models import session as model_session
from tests.protocol.evergreen.sessions import fed, leaves, refused, value

ASK = action("UPPER", {"text": "in"}, {"text": "out"})


@pytest.fixture
def served(stories) -> Only:
    """The stories model, by its name."""
    return Only(stories, "stories")


async def aborted(script, *, model=None, actions=None) -> Abort:
    """What a session ends with in which a program does this."""
    with pytest.raises(Abort) as caught:
        async with session(actions) if model is None else model_session(model) as client:
            await script(client)
    return caught.value


async def test_an_action_among_its_inputs():
    """EVG-23: an action may come before, between and after the parts of its input."""
    fragments = [parent("in", "a", "b"), leaf("a", "half "), leaf("b", "jam")]
    for at in range(4):
        async with session() as client:
            parts = [*fragments[:at], ASK, *fragments[at:]]
            outputs = {}
            for part in parts:
                if part is ASK:
                    outputs = client.start(part)
                else:
                    write(client, part)
            assert await outputs["text"].text() == "HALF JAM"


def write(client, fragment: NodeFragment) -> None:
    """Send a whole node."""
    if fragment.child_ids:
        client.write_children(fragment.id, fragment.child_ids, final=True)
    else:
        chunk = fragment.chunk_fragment
        client.write(fragment.id, chunk.data or b"", chunk.metadata, final=True)


def test_one_message_is_one_step():
    """EVG-24: the order of fragments in a message means nothing, and an action there sees all of them."""
    fragments = [parent("in", "a", "b"), leaf("a", "1"), leaf("b", "2")]
    for order in itertools.permutations(fragments):
        feeding = Session()
        feeding.feed(SessionMessage(order, (ASK,)))
        [record] = feeding.running
        assert record.inputs["text"].complete
        assert leaves(feeding, "in") == [b"1", b"2"]


def test_a_message_that_aborts_gives_nothing():
    """EVG-24: where one part of a message is wrong, none of it becomes an event."""
    with pytest.raises(Abort):
        Session().feed(SessionMessage((leaf("in", "x"), leaf("bad", "x", -1)), (ASK,)))


async def test_an_action_begins_early_and_ends_late():
    """EVG-25: what is there of an input is worked on at once; the output is complete after the input is."""
    async with session() as client:
        answer = client.start(ASK)["text"]
        source = client.output("in")
        await source.write("half ")
        async for part in answer:
            async for piece in part:
                if piece == b"HALF ":
                    assert not answer.complete
                    await source.write("jam")
                    source.close()
        assert await answer.text() == "HALF JAM"


async def test_outputs_are_leaves_or_trees():
    """EVG-26: an output is written under its id; a tree's other nodes have random ids, other ones each time."""
    async with session() as client:
        leaf_output = (await client.invoke("UPPER", {"text": "a"}, ["text"]))["text"]
        assert await leaf_output.text() == "A"
        ids: set[str] = set()
        for _ in range(2):
            tree = (await client.invoke("COPY", {"node": leaf_output}, ["copy"]))["copy"]
            assert [await each.text() async for each in tree] == ["A"]
            ids |= {child.id for child in tree.node.children}
        assert len(ids) == 2


@pytest.mark.parametrize(
    "before",
    [
        [leaf("out", "x")],
        [leaf("out", "x", continued=True)],
        [parent("out", "b")],
        [action("X", {}, {"first": "out"})],
        [action("X", {}, {"first": "1", "out": "out"})],
    ],
    ids=["leaf", "begun", "parent", "earlier output", "earlier output among others"],
)
def test_output_ids_are_new(before):
    """EVG-27: the id of an output that is another node's is ALREADY_EXISTS."""
    refused(Status.ALREADY_EXISTS, *before, ASK, match="has the id of another node")


def test_an_output_twice_in_one_action():
    """EVG-27: one id for two outputs of an action is ALREADY_EXISTS."""
    refused(Status.ALREADY_EXISTS, action("X", {}, {"a": "out", "b": "out"}), match="has the id of another node")


def test_a_named_child_is_not_used():
    """EVG-27: an id that was only named, as a child or an input, may become an output."""
    made = fed(parent("tree", "a", "out"), action("X", {"in": "tree"}, {"done": "end"}), leaf("in", "x"), ASK)
    assert len(made.running) == 2


@pytest.mark.parametrize(
    "fragment", [leaf("out", "x"), leaf("out", "x", 5), parent("out", "a"), NodeFragment("out")], ids=str
)
def test_a_node_has_one_writer(fragment):
    """EVG-28: a fragment of a node that the other side writes aborts, whatever its seq."""
    refused(Status.INVALID_ARGUMENT, ASK, fragment, match="written by the other side")
    session = fed(leaf("in", "x"), ASK)
    session.emit("out", b"X", ChunkMetadata("text/plain"), final=True)
    with pytest.raises(Abort, match="written by the other side"):
        session.feed(SessionMessage((fragment,)))


async def test_outputs_that_were_not_asked_for():
    """EVG-29: they are not there for the handler, and an action may have none at all."""
    seen = []

    async def two(call: ActionCall) -> None:
        seen.append(sorted(call.outputs))
        for output in call.outputs.values():
            await output.put("x")

    async with session(registry(ActionType("TWO", (), (Port("a"), Port("b")), two))) as client:
        await (await client.invoke("TWO", {}, ["b"]))["b"].value()
        assert await client.invoke("TWO", {}, []) == {}
    assert seen == [["b"], []]


async def test_an_output_is_a_node():
    """EVG-30: an output that is not finished is an input and a child at once, and is not sent back."""
    async with session() as client:
        client.start(action("COPY", {"node": "tree"}, {"copy": "copied"}))
        client.start(ASK)
        client.write_children("tree", ["in", "out"], final=True)
        client.write("in", b"jam", ChunkMetadata("text/plain"), final=True)
        assert [await each.text() async for each in client.node("copied")] == ["jam", "JAM"]


@pytest.mark.parametrize(
    ("call", "status", "match"),
    [
        (action("NONE", {}, {}), Status.UNIMPLEMENTED, "there is no action 'NONE'"),
        (action("N" * 200, {}, {}), Status.UNIMPLEMENTED, f"'{'N' * 80}…'"),
        (action("UPPER", {}, {"text": "out"}), Status.INVALID_ARGUMENT, "needs the input 'text'"),
        (action("UPPER", {"txt": "in"}, {"text": "out"}), Status.INVALID_ARGUMENT, "no input 'txt'"),
        (action("COPY", {"node": "in", "tree": "in"}, {}), Status.INVALID_ARGUMENT, "the input 'node' twice"),
    ],
    ids=lambda part: getattr(part, "name", None),
)
async def test_actions_that_are_wrong(call, status, match):
    """EVG-31: unknown actions, missing and unknown inputs fail."""

    async def script(client):
        client.start(call)
        await client.node("never").completed()

    abort = await aborted(script)
    assert abort.status is status
    assert match in abort.sentence


def test_a_parameter_twice():
    """EVG-31: a name that is given twice fails; names are not empty."""
    twice = SessionMessage(actions=(action("X", {"in": "a"}, {}),))
    [once] = twice.actions
    doubled = type(once)(once.name, once.inputs * 2)
    refused(Status.INVALID_ARGUMENT, doubled, match="the parameter 'in' twice")
    refused(Status.INVALID_ARGUMENT, action("X", {"": "a"}, {}), match="is empty")
    refused(Status.INVALID_ARGUMENT, action("", {}, {}), match="name is empty")


async def test_targets(served):
    """EVG-32: an unknown target is NOT_FOUND; without one the default answers."""
    ask = action("GENERATE", {"prompt": "in"}, {"response": "out"}, configs=(pack_struct({"max_tokens": 2}),))

    async def script(client):
        client.start(type(ask)(ask.name, ask.inputs, ask.outputs, (), TargetSpec("other")))
        client.write("in", b"Once", ChunkMetadata("text/plain"), final=True)
        await client.node("out").completed()

    abort = await aborted(script, model=served)
    assert abort.status is Status.NOT_FOUND
    assert "'other'" in abort.sentence
    async with model_session(served) as client:
        client.start(ask)
        client.write("in", b"Once", ChunkMetadata("text/plain"), final=True)
        assert await client.node("out").text()


@pytest.mark.parametrize(
    ("outputs", "configs", "match"),
    [
        ({"video": "out"}, (), "no output 'video'"),
        ({"response": "out"}, (AnyMessage("type.googleapis.com/a.Config", b""),), "'a.Config' is not known"),
        ({"response": "out"}, (pack_struct({"max_tokns": 5}),), "'max_tokns'"),
        ({"response": "out"}, (pack_struct({"max_tokens": 16.5}),), "max_tokens is 16.5"),
    ],
)
async def test_unknown_outputs_and_configs(served, outputs, configs, match):
    """EVG-33: outputs, configs and their fields that are unknown are refused by name."""

    async def script(client):
        client.start(action("GENERATE", {"prompt": "in"}, outputs, configs=configs))
        await client.node("never").completed()

    abort = await aborted(script, model=served)
    assert abort.status is Status.INVALID_ARGUMENT
    assert match in abort.sentence


async def test_a_failure_ends_its_session_alone():
    """EVG-34: a failing action cancels the others of its session; another session goes on."""
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(call: ActionCall) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    actions = registry(ActionType("WAIT", (), (Port("out"),), wait))

    async def script(client):
        client.start(action("WAIT", {}, {"out": "1"}))
        await begun.wait()
        client.start(action("NONE", {}, {"out": "2"}))
        await client.node("1").completed()

    async with session(actions) as other:
        assert (await aborted(script, actions=actions)).status is Status.UNIMPLEMENTED
        assert cancelled.is_set()
        assert await (await other.invoke("UPPER", {"text": "on"}, ["text"]))["text"].text() == "ON"


@pytest.mark.parametrize(
    "uri", ["file:///etc/passwd", "https://example.org/x", "data:text/plain,x", "ftp://h/", "nonsense", "x" * 10_000]
)
def test_references_are_refused(uri):
    """EVG-35, EVG-36: no scheme is read by default; it is refused at once, and no more than the scheme is repeated."""
    fragment = NodeFragment("a", chunk_fragment=Chunk(ChunkMetadata("text/plain"), uri))
    with pytest.raises(Abort, match="not accepted") as caught:
        Session().feed(SessionMessage((fragment,)))
    assert caught.value.status is Status.INVALID_ARGUMENT
    assert len(caught.value.sentence) < 200
    assert "passwd" not in caught.value.sentence


@pytest.mark.parametrize(("mimetype", "status"), [("video/mp4", "INVALID_ARGUMENT"), ("text/x-anything", None)])
async def test_mime_types(served, mimetype, status):
    """EVG-37: any type travels; GENERATE refuses what is no text, by its type, and reads every text/* as text."""
    travelled = fed(leaf("a", "x", mimetype=mimetype))
    assert value(travelled, "a") == b"x"

    async def script(client):
        client.start(
            action("GENERATE", {"prompt": "in"}, {"response": "out"}, configs=(pack_struct({"max_tokens": 2}),))
        )
        client.write("in", b"Once", ChunkMetadata(mimetype), final=True)
        assert await client.node("out").text()

    if status is None:
        async with model_session(served) as client:
            await script(client)
        return
    abort = await aborted(script, model=served)
    assert abort.status.name == status
    assert mimetype in abort.sentence
