"""One client's connection, without a socket: what it starts, stops, pauses and sends."""

import asyncio
import contextlib
import json

import pytest

from lmtool.errors import ConnectError, ServerError
from lmtool.lmtp.config import ServerConfig
from lmtool.lmtp.connection import Connection
from lmtool.logit_bias import PackedBias
from lmtool.prompt_limits import PromptLimits
from lmtool.subprocesses.pool import LONG
from lmtool.types import LoadProgress
from tests.scripted_model import ScriptedModel, tokens_of

MESSAGE = '{"role":"user","content":""}'
SMALL = ServerConfig(high_water_bytes=2000, max_streams=4, stall_seconds=0.01)


class LimitedModel(ScriptedModel):
    """Tells what its prompts may have."""

    @property
    def limits(self):
        return dict.fromkeys((None, "m"), PromptLimits("tiny", 10, 200))


def connect(model, config=None, progress=None):
    logged = []
    return Connection(1, model, config or ServerConfig(), progress=progress, catalogue=None, log=logged.append), logged


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


async def test_one_frame_a_step():
    """A step's tokens of all streams are one frame for a client that keeps up."""
    model = ScriptedModel(manual=True)
    connection, _ = connect(model)
    reader = Reader()
    reader.allow(1000)
    async with writing(connection, reader):
        for number in range(8):
            await connection.receive(f'GENERATE {{"prompt": [{number}], "stream_id": {number}, "max_tokens": 3}}')
        for step in range(3):
            model.step()
            await connection.flushed()
            assert len(reader.frames) == step + 1
            assert [e["stream_id"] for e in json.loads(reader.frames[-1].partition(" ")[2])] == list(range(8))
    assert not model.running


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


async def test_a_stalled_reader_is_given_up():
    """A client that takes nothing for too long ends the writing."""
    connection, _ = connect(ScriptedModel(), SMALL)
    async with writing(connection, Reader()) as task:
        await connection.receive('MODEL_INFO {"stream_id": 1}')
        with pytest.raises(TimeoutError):
            await task


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


async def test_cancel():
    """CANCEL ends the stream within one step; a second one, or one for a stranger, does nothing."""
    model = ScriptedModel(manual=True)
    connection, logged = connect(model)
    reader = Reader()
    reader.allow(100)
    async with writing(connection, reader):
        await connection.receive('GENERATE {"prompt": [1], "stream_id": 1}')
        model.step()
        for _ in range(2):
            await connection.receive('CANCEL {"stream_id": 1}')
        await connection.receive('CANCEL {"stream_id": 2}')
        model.step()
        await connection.idle()
        await connection.flushed()
    assert [entry["finish_reason"] for entry in reader.entries] == [None, "cancelled"]
    assert "token" not in reader.entries[-1]
    assert logged[0].end == "cancelled"


async def test_model_info_waits_for_the_model():
    """MODEL_INFO is answered when the model is there, and other requests do not wait for it."""
    model = ScriptedModel()
    model.loaded.clear()
    connection, logged = connect(model)
    reader = Reader()
    reader.allow(100)
    async with writing(connection, reader):
        await connection.receive('MODEL_INFO {"stream_id": 1}')
        await connection.receive('MODEL_INFO {"stream_id": 2, "model": "other"}')
        await connection.receive('GENERATE {"prompt": [1], "stream_id": 3, "max_tokens": 1}')
        await reader.taken.wait()
        assert reader.entries[0]["stream_id"] == 3
        model.loaded.set()
        await connection.idle()
        await connection.flushed()
    answers = {entry["stream_id"]: entry for entry in reader.entries}
    assert answers[1]["model_info"]["model"] == "scripted"
    assert "other" in answers[2]["error"]
    assert {entry.stream_id: entry.command for entry in logged}["1"] == "MODEL_INFO"


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
    connection, _ = connect(model, progress=loading)
    reader = Reader()
    reader.allow(100)
    async with writing(connection, reader):
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


async def test_no_progress_when_the_model_is_there():
    """A model that is there already is not announced."""
    model, loading = ScriptedModel(), Loading("ready")
    connection, _ = connect(model, progress=loading)
    reader = Reader()
    reader.allow(100)
    async with writing(connection, reader):
        await connection.receive('MODEL_INFO {"stream_id": 1, "progress": true}')
        await connection.idle()
        await connection.flushed()
    assert [set(entry) for entry in reader.entries] == [{"stream_id", "model_info"}]


async def test_refusing_new_streams():
    """A connection that takes no new streams ends them with an error, and finishes the old ones."""
    model = ScriptedModel(manual=True)
    connection, _ = connect(model)
    reader = Reader()
    reader.allow(100)
    async with writing(connection, reader):
        await connection.receive('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1}')
        connection.refuse_new(ConnectError("shutting down"))
        await connection.receive('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 1}')
        model.step()
        await connection.idle()
        await connection.flushed()
    assert [(entry["stream_id"], "error" in entry) for entry in reader.entries] == [(2, True), (1, False)]


async def test_failing_what_runs():
    """All streams of a connection can be ended with an error."""
    model = ScriptedModel(manual=True)
    connection, logged = connect(model)
    await connection.receive('GENERATE {"prompt": [1], "stream_id": 1}')
    connection.fail(ConnectError("shutting down"))
    await connection.idle()
    assert model.cancelled == ["1"]
    assert logged[0].error == "shutting down"
    connection.close()


async def test_a_bug_in_a_plug_is_answered_and_shown():
    """A model that fails to describe itself by a bug answers the client and shows the bug to the loop's handler."""

    class Broken(ScriptedModel):
        async def info(self, model=None):
            raise ZeroDivisionError

    shown = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.append(context["exception"]))
    connection, _ = connect(Broken())
    reader = Reader()
    reader.allow(1)
    async with writing(connection, reader):
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


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (
            '"prompt": "{text}"',
            "prompt of 16384 bytes does not fit: the context of tiny is 10 tokens, at most 200 bytes",
        ),
        ('"messages": [{{"role": "user", "content": "{text}"}}]', "conversation of 16384 bytes does not fit"),
        (
            '"messages": [{messages}]',
            "9000 messages do not fit: the context of tiny is 10 tokens; leave out the oldest",
        ),
        ('"prompt": [{ids}]', "prompt of 16384 tokens leaves no room for output: the context of tiny is 10 tokens"),
        ('"prompt": [1], "scored": [{ids}]', "prompt of 1 and scored text of 16384 tokens do not fit"),
        ('"prompt": [1], "scored": "{text}"', "scored text of 16384 bytes does not fit"),
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
        patched.setattr("lmtool.lmtp.connection.beside", fails)
        await connection.receive(f'GENERATE {{"prompt": [1], "stream_id": 1, "x": "{"x" * LONG}"}}')
    assert "the process that reads long requests failed" in logged[0].error
    await connection.receive('GENERATE {"prompt": [2], "stream_id": 2}')
    assert [request.stream_id for request in model.requests] == ["2"]
