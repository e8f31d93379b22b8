"""The served models as actions use them: found by an action's target, their streams as lists of outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lmtool.core.interfaces import tokenizer_of
from lmtool.core.streams import Inbox, error_of
from lmtool.protocol.evergreen.status import invalid

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lmtool.core.interfaces import Catalogue, Tokenizer, TokenModel
    from lmtool.core.types import GenerateRequest, ModelInfo, ScoreRequest, StreamId, TokenOutput
    from lmtool.protocol.evergreen.actions import ActionCall


class SessionSink:
    """The sink of all streams of a session, so that a model takes them for one client's: it serves clients in turn."""

    def __init__(self) -> None:
        self._inboxes: dict[StreamId, Inbox] = {}
        self._ids = count()

    def submit(self, model: TokenModel, request: GenerateRequest | ScoreRequest, elapsed: float) -> Inbox:
        """Start a stream; where its outputs arrive. elapsed: see `Inbox`."""
        inbox, stream_id = Inbox(elapsed=elapsed), next(self._ids)
        self._inboxes[stream_id] = inbox
        inbox.submit(model, replace(request, stream_id=stream_id), self)
        return inbox

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take the outputs of one step, see `Sink`."""
        for output in outputs:
            self._inboxes[output.stream_id]([output])
            if output.last:
                del self._inboxes[output.stream_id]


@dataclass(frozen=True, slots=True)
class Target:
    """The model that an action is for, in memory."""

    model: TokenModel
    name: str | None
    """For requests; None for the only model."""
    info: ModelInfo
    sink: SessionSink
    """Of the action's session."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises `Abort` where there is none in this process."""
        tokenizer = tokenizer_of(self.model, self.name)
        if tokenizer is None:
            raise invalid(f"{self.info.model} has no tokenizer here: it takes and gives token ids only")
        return tokenizer

    async def outputs(
        self, request: GenerateRequest | ScoreRequest, elapsed: float
    ) -> AsyncGenerator[list[TokenOutput], None]:
        """A stream's outputs, those that wait together. Raises the error that ends it; leaving early cancels it.

        elapsed: seconds since the action arrived, which count towards the request's deadline.
        """
        inbox, ended = self.sink.submit(self.model, request, elapsed), False
        try:
            while not ended:
                outputs = await inbox.take()
                last = outputs[-1]
                ended = last.last
                if last.error is None:
                    yield outputs
                    continue
                if len(outputs) > 1:
                    yield outputs[:-1]
                raise error_of(last)
        finally:
            if not ended:
                inbox.cancel()


class ServedModels:
    """Finds the model of an action."""

    def __init__(self, model: TokenModel, catalogue: Catalogue) -> None:
        self._model = model
        self._catalogue = catalogue
        self._sinks: WeakKeyDictionary[object, SessionSink] = WeakKeyDictionary()

    async def target(self, call: ActionCall) -> Target:
        """The model that an action names, once it is loaded; of several, an empty name means the first.

        Raises `UnknownModelError`, or the load's error.
        """
        entries = self._catalogue.models()
        chosen = call.target or (entries[0].name if len(entries) > 1 else None)
        sink = self._sinks.setdefault(call.control, SessionSink())
        return Target(self._model, chosen, await self._model.info(chosen), sink)
