"""A loaded model as a server has it: found by its name, listed, and shown each request."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

from lmtool.core.errors import UnknownModelError
from lmtool.core.model_entry import ModelEntry
from lmtool.protocol.evergreen.connection import Connection
from lmtool.protocol.evergreen.menu import menu
from lmtool.protocol.evergreen.messages import AnyMessage
from lmtool.protocol.evergreen.node_io import InputNode
from tests.protocol.evergreen.in_process import in_process


class Only:
    """One model under one name, with the requests that came for it."""

    def __init__(self, model: Any, name: str) -> None:
        self.model = model
        self.name = name
        self.requests: list[Any] = []
        self.ends = 0
        """Streams that have ended."""

    def submit(self, request, sink):
        """See `TokenModel`."""
        self.requests.append(request)

        def counted(outputs):
            self.ends += sum(output.last for output in outputs)
            sink(outputs)

        return self.model.submit(request, counted)

    async def info(self, model=None):
        """See `TokenModel`."""
        if model not in (None, self.name):
            raise UnknownModelError(f"model {model!r} is not served here", f"served here: {self.name}")
        return await self.model.info()

    def tokenizer(self, model=None):  # one model
        """See `Tokenized`."""
        return self.model.tokenizer()

    def models(self):
        """See `Catalogue`."""
        return [ModelEntry(self.name)]


@contextlib.asynccontextmanager
async def session(model: Any, *more: Any, references: Any = None, limits: Any = None) -> AsyncIterator[Connection]:
    """The client's end of a session in process, over a model's menu and further actions."""
    server = Connection(menu(model, model, more), limits, references=references)
    async with in_process(server, Connection()) as client:
        yield client


def struct(**values: Any) -> AnyMessage:
    """A config as OpenAI's clients name it."""
    message = json_format.ParseDict(values, struct_pb2.Struct())
    return AnyMessage("type.googleapis.com/google.protobuf.Struct", message.SerializeToString())


async def texts(nodes: Mapping[str, InputNode]) -> dict[str, Any]:
    """The values of outputs by name, parsed where they are JSON."""
    found: dict[str, Any] = {}
    for name, node in nodes.items():
        [(metadata, value)] = await node.leaves()
        found[name] = json.loads(value) if "json" in metadata.mimetype else value.decode()
    return found
