"""LMTP, MODEL_INFO and MSG."""

import asyncio
import json

import pytest

from lmtool.lmtp.client import LmtpClient
from lmtool.lmtp.config import ServerConfig
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


async def test_limits(real):
    """INF-7: limits have their names and numbers, those that were configured among them."""
    limits = (await ask(real))["model_info"]["limits"]
    assert limits == {
        "frame_bytes": 4 * 1024 * 1024,
        "prompt_bytes": limits["prompt_bytes"],
        "streams": 1024,
        "top_logprobs": 256,
        "stop": 64,
        "messages": 10_000,
        "tools": 128,
        "logits_processors": 8,
        "stream_id_bytes": 1024,
    }
    config = ServerConfig(max_frame_bytes=5000, max_streams=3)
    async with serving(ScriptedModel(), config=config) as served, wire(served) as client:
        limits = (await ask(client))["model_info"]["limits"]
        assert (limits["frame_bytes"], limits["streams"]) == (5000, 3)
        assert limits.keys().isdisjoint({"prompt_bytes", "top_logprobs"})


async def test_limits_are_kept(real):
    """INF-7, GEN-6: what is one beyond a limit is refused, what is at it is not; top_logprobs are reduced."""
    limits = (await ask(real))["model_info"]["limits"]
    text, ids, stops = ("x" * limits["prompt_bytes"], [7] * (limits["stop"] + 1), ["s"] * (limits["stop"] + 1))
    for fields in ({"prompt": f"{text}x"}, {"prompt": [1], "stop": stops}, {"prompt": [1], "stop_token_ids": ids}):
        await real.send(f"GENERATE {json.dumps({'stream_id': 2, 'max_tokens': 1, **fields})}")
        assert "error" in (await real.stream(2))[-1]
    most = {"stop": stops[1:], "stop_token_ids": ids[1:], "top_logprobs": limits["top_logprobs"] + 1}
    await real.send(f"GENERATE {json.dumps({'stream_id': 3, 'prompt': [1], 'max_tokens': 1, **most})}")
    (entry,) = await real.stream(3)
    assert len(entry["top_logprobs"]) in (limits["top_logprobs"], limits["top_logprobs"] + 1)
