"""Streams in flight, on a model that is a script."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lmtool.core.errors import ConnectError, LmtoolError, RemoteProtocolError, ServerError
from lmtool.core.interfaces import Sink, StreamHandle
from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams, ScoreRequest, TokenOutput
from lmtool.terminal.chat.running_streams import RunningStreams, error_of


@dataclass
class Hold:
    """The hold on a scripted stream."""

    model: Scripted
    request: GenerateRequest | ScoreRequest

    def cancel(self) -> None:
        """End the stream as a model would, unless it is deaf."""
        if not self.model.deaf:
            self.model.send(TokenOutput(self.request.stream_id, finish_reason="cancelled"))

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""


@dataclass
class Scripted:
    """A `TokenModel` that sends what a test says."""

    deaf: bool = False
    sink: Sink | None = None
    requests: list[GenerateRequest | ScoreRequest] = field(default_factory=list)

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream."""
        self.sink = sink
        self.requests.append(request)
        return Hold(self, request)

    async def info(self, model: str | None = None) -> ModelInfo:
        """Tell nothing."""
        return ModelInfo(model or "m", "m", "script")

    def send(self, *outputs: TokenOutput) -> None:
        """Send outputs of one step."""
        assert self.sink is not None
        self.sink(outputs)


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


async def test_streams_come_out_in_frames() -> None:
    """What arrives together comes together, in order, with the record of its stream."""
    clock, model = Clock(), Scripted()
    talk = RunningStreams(clock)
    one = talk.submit(model, GenerateRequest(1, "a"))
    two = talk.submit(model, GenerateRequest(2, "b"))
    clock.now = 1.0
    model.send(TokenOutput(1, token=5, text="x"), TokenOutput(2, token=6, text="y", finish_reason="stop"))
    clock.now = 2.0
    model.send(TokenOutput(1, token=7, text="z", finish_reason="length"), TokenOutput(2, token=9))
    frames = [frame async for frame in talk.frames()]
    assert [[(record.index, moment, output.token) for record, moment, output in frame] for frame in frames] == [
        [(1, 1.0, 5), (2, 1.0, 6)],
        [(1, 2.0, 7)],
    ]
    assert (one.text, two.text, one.finish_reason, one.ttft) == ("xz", "y", "length", 1.0)
    assert talk.running == []


async def test_a_record_knows_what_was_asked_for() -> None:
    """How many alternatives, and which distribution the logprobs are of."""
    talk, biased = RunningStreams(), SamplingParams(top_logprobs=7, logit_bias={3: 1.0})
    for request, asked, mode in (
        (GenerateRequest(1, "a", biased), 7, "biased"),
        (ScoreRequest(2, "a", "b", top_logprobs=2), 2, "raw"),
    ):
        record = talk.submit(Scripted(), request)
        assert (record.top_logprobs, record.logprobs_mode) == (asked, mode)


async def test_wind_down_waits_for_the_endings() -> None:
    """After `wind_down` every stream has ended, and what still came is returned."""
    model = Scripted()
    talk = RunningStreams()
    record = talk.submit(model, GenerateRequest(1, "a"))
    late = await talk.wind_down()
    assert [output.finish_reason for _, _, output in late] == ["cancelled"]
    assert record.finish_reason == "cancelled"
    assert talk.running == []


async def test_wind_down_does_not_wait_for_ever() -> None:
    """A model that confirms nothing is left after a moment."""
    talk = RunningStreams()
    talk.submit(Scripted(deaf=True), GenerateRequest(1, "a"))
    assert await talk.wind_down() == []
    assert talk.running == []


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        ("connection", ConnectError, 3),
        ("protocol", RemoteProtocolError, 5),
        ("invalid_request", ServerError, 4),
        ("out_of_memory", ServerError, 4),
        (None, ServerError, 4),
    ],
)
def test_errors_have_their_exit_status(code: str | None, kind: type[LmtoolError], status: int) -> None:
    """A stream's failure is the connection's, the protocol's, or the server's."""
    error = error_of(TokenOutput(1, error="no", error_code=code))
    assert type(error) is kind
    assert (error.exit_code, error.message) == (status, "no")
