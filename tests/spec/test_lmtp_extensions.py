"""LMTP, Extensions, CANCEL, Loading."""

import re

import pytest

from lmtool.core.types import LoadProgress
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.messages import EXTENSIONS
from tests.protocol.lmtp.harness import conversation, serving, wire
from tests.scripted_model import ScriptedModel
from tests.spec.document import section

OLD_FIELDS = {"token", "stream_id", "logprob", "finish_reason", "top_logprobs"}


async def test_nothing_unasked(client):
    """EXT-1: who has not asked meets no field, kind or command that the document does not have."""
    await client.send(
        'GENERATE {"prompt": [1], "stream_id": 1, "unknown": 1}',
        'SCORE {"prompt": [1], "scored": [1], "stream_id": 2}',
        'GENERATE {"prompt": [5000], "stream_id": 3}',
        'MODEL_INFO {"stream_id": 4, "unknown": 1}',
        'MODEL_INFO {"stream_id": 5, "model": "other"}',
    )
    ended = 0
    while ended < 5:
        command, entries = await client.receive()
        for entry in entries:
            if "error" in entry:
                assert set(entry) == {"stream_id", "error"}
            elif command == "MSG":
                assert set(entry) == {"stream_id", "model_info"}
            else:
                assert set(entry) in (OLD_FIELDS, OLD_FIELDS - {"top_logprobs"})
            ended += command == "MSG" or "error" in entry or entry["finish_reason"] is not None


@pytest.mark.parametrize(
    "asking",
    [
        'MODEL_INFO {"stream_id": 0, "lmtp": 1}',
        'GENERATE {"prompt": [1], "stream_id": 0, "max_tokens": 0, "lmtp": 1}',
        'CANCEL {"stream_id": 0, "lmtp": 1}\nMODEL_INFO {"stream_id": 0}',
        'GENERATE {"stream_id": 0, "lmtp": 7}',
    ],
)
async def test_asking(served, client, asking):
    """EXT-2, EXT-3, EXT-4: `lmtp` in any request turns the extensions on for its connection alone."""
    await client.send(*asking.split("\n"))
    await client.receive()
    async with wire(served) as old:
        for connected, extra in ((client, {"usage"}), (old, set())):
            await connected.send('GENERATE {"prompt": [1, 2], "stream_id": 1, "max_tokens": 3}')
            entries = await connected.stream(1)
            assert [set(entry) for entry in entries] == [OLD_FIELDS, OLD_FIELDS, OLD_FIELDS | extra]
            if extra:
                assert entries[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "cached_tokens": 0}


async def test_bad_lmtp(client):
    """EXT-2: `lmtp` is an integer from 1."""
    await client.send('GENERATE {"prompt": [1], "stream_id": 1, "lmtp": "yes"}')
    assert (await client.stream(1))[0]["error"].startswith("lmtp")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ('GENERATE {"prompt": [5000], "stream_id": 1, "lmtp": 1}', "unknown_token"),
        ('GENERATE {"prompt": [1], "stream_id": 1, "model": "other", "lmtp": 1}', "unknown_model"),
        ('GENERATE {"prompt": [-1], "stream_id": 1, "lmtp": 1}', "invalid_request"),
        ('MODEL_INFO {"model": "other", "stream_id": 1, "lmtp": 1}', "unknown_model"),
        ('HELLO {"stream_id": 1, "lmtp": 1}', "invalid_request"),
    ],
)
async def test_error_codes(client, frame, code):
    """EXT-4: beside the sentence stands a code."""
    await client.send(frame)
    _, (entry,) = await client.receive()
    assert entry["error_code"] == code
    assert isinstance(entry["error"], str)


@pytest.mark.parametrize(
    ("frame", "command"),
    [
        ('GENERATE {"prompt": [5000], "stream_id": 1, "lmtp": 1}', "TOKEN"),
        ('GENERATE {"prompt": [1], "top_p": 7, "stream_id": 1, "lmtp": 1}', "TOKEN"),
        ('MODEL_INFO {"model": "other", "stream_id": 1, "lmtp": 1}', "MSG"),
    ],
)
async def test_error_details(client, frame, command):
    """EXT-7: whether to send it again, and what to do next, with which the sentence ends."""
    await client.send(frame)
    (entry,) = await client.entries(command, 1)
    assert entry["retryable"] is False
    assert "retry_after" not in entry
    hints = entry.get("hints", [])
    assert entry["error"].endswith("".join(f"; {hint}" for hint in hints))
    assert bool(hints) == ("other" in frame)


async def test_when_to_send_it_again():
    """EXT-7, ERR-8: after an overload the seconds are told, in MSG and in TOKEN."""
    model = ScriptedModel(manual=True)
    async with conversation(model, config=ServerConfig(max_streams=1)) as client:
        model.loaded.clear()
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "lmtp": 1}', 'MODEL_INFO {"stream_id": 2}')
        await client.send('GENERATE {"prompt": [1], "stream_id": 3}', 'MODEL_INFO {"stream_id": 4}')
        for command in ("TOKEN", "MSG"):
            (entry,) = await client.entries(command, 1)
            assert (entry["error_code"], entry["retryable"], entry["retry_after"]) == ("overloaded", True, 1)


async def test_context_overflow_has_a_code(real):
    """EXT-4: a prompt that does not fit has a code of its own."""
    await real.send(f'GENERATE {{"prompt": {[1] * 600}, "stream_id": 1, "lmtp": 1}}')
    (entry,) = await real.stream(1)
    assert entry["error_code"] == "context_overflow"


async def test_cancel(stepped, manual):
    """CAN-1: CANCEL ends the stream within one step, with `cancelled`; its neighbour goes on."""
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1}', 'GENERATE {"prompt": [1], "stream_id": 2}')
    await stepped.alive()
    manual.step()
    await stepped.receive()
    await stepped.send('CANCEL {"stream_id": 1}')
    await stepped.alive()
    manual.step()
    _, entries = await stepped.receive()
    assert [entry["finish_reason"] for entry in entries] == ["cancelled", None]
    assert entries[0] == {"stream_id": 1, "finish_reason": "cancelled"}
    assert [stream.request.stream_id for stream in manual.running.values()] == ["2"]


async def test_cancel_with_other_fields(stepped, manual):
    """CAN-3: CANCEL takes `model` and anything else; without an id it is refused."""
    await stepped.send('GENERATE {"prompt": [1], "stream_id": 1}')
    await stepped.send('CANCEL {"stream_id": 1, "model": "scripted", "why": "bored"}')
    await stepped.alive()
    manual.step()
    assert (await stepped.stream(1))[-1]["finish_reason"] == "cancelled"
    await stepped.send('CANCEL {"model": "scripted"}')
    assert (await stepped.entries("MSG", 1))[0]["stream_id"] is None


class Loading:
    """A load whose progress the test tells."""

    def __init__(self, phase):
        self.phase = phase
        self.listeners = []

    def subscribe(self, model, listener):
        self.listeners.append(listener)
        listener(LoadProgress("m", self.phase))
        return lambda: self.listeners.remove(listener)

    def tell(self, *progress):
        for listener in list(self.listeners):
            listener(LoadProgress("m", *progress))


@pytest.mark.parametrize("command", ["GENERATE", "SCORE", "MODEL_INFO"])
async def test_loading(command):
    """LOAD-1: each change is told to a request that asks; the request is answered afterwards."""
    model, loading = ScriptedModel(manual=True), Loading("waiting")
    model.loaded.clear()
    async with serving(model, progress=loading) as served, wire(served) as client:
        await client.send(
            f'{command} {{"prompt": [1], "scored": [2], "max_tokens": 1, "stream_id": 1, "progress": true}}'
        )
        (first,) = await client.entries("MSG", 1)
        assert set(first) == {"stream_id", "progress"}
        assert set(first["progress"]) == {"model", "phase", "done_bytes", "total_bytes", "message"}
        loading.tell("loading", 5, 10, "half")
        loading.tell("ready", 10, 10)
        told = [entry["progress"]["phase"] for entry in await client.entries("MSG", 2)]
        assert [first["progress"]["phase"], *told] == ["waiting", "loading", "ready"]
        model.loaded.set()
        model.step()
        _, (answer,) = await client.receive()
        assert answer.get("model_info") or answer["finish_reason"]


async def test_nothing_to_tell():
    """LOAD-2: nothing is told when the model is there, nor to a request that has not asked."""
    model, loading = ScriptedModel(), Loading("ready")
    async with serving(model, progress=loading) as served, wire(served) as client:
        await client.send('MODEL_INFO {"stream_id": 1, "progress": true}')
        assert "model_info" in (await client.entries("MSG", 1))[0]
        loading.phase = "loading"
        await client.send('MODEL_INFO {"stream_id": 2}', 'GENERATE {"prompt": [1], "stream_id": 3, "lmtp": 1}')
        loading.tell("loading")
        assert "model_info" in (await client.entries("MSG", 1))[0]
        await client.stream(3)


def test_names_of_extensions():
    """EXT-6: the document lists the names that MODEL_INFO does."""
    listed = re.findall(r"^\| `(\w+)` \|", section("**EXT-6**"), re.MULTILINE)
    assert tuple(listed) == EXTENSIONS
