"""Sessions that run: handlers of actions read leaves as they come and write leaves or trees; failures and ends."""

from __future__ import annotations

import asyncio
import json

import pytest

from lmtool.protocol.evergreen.actions import ActionCall, ActionType, Port
from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.connection import Connection
from lmtool.protocol.evergreen.messages import SessionMessage
from lmtool.protocol.evergreen.status import Abort, Status
from tests.protocol.evergreen.harness import action, registry, session
from tests.protocol.evergreen.in_process import in_process
from tests.protocol.lmtp.harness import PATIENCE


async def test_an_action_answers():
    """An action's output is a node that its caller reads as it comes."""
    async with session() as client:
        answer = (await client.invoke("UPPER", {"text": "half a doughnut"}, ["text"]))["text"]
        assert await answer.text() == "HALF A DOUGHNUT"


async def test_an_output_is_an_input_at_once():
    """An output that is not finished is an input of the next action, with nothing sent again (rule 30)."""
    async with session() as client:
        first = client.start(action("UPPER", {"text": "in"}, {"text": "out"}))["text"]
        second = client.start(action("COPY", {"node": "tree"}, {"copy": "copied"}))["copy"]
        tree = client.output("tree")
        tree.add("in", "out")
        tree.close()
        await client.output("in").put("jam")
        assert [await leaf.text() async for leaf in second] == ["jam", "JAM"]
        assert await first.text() == "JAM"


async def test_a_failure_aborts_the_session():
    """A handler that raises ends its session, with the status of its error and a sentence (rule 34)."""

    async def fail(call: ActionCall) -> None:
        raise Abort(Status.NOT_FOUND, "there is no model 'x'")

    with pytest.raises(Abort, match="there is no model") as caught:
        async with session(registry(ActionType("FAIL", (), (Port("out"),), fail))) as client:
            await (await client.invoke("FAIL", {}, ["out"]))["out"].value()
    assert caught.value.status is Status.NOT_FOUND


async def test_an_asked_for_status_takes_the_failure():
    """Where the caller asked for `status`, a failure is told there, outputs are closed, and the session goes on."""
    async with session() as client:
        nodes = await client.invoke("NOTHING", {}, ["out", "status"])
        told = json.loads(await nodes["status"].value())
        assert told["code"] == "UNIMPLEMENTED"
        assert await nodes["out"].value() == b""
        assert await (await client.invoke("UPPER", {"text": "on"}, ["text"]))["text"].text() == "ON"


async def test_a_running_action_is_cancelled():
    """CANCEL ends a handler and closes its outputs; the session goes on."""
    cancelled = asyncio.Event()

    async def wait(call: ActionCall) -> None:
        await call.outputs["out"].write("begun")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def cancel(call: ActionCall) -> None:
        call.control.cancel(call.inputs["node"].id)

    actions = registry(
        ActionType("WAIT", (), (Port("out"),), wait), ActionType("CANCEL", (Port("node"),), (Port("done"),), cancel)
    )
    async with session(actions) as client:
        out = (await client.invoke("WAIT", {}, ["out"]))["out"]
        async for leaf in out:
            async for piece in leaf:
                assert piece == b"begun"
                done = (await client.invoke("CANCEL", {"node": out}, ["done"]))["done"]
        await done.completed()
        assert await out.value() == b"begun"
    assert cancelled.is_set()


async def test_the_peer_may_offer_actions():
    """An action may ask for one that the client offers (both ends are alike)."""

    async def ask(call: ActionCall) -> None:
        answer = (await call.control.invoke("UPPER", {"text": "from the server"}, ["text"]))["text"]
        await call.outputs["out"].write(await answer.value())

    server = Connection(registry(ActionType("ASK", (), (Port("out"),), ask)))
    async with in_process(server, Connection(registry())) as client:
        assert await (await client.invoke("ASK", {}, ["out"]))["out"].text() == "FROM THE SERVER"


async def test_a_late_handler_aborts():
    """A handler that exceeds its time aborts its session with a sentence."""

    async def sleep(call: ActionCall) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Abort, match=r"took more than 0\.01 s") as caught:
        async with session(registry(ActionType("SLEEP", (), (Port("out"),), sleep, seconds=0.01))) as client:
            await (await client.invoke("SLEEP", {}, ["out"]))["out"].value()
    assert caught.value.status is Status.DEADLINE_EXCEEDED


@pytest.mark.parametrize("where", ["receive", "send"])
async def test_a_bug_is_internal(where):
    """A failure of the transport itself is INTERNAL, never UNKNOWN, and the event loop is told."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    asked = [SessionMessage((), (action("NOTHING", {}, {"status": "s"}),))]

    async def receive() -> SessionMessage | None:
        if where == "receive":
            raise ZeroDivisionError
        return asked.pop() if asked else await asyncio.Event().wait()

    async def send(message: SessionMessage | None) -> None:
        raise ZeroDivisionError

    connection = Connection(registry())
    with pytest.raises(Abort, match="ZeroDivisionError") as caught:
        await connection.run(receive, send)
    assert caught.value.status is connection.failure.status is Status.INTERNAL
    assert [type(each) for each in told] == [ZeroDivisionError]


async def test_many_actions_that_nobody_reads():
    """Together they write four times as much as one of them may, and pause."""

    async def flood(call: ActionCall) -> None:
        while True:
            await call.outputs["out"].write(bytes(500))

    asked = [SessionMessage((), tuple(action("FLOOD", {}, {"out": f"out{number}"}) for number in range(20)))]
    never = asyncio.Event()

    async def receive() -> SessionMessage | None:
        return asked.pop() if asked else await never.wait()

    async def send(_message: SessionMessage | None) -> None:
        await never.wait()

    limits = SessionLimits(unread_bytes=1000)
    connection = Connection(registry(ActionType("FLOOD", (), (Port("out"),), flood)), limits)
    running = asyncio.create_task(connection.run(receive, send))
    waiting, still = -1, 0
    async with asyncio.timeout(PATIENCE):
        while still < 50:
            await asyncio.sleep(0)
            before, waiting = waiting, connection.session.unsent_bytes
            still = still + 1 if before == waiting > 0 else 0
    assert 4000 < waiting <= 4500
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
