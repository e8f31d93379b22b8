"""One connection to a model: streams, back-pressure, its log."""

import asyncio
import contextlib
import json

import pytest

from lmtool.core.errors import ConnectError, ServerError
from lmtool.core.logit_bias import PackedBias
from lmtool.core.prompt_limits import PromptLimits
from lmtool.core.types import GenerateRequest, LoadProgress, ScoreRequest, TokenOutput, Usage
from lmtool.net.subprocesses.process import LONG
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.connection import Connection
from lmtool.protocol.lmtp.messages import Generate, Score
from lmtool.protocol.lmtp.plugs import Plugs
from lmtool.protocol.lmtp.stream_record import StreamRecord
from tests.scripted_model import ScriptedModel, tokens_of

MESSAGE = '{"role":"user","content":""}'
SMALL = ServerConfig(high_water_bytes=2000, max_streams=4)


class LimitedModel(ScriptedModel):
    """Tells what its prompts may have."""

    @property
    def limits(self):
        return dict.fromkeys((None, "m"), PromptLimits("tiny", 10, 200))


def connect(model, config=None, progress=None):
    logged = []
    return Connection(1, Plugs(model, config or ServerConfig(), progress, log=logged.append)), logged


class Reader:
    """Takes frames, as many as it is allowed to."""

    def __init__(self):
        self.frames = []
        self.allowed = asyncio.Semaphore(0)
        self.taken = asyncio.Event()

    async def __call__(self, frame):
        await self.allowed.acquire()
        self.frames.append(frame)
        self.taken.set()

    def allow(self, count):
        for _ in range(count):
            self.allowed.release()

    @property
    def entries(self):
        return [entry for frame in self.frames for entry in json.loads(frame.partition(" ")[2])]


@contextlib.asynccontextmanager
async def writing(connection, reader):
    task = asyncio.create_task(connection.write(reader))
    try:
        yield task
    finally:
        connection.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def talking(model, config=None, progress=None):
    """A connection whose client reads all that comes; with what was logged."""
    connection, logged = connect(model, config, progress)
    reader = Reader()
    reader.allow(1000)
    async with writing(connection, reader):
        yield connection, reader, logged


async def test_a_slow_reader_pauses_its_own_streams():
    """Above the mark the streams pause, and requests wait; when the client has read, all go on and nothing is lost."""
    model = ScriptedModel(manual=True)
    connection, _ = connect(model, ServerConfig(high_water_bytes=2000))
    other, _ = connect(model)
    reader = Reader()
    async with writing(connection, reader):
        await connection.receive('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 100}')
        await other.receive('GENERATE {"prompt": [2], "stream_id": 1, "max_tokens": 100}')
        slow, fast = model.running.values()
        for _ in range(60):
            model.step()
        assert slow.paused
        assert slow.position < 40
        assert fast.position == 60
        room = asyncio.ensure_future(connection.room())
        await asyncio.sleep(0)
        assert not room.done()
        await connection.receive('GENERATE {"prompt": [3], "stream_id": 2, "max_tokens": 1}')
        assert all(stream.paused for stream in model.running.values() if stream is not fast)
        reader.allow(1000)
        await room
        assert not slow.paused
        while model.running:
            model.step()
            await connection.flushed()
        tokens = [entry["token"] for entry in reader.entries if entry["stream_id"] == 1]
        assert tokens == tokens_of((1,), 100)
        assert len(reader.frames) < 100
    other.close()


async def test_leaving_cancels_everything():
    """When the client is gone, all its streams are cancelled at once and logged; nothing more is taken."""
    model = ScriptedModel(manual=True)
    connection, logged = connect(model)
    await connection.receive('GENERATE {"prompt": [1], "stream_id": 1}')
    await connection.receive('SCORE {"prompt": [1], "scored": [2, 3], "stream_id": 2}')
    connection.close()
    connection.close()
    assert model.cancelled == ["1", "2"]
    assert [(entry.stream_id, entry.command, entry.end) for entry in logged] == [
        ("1", "GENERATE", "left"),
        ("2", "SCORE", "left"),
    ]
    model.step()
    assert not model.running


async def test_too_many_model_infos():
    """Waiting MODEL_INFO requests are limited like streams."""
    model = ScriptedModel()
    model.loaded.clear()
    connection, _ = connect(model, SMALL)
    for number in range(5):
        await connection.receive(f'MODEL_INFO {{"stream_id": {number}}}')
    reader = Reader()
    reader.allow(1)
    async with writing(connection, reader):
        await reader.taken.wait()
    assert reader.entries[0]["stream_id"] == 4
    assert "MODEL_INFO" in reader.entries[0]["error"]


class Loading:
    """A load whose progress the test tells."""

    def __init__(self, *phases):
        self.phase = LoadProgress("m", phases[0]) if phases else LoadProgress("m", "waiting")
        self.listeners = []

    def subscribe(self, model, listener):
        self.listeners.append(listener)
        listener(self.phase)
        return lambda: self.listeners.remove(listener)

    def tell(self, phase, done=0):
        for listener in list(self.listeners):
            listener(LoadProgress("m", phase, done, 100))


async def test_progress_is_told_to_who_asks():
    """Each change is told to a request with `progress`, until its stream ends; others hear nothing."""
    model, loading = ScriptedModel(manual=True), Loading("waiting")
    async with talking(model, progress=loading) as (connection, reader, _):
        await connection.receive('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1, "progress": true}')
        await connection.receive('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 1}')
        loading.tell("loading", 50)
        loading.tell("ready", 100)
        model.step()
        await connection.flushed()
    progress = [entry for entry in reader.entries if "progress" in entry]
    assert [entry["progress"]["phase"] for entry in progress] == ["waiting", "loading", "ready"]
    assert {entry["stream_id"] for entry in progress} == {1}
    assert loading.listeners == []


async def test_failing_what_runs():
    """All streams of a connection can be ended with an error."""
    model = ScriptedModel(manual=True)
    connection, logged = connect(model)
    await connection.receive('GENERATE {"prompt": [1], "stream_id": 1}')
    connection.fail(ConnectError("shutting down"))
    await connection.idle()
    assert model.cancelled == ["1"]
    assert logged[0].error == "shutting down"
    await connection.receive('GENERATE {"prompt": [1], "stream_id": 2}')
    connection.close()
    connection.fail(ConnectError("shutting down"))  # as its client leaves
    assert len(logged) == 2


async def test_a_bug_in_a_plug_is_answered_and_shown():
    """A model that fails to describe itself by a bug answers the client and shows the bug to the loop's handler."""

    class Broken(ScriptedModel):
        async def info(self, model=None):
            raise ZeroDivisionError

    shown = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.append(context["exception"]))
    async with talking(Broken()) as (connection, reader, _):
        await connection.receive('MODEL_INFO {"stream_id": 1}')
        await reader.taken.wait()
    assert "ZeroDivisionError" in reader.entries[0]["error"]
    assert isinstance(shown[0], ZeroDivisionError)


async def test_refused_frames_are_logged():
    """A frame that was refused is logged with its command and the reason."""
    connection, logged = connect(ScriptedModel())
    await connection.receive("NOISE {}")
    assert (logged[0].command, logged[0].stream_id) == ("NOISE", "null")
    assert "stream_id" in logged[0].error


async def test_a_long_frame_keeps_its_place():
    """It is read by a helper; what the same client asks next comes after it, what others ask before."""
    model = ScriptedModel(manual=True)
    connection, _ = connect(model)
    other, _ = connect(model)
    ids = ", ".join(["1"] * LONG)

    async def ask():
        await connection.receive(f'GENERATE {{"prompt": [{ids}], "stream_id": 1}}')
        await connection.receive('CANCEL {"stream_id": 1}')

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    await other.receive('GENERATE {"prompt": [2], "stream_id": 2}')
    assert [request.stream_id for request in model.requests] == ["2"]
    await asking
    assert [request.stream_id for request in model.requests] == ["2", "1"]
    assert model.cancelled == ["1"]


TOO_LONG = "prompt is too long"


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (
            '"prompt": "{text}"',
            f"{TOO_LONG}: at least 820 tokens > 10 maximum; this model's maximum context length is 10 tokens (tiny)",
        ),
        (
            '"messages": [{{"role": "user", "content": "{text}"}}]',
            "prompt is too long: at least 820 tokens > 10 maximum",
        ),
        (
            '"messages": [{messages}]',
            f"{TOO_LONG}: at least 9000 tokens > 10 maximum; ",
        ),
        ('"prompt": [{ids}]', "prompt is too long: 16384 tokens > 9 maximum"),
        ('"prompt": [1], "scored": [{ids}]', "prompt is too long: 16385 tokens > 10 maximum"),
        ('"prompt": [1], "scored": "{text}"', "prompt is too long: at least 820 tokens > 10 maximum"),
    ],
)
async def test_what_cannot_fit_does_not_reach_the_model(members, told):
    """The helper knows the limits: it sends back a sentence instead of a million ids."""
    model = LimitedModel()
    connection, _ = connect(model)
    parts = {"text": "x" * LONG, "ids": ",".join(["1"] * LONG), "messages": ",".join([MESSAGE] * 9000)}
    command = "SCORE" if "scored" in members else "GENERATE"
    for number, name in enumerate(("", '"model": "m", ', '"model": "other", ')):
        await connection.receive(f'{command} {{"stream_id": {number}, "lmtp": 1, {name}{members.format(**parts)}}}')
    reader = Reader()
    reader.allow(10)
    async with writing(connection, reader):
        await connection.flushed()
    for entry in reader.entries:
        assert entry["error"].startswith(told)
        assert entry["error_code"] == "context_overflow"
    assert [entry["stream_id"] for entry in reader.entries] == [0, 1, 2]
    assert not model.requests


async def test_what_fits_is_read_by_the_helper_too():
    """A mask over a large vocabulary arrives whole, in few bytes."""
    model = LimitedModel()
    connection, _ = connect(model)
    mask = ",".join(f'"{number}":-100' for number in range(3000))
    await connection.receive(f'GENERATE {{"stream_id": 1, "prompt": [1], "logit_bias": {{{mask}}}}}')
    [request] = model.requests
    assert isinstance(request.sampling.logit_bias, PackedBias)
    assert dict(request.sampling.logit_bias) == dict.fromkeys(range(3000), -100.0)


async def test_a_frame_that_nobody_can_read(monkeypatch):
    """Where the helper fails, the client is told, and the connection goes on."""

    async def fails(read, frame):
        raise ServerError("the process that reads long requests failed")

    model = ScriptedModel()
    connection, logged = connect(model)
    with monkeypatch.context() as patched:
        patched.setattr("lmtool.protocol.lmtp.connection.run_in_subprocess", fails)
        await connection.receive(f'GENERATE {{"prompt": [1], "stream_id": 1, "x": "{"x" * LONG}"}}')
    assert "the process that reads long requests failed" in logged[0].error
    await connection.receive('GENERATE {"prompt": [2], "stream_id": 2}')
    assert [request.stream_id for request in model.requests] == ["2"]


def test_times_and_counts():
    """Prompt and output tokens, time to the first, and the rate after it."""
    record = StreamRecord(3, Generate(GenerateRequest("7", (1, 2, 3), model="m"), ignored=("x",)), 10.0)
    for second in range(11):
        record.add(TokenOutput("7", second, -1.0), 10.5 + second / 10)
    log = record.log(11.5, end="length")
    assert log == RequestLog(3, "7", "GENERATE", "m", 3, 11, 0.5, 1.5, "length", None, ("x",))
    assert log.tokens_per_second == pytest.approx(10.0)
    two, one = (RequestLog(3, "7", "SCORE", output_tokens=tokens, ttft=0.5, seconds=1.0) for tokens in (2, 1))
    assert (two.tokens_per_second, one.tokens_per_second) == (2.0, None)


def test_text_prompts_are_counted_by_the_model():
    """The length of a text says nothing about tokens; the model's own count does."""
    record = StreamRecord(1, Score(ScoreRequest("7", "some text", "more", text=True)), 0.0)
    assert record.log(1.0, error="no", error_code="server").prompt_tokens is None
    assert record.log(1.0, error="no", error_code="server").error_code == "server"
    record.add(TokenOutput("7", finish_reason="stop", usage=Usage(4, 0, 3)), 1.0)
    log = record.log(1.0, end="stop")
    assert (log.command, log.prompt_tokens, log.output_tokens, log.ttft) == ("SCORE", 4, 0, None)
    assert log.cached_tokens == 3
    assert log.tokens_per_second is None


def test_nothing_said_is_logged():
    """A log entry has no place for a prompt or a text."""
    assert not {"prompt", "text", "frame", "messages"} & set(RequestLog.__dataclass_fields__)
