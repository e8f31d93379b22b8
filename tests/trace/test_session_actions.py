"""Evergreen's actions are streams: begun by a client, ended by whole outputs, their text what the server writes."""

from __future__ import annotations

import base64
from typing import Any

from lmtool.trace.answers import Answers
from lmtool.trace.events import Close, Drop, Event, Message
from lmtool.trace.stream_events import MAX_LINES, ActionNodes, OutputEvent, RequestStarted, TraceNode, stream_of


def leaf(node_id: str, text: str | bytes, seq: int = 0, mimetype: str = "text/plain", **more: Any) -> dict[str, Any]:
    """A fragment of a leaf."""
    data = base64.b64encode(text.encode() if isinstance(text, str) else text).decode()
    metadata = {} if seq else {"metadata": {"mimetype": mimetype, "role": more.pop("role", "")}}
    return {"id": node_id, "seq": seq, "chunkFragment": {**metadata, "data": data}, **more}


def action(name: str = "GENERATE", outputs: tuple[str, ...] = ("response",), **more: Any) -> dict[str, Any]:
    """An action over the node `p`, whose outputs have their names as ids."""
    pairs = [{"name": each, "id": each} for each in outputs]
    return {"name": name, "inputs": [{"name": "prompt", "id": "p"}], "outputs": pairs, **more}


def message(direction: str, *fragments: dict[str, Any], actions: tuple[dict[str, Any], ...] = (), time: float = 1):
    """A message of connection 3."""
    value = {"nodeFragments": list(fragments), "actions": list(actions)}
    return Message(time, direction, 3, {name: member for name, member in value.items() if member})


def followed(*events: Event) -> list[Any]:
    """What these events mean."""
    answers = Answers(stream_of)
    return [found for event in events for found in answers.follow(event)]


def shown(*events: Event) -> list[tuple[str, object, object, object]]:
    """Label, text, ending and error of each output."""
    found = [one for one in followed(*events) if isinstance(one, OutputEvent)]
    return [(one.stream.label, one.text, one.finish_reason, one.error) for one in found]


def test_an_action_and_its_text():
    """Its options and its model are those of a request; a character may be cut by a fragment."""
    config = {"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"temperature": 0.5}}
    asked = action(configs=[config], targetSpec={"id": "tiny"}, outputs=("response", "usage"))
    events = [
        message(">", leaf("p", "Once"), actions=(asked,)),
        message("<", leaf("response", b"caf\xc3", continued=True)),
        message("<", leaf("response", b"\xa9", 1), time=2),
        message("<", leaf("usage", "{}", mimetype="application/json"), time=3),
    ]
    started, *_ = followed(*events)
    assert isinstance(started, RequestStarted)
    assert (started.kind, started.stream_kind, started.model) == ("GENERATE", "ACT", "tiny")
    assert started.payload["temperature"] == 0.5
    assert shown(*events) == [("3/1", "caf", None, None), ("3/1", "é", None, None), ("3/1", None, "stop", None)]
    assert (started.stream.ended, started.stream.finish_reason) == (3, "stop")


def test_an_output_that_is_a_tree():
    """What is below an output belongs to its action, which ends once all of it is whole."""
    answers = Answers(stream_of)
    (started,) = answers.follow(message(">", actions=(action(outputs=("copy",)),)))
    found = [
        one
        for event in (
            message("<", {"id": "copy", "childIds": ["a", "p"], "continued": True}),
            message("<", leaf("a", "text"), {"id": "copy", "seq": 1}),
        )
        for one in answers.follow(event)
    ]
    assert [(one.text, one.finish_reason) for one in found] == [("text", None)]
    assert started.stream.ended is None
    answers.follow(message("<", leaf("p", "x", mimetype="image/png"), time=5))
    assert started.stream.ended == 5


def test_endings():
    """An abort is the error of all that ran; a connection that is lost cuts them; one without outputs ends at once."""
    asked = message(">", actions=(action(),))
    aborted = Close(2, 3, "server", 4400, "NOT_FOUND: no")
    assert shown(asked, aborted) == [("3/1", None, None, "NOT_FOUND: no")]
    assert "connection ended" in str(shown(asked, Drop(2, 3, {}))[0][3])
    assert shown(message(">", actions=(action("DROP", ()),))) == [("3/1", None, "stop", None)]
    assert shown(message("<", leaf("nobody's", "text"))) == []


def test_what_makes_no_sense():
    """Messages that others wrote, or that were redacted, are passed over."""
    odd = {"nodeFragments": [{"id": "response", "chunkFragment": {"data": {"$redacted": "text"}}}, 5], "actions": 7}
    assert shown(message(">", actions=(action(),)), Message(2, "<", 3, odd)) == [("3/1", None, "stop", None)]
    assert shown(Message(1, ">", 3, {"hex": "ff"}), Message(1, ">", 3, {"actions": [{}]})) == [
        ("3/1", None, "stop", None)
    ]


def test_the_tree():
    """Inputs, then outputs, each with what is below it; long ones are cut."""
    (started,) = followed(
        message(">", {"id": "p", "childIds": ["q", "i"]}, leaf("q", "Why?", role="user"), actions=(action(),))
    )[:1]
    assert list(started.nodes.lines()) == [
        (0, "prompt ▸ 2 children"),
        (1, "text/plain user 'Why?'"),
        (1, "0 bytes …"),
        (0, "▸ response 0 bytes …"),
    ]
    assert started.nodes.prompt_end() == ""
    node = TraceNode("n")
    node.children[0] = [TraceNode("m")] * 1000
    assert len(list(ActionNodes({"in": node}, {}).lines())) == MAX_LINES


def test_the_end_of_a_prompt():
    """The last leaf of the inputs as far as it has come, also where it comes after its action; a loop has an end."""
    events = [
        message(">", {"id": "p", "childIds": ["a"], "continued": True}, leaf("a", "Earlier"), actions=(action(),)),
        message(">", {"id": "p", "seq": 1, "childIds": ["turn"]}, {"id": "turn", "childIds": ["b"]}),
        message(">", leaf("b", "Who is")),
        message(">", leaf("b", " winning?", 1)),
    ]
    answers, ends = Answers(stream_of), []
    nodes = None
    for event in events:
        for found in answers.follow(event):
            nodes = found.nodes if isinstance(found, RequestStarted) else nodes
        ends.append(nodes.prompt_end())
    assert ends == ["Earlier", "", "Who is", "Who is winning?"]
    node = TraceNode("n")
    node.children[0] = [node]
    assert ActionNodes({"in": node}, {}).prompt_end() == ""
    assert ActionNodes({}, {}).prompt_end() == ""
