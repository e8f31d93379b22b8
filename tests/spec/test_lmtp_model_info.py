"""LMTP, MODEL_INFO and MSG."""

import asyncio
import json

import pytest

from lmtool.lmtp.client import LmtpClient
from tests.lmtp.harness import serving, wire
from tests.scripted_model import ScriptedModel


async def ask(client, **fields):
    await client.send(f"MODEL_INFO {json.dumps({'stream_id': 1, **fields})}")
    return (await client.entries("MSG", 1))[0]


@pytest.mark.parametrize("data", [{"model": "scripted"}, {}, [], None, "x", 5])
async def test_answer(client, data):
    """INF-1, INF-2: answered by MSG with the same id and an object that has `model` and `constructor`."""
    entry = await ask(client, model="scripted", data=data)
    assert set(entry) == {"stream_id", "model_info"}
    assert entry["stream_id"] == 1
    assert entry["model_info"]["model"] == "scripted"
    assert isinstance(entry["model_info"]["constructor"], str)


async def test_what_is_known(real):
    """INF-3: vocabulary, context, eos, tokenizer, how it runs, and what the server speaks."""
    told = (await ask(real))["model_info"]
    assert (told["vocab_size"], told["context_length"]) == (512, 512)
    assert told["eos_token_ids"] == [1, 2]
    assert (told["dtype"], told["device"], told["architecture"]) == ("float32", "cpu", "LlamaForCausalLM")
    assert told["parameters"] == 260_032
    assert len(told["tokenizer"]["sha256"]) == 64
    assert told["chat_template"] is False
    assert "transformers" in told["versions"]
    assert (told["running"], told["waiting"]) == (0, 0)
    assert told["lmtp"] == 1
    assert {"cancel", "stop", "text", "seed"} <= set(told["extensions"])


async def test_unknown_models(client):
    """INF-4, ERR-2: a name that is not served is a MSG error."""
    entry = await ask(client, model="other")
    assert set(entry) == {"stream_id", "error"}
    assert "other" in entry["error"]


async def test_waiting_for_the_model():
    """INF-5: a request waits for the model; meanwhile other requests are answered."""
    model = ScriptedModel()
    model.loaded.clear()
    async with serving(model) as served, wire(served) as client:
        await client.send('MODEL_INFO {"stream_id": 1}', 'GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 1}')
        assert len(await client.stream(2)) == 1
        model.loaded.set()
        (entry,) = await client.entries("MSG", 1)
        assert "model_info" in entry
    model.loaded.clear()
    async with serving(model) as served, LmtpClient(served.url) as asking:
        waiting = asyncio.create_task(asking.info())
        await asyncio.sleep(0)
        model.loaded.set()
        assert (await waiting).model == "scripted"


async def test_the_list():
    """INF-6: with `list` all that is served is told at once, whatever loads; without a catalogue it is INF-1."""
    model = ScriptedModel()
    model.loaded.clear()
    async with serving(model, catalogue=model) as served, wire(served) as client:
        entry = await ask(client, list=True, model="no matter")
        assert entry == {"stream_id": 1, "models": [{"name": "scripted", "phase": "loading", "context_length": 4096}]}
    model.loaded.set()
    async with serving(model) as served, wire(served) as client:
        assert "model_info" in await ask(client, list=True)
