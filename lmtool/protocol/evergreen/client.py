"""The client's end of a session: what a program calls, and conversations that send only what is new."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING

from lmtool.protocol.evergreen.actions import Registry
from lmtool.protocol.evergreen.codec import pack_struct
from lmtool.protocol.evergreen.connection import Connection
from lmtool.protocol.evergreen.messages import Action, ChunkMetadata, NamedParameter, TargetSpec
from lmtool.protocol.evergreen.node_io import TEXT, InputNode
from lmtool.protocol.evergreen.prompts import USER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from lmtool.protocol.evergreen.actions import ActionType
    from lmtool.protocol.evergreen.client_transport import ClientTransport
    from lmtool.protocol.evergreen.config import SessionLimits
    from lmtool.protocol.evergreen.messages import AnyMessage
    from lmtool.protocol.evergreen.node_io import OutputNode


class Session:
    """A session with a server. Get one from `lmtool.session`; belongs to the event loop it came from.

    Whatever ends it raises `evergreen.status.Abort`, with the server's reason, or `ConnectError`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        """For what is not here."""

    def node(self, node_id: str) -> InputNode:
        """A node of either side to read, also before it has arrived."""
        return self.connection.node(node_id)

    def output(self, node_id: str | None = None) -> OutputNode:
        """A node to write; under a random id by default."""
        return self.connection.output(node_id)

    async def leaf(self, data: bytes | str, mimetype: str = TEXT, role: str = "") -> InputNode:
        """Send a leaf."""
        output = self.output()
        await output.put(data, mimetype, role)
        return self.node(output.id)

    def tree(self, *children: InputNode) -> InputNode:
        """Send a node of these children; they may still be on their way, and belong to other nodes as well."""
        output = self.output()
        output.add(*(child.id for child in children))
        output.close()
        return self.node(output.id)

    async def call(
        self,
        name: str,
        inputs: Mapping[str, bytes | str | InputNode],
        outputs: Sequence[str],
        *,
        target: str = "",
        **config: object,
    ) -> dict[str, InputNode]:
        """Ask for an action; its outputs, which may still be on their way.

        inputs: nodes of the session, or values to send. target: a model's name. config: OpenAI's names.
        """
        return await self.connection.invoke(name, inputs, outputs, _configs(config), target)

    async def generate(
        self, prompt: str | InputNode, *, model: str = "", **config: object
    ) -> AsyncGenerator[str, None]:
        """The pieces of an answer to a prompt as they come; leaving early cancels it."""
        response = (await self.call("GENERATE", {"prompt": prompt}, ["response"], target=model, **config))["response"]
        async with contextlib.aclosing(self.pieces(response)) as pieces:
            async for piece in pieces:
                yield piece

    async def pieces(self, response: InputNode) -> AsyncGenerator[str, None]:
        """The text of a running answer as it comes; leaving early cancels the answer."""
        try:
            async for leaf in response:
                async for piece in leaf:
                    yield piece.decode()
        finally:
            if not response.complete and self.connection.failure is None:
                self.connection.start(Action("CANCEL", (NamedParameter("node", response.id),)))

    def conversation(self, *, system: str | None = None, model: str = "", **config: object) -> Conversation:
        """A conversation with a model; each turn sends only what is new."""
        return Conversation(self, system, model, config)


class Conversation:
    """Turns whose earlier nodes, the model's answers among them, are children of each next prompt."""

    def __init__(self, session: Session, system: str | None, model: str, config: Mapping[str, object]) -> None:
        self._session = session
        self._system = system
        self._model = model
        self._configs = _configs(config)
        self._turns: list[str] = []
        """Ids of all nodes so far."""

    def ask(self, text: str, outputs: Sequence[str] = ("usage",)) -> dict[str, InputNode]:
        """Send the next turn; `response` and the other outputs of its answer.

        The action goes first, then the prompt, then what is new in it. A turn may follow before the answer is whole.
        """
        session, new = self._session, [uuid.uuid4().hex for _ in range(2)]
        question, prompt = new
        nodes = session.connection.start(
            Action(
                "GENERATE",
                (NamedParameter("prompt", prompt),),
                tuple(NamedParameter(name, uuid.uuid4().hex) for name in ("response", *outputs)),
                self._configs,
                TargetSpec(self._model) if self._model else None,
            )
        )
        connection = session.connection
        if self._system is not None:
            first = uuid.uuid4().hex
            self._turns.append(first)
            self._write(first, self._system, "system")
            self._system = None
        connection.write_children(prompt, (*self._turns, question), final=True)
        self._write(question, text, USER)
        self._turns += [question, nodes["response"].id]
        return nodes

    def _write(self, node_id: str, text: str, role: str) -> None:
        self._session.connection.write(node_id, text.encode(), ChunkMetadata(TEXT, role), final=True)


async def _answered(connection: Connection) -> None:
    """Return once the outputs of all that was asked for are whole."""
    for record in list(connection.session.started):
        for node in record.outputs.values():
            await InputNode(connection, node).completed()


def _configs(config: Mapping[str, object]) -> tuple[AnyMessage, ...]:
    return (pack_struct(config),) if config else ()


@contextlib.asynccontextmanager
async def run_session(
    transport: ClientTransport, actions: Sequence[ActionType] = (), limits: SessionLimits | None = None
) -> AsyncIterator[Session]:
    """A session over an open transport, as long as the block lasts. actions: what the server may ask for.

    Leaving the block in order waits for what was asked for. Raises `Abort` where the session does not end in order.
    """
    connection = Connection(Registry(list(actions)), limits)

    async def run() -> None:
        await connection.run(transport.receive, transport.send)

    running = asyncio.create_task(run())
    try:
        yield Session(connection)
        await _answered(connection)
        connection.finish()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await transport.close(connection.failure)
