"""A token model whose streams are observed, for all protocols at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.core.interfaces import client_of, current_limits, tokenizer_of
from lmtool.net.telemetry.trace_context import within_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.interfaces import Catalogue, Sink, StreamHandle, Tokenizer, TokenModel
    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.core.types import GenerateRequest, ModelInfo, ScoreRequest, StreamId, TokenOutput
    from lmtool.net.telemetry.observation import Observation
    from lmtool.net.telemetry.telemetry import Telemetry

UNKNOWN = "unknown"
"""Label of models that are not served: clients may name anything."""


class ObservedModel:
    """Passes everything on to another `TokenModel`, and observes the streams."""

    def __init__(self, model: TokenModel, catalogue: Catalogue, telemetry: Telemetry) -> None:
        """catalogue: of what the model serves, as clients see it."""
        self._model = model
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._sinks: dict[Sink, _ObservedSink] = {}

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `interfaces.TokenModel.submit`."""
        observation = self._telemetry.observe(self._name(request.model), request)
        observed = self._sinks.get(sink)
        if observed is None:
            observed = self._sinks[sink] = _ObservedSink(sink, self._sinks, self._telemetry.clock)
        observed.streams[request.stream_id] = observation
        with within_trace(observation.trace):
            observation.handle = handle = self._model.submit(request, observed)
        return handle

    def _name(self, name: str | None) -> str | Callable[[], str]:
        """The name that clients are shown, of which there are few; what finds it later where that is not known yet."""
        try:
            return self._catalogue.entry(name).name
        except LmtoolError:  # it is loaded on demand, or not at all
            return partial(self._name_later, name)

    def _name_later(self, name: str | None) -> str:
        try:
            return self._catalogue.entry(name).name
        except LmtoolError:
            return UNKNOWN

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `interfaces.TokenModel.info`."""
        return await self._model.info(model)

    @property
    def limits(self) -> LimitsByModel:
        """See `interfaces.Limited`."""
        return current_limits(self._model)

    def tokenizer(self, model: str | None = None) -> Tokenizer | None:
        """See `interfaces.Tokenized`."""
        return tokenizer_of(self._model, model)


class _ObservedSink:
    """One sink's streams; known as long as one of them runs."""

    __slots__ = ("_all", "_clock", "_sink", "client", "streams")

    def __init__(self, sink: Sink, everyone: dict[Sink, _ObservedSink], clock: Callable[[], float]) -> None:
        self.client = client_of(sink)
        self._sink = sink
        self._all = everyone
        self._clock = clock
        self.streams: dict[StreamId, Observation] = {}

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        now, streams = self._clock(), self.streams
        for output in outputs:
            observation = streams.get(output.stream_id)
            if observation is None:
                continue
            if output.token is not None or output.text:  # a pool gives text without ids
                observation.token(now)
            if output.last:
                del streams[output.stream_id]
                observation.end(output.finish_reason, output.usage, now, output.error_code)
        if not streams:
            self._all.pop(self._sink, None)
        self._sink(outputs)
