"""LMTP, MODEL_INFO and MSG."""

import asyncio
import json
import re

import pytest
from websockets.exceptions import InvalidStatus

from lmtool.core.errors import ModelLoadError, UnknownModelError
from lmtool.inference.engine.model_manager import ModelManager
from lmtool.net.access.caller import Callers
from lmtool.net.access.keyed_models import keyed
from lmtool.net.access.keys import Key, KeyRing, Limits, digest_of
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.config import ServerConfig
from tests.inference.engine.shelf import Shelf, named, until
from tests.protocol.lmtp.harness import serving, wire
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


async def test_fingerprint(real):
    """INF-8, EXT-1: told to a client that knows the extensions, the same each time; not before it has said so."""
    assert "fingerprint" not in (await ask(real))["model_info"]
    (told,) = {(await ask(real, lmtp=1))["model_info"]["fingerprint"] for _ in range(2)}
    assert re.fullmatch("[0-9a-f]{64}", told)
    assert (await ask(real))["model_info"]["fingerprint"] == told


async def test_no_fingerprint(client):
    """INF-8: a model of which it is not known has none."""
    assert "fingerprint" not in (await ask(client, lmtp=1))["model_info"]


async def test_limits_of_a_key(scripted):
    """INF-9, EXT-1, TRA-12: told to a client that knows the extensions; above one a stream ends with overloaded."""
    limits = Limits(streams=2, requests_per_minute=1)
    callers = Callers(KeyRing((Key("alice", digest_of("secret"), limits, priority=3),)), lambda: 0.0)
    shown = {"additional_headers": {"x-api-key": "secret"}}
    async with (
        serving(keyed(scripted), policy=AccessPolicy(callers=callers)) as served,
        wire(served, **shown) as client,
    ):
        assert "key_limits" not in (await ask(client))["model_info"]
        told = (await ask(client, lmtp=1))["model_info"]["key_limits"]
        assert told == {"streams": 2, "requests_per_minute": 1, "priority": 3}
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1, "priority": 2}')
        assert (await client.stream(1))[-1]["error_code"] == "invalid_request"
        await client.send('GENERATE {"prompt": [1], "stream_id": 2, "max_tokens": 1}')
        assert "error" not in (await client.stream(2))[-1]
        await client.send('GENERATE {"prompt": [1], "stream_id": 3, "max_tokens": 1}')
        last = (await client.stream(3))[-1]
        assert (last["error_code"], last["retryable"], last["retry_after"]) == ("overloaded", True, 60)
        callers.replace(KeyRing((Key("alice", digest_of("secret"), Limits(connections=1)),)))
        with pytest.raises(InvalidStatus) as refused:
            async with wire(served, **shown):
                pass
        assert (refused.value.response.status_code, refused.value.response.headers["retry-after"]) == (429, "1")
        callers.replace(KeyRing())
        await client.send('GENERATE {"prompt": [1], "stream_id": 4, "max_tokens": 1}')
        assert (await client.stream(4))[-1]["error_code"] == "access_denied"


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


async def manage(client, stream_id, **fields):
    await client.send(f"MODELS {json.dumps({'stream_id': stream_id, **fields})}")
    return (await client.entries("MSG", 1))[0]


async def test_models():
    """MOD-1: answered by the list at once, whatever loads."""
    model = ScriptedModel()
    model.loaded.clear()
    async with serving(model, catalogue=model) as served, wire(served) as client:
        listed = {"models": [{"name": "scripted", "phase": "loading", "context_length": 4096}]}
        assert await manage(client, 1) == {"stream_id": 1, **listed}
        assert await manage(client, "a", model="no matter") == {"stream_id": "a", **listed}


async def test_load_and_unload():
    """MOD-2, MOD-3, LOAD-1: each is answered when it is done, a load behind its progress."""
    shelf = Shelf(open_=False)
    manager = ModelManager(shelf.load, named("a", "b"))
    async with serving(manager, catalogue=manager, control=manager, progress=manager) as served, wire(served) as client:
        await client.send('MODELS {"stream_id": 1, "load": "a", "progress": true}')
        first = (await client.entries("MSG", 1))[0]
        assert first["progress"]["phase"] in ("waiting", "loading")
        await until(lambda: shelf.loads)
        await client.send('MODELS {"stream_id": 2}')
        while "models" not in (entry := (await client.entries("MSG", 1))[0]):
            assert entry["stream_id"] == 1
        assert (entry["stream_id"], [one["phase"] for one in entry["models"]]) == (2, ["loading", "unloaded"])
        shelf.gate.set()
        while "models" not in (entry := (await client.entries("MSG", 1))[0]):
            assert entry["stream_id"] == 1
        assert [entry["phase"] for entry in entry["models"]] == ["ready", "unloaded"]
        for _ in range(2):
            entry = await manage(client, 3, unload="a")
            assert [entry["phase"] for entry in entry["models"]] == ["unloaded", "unloaded"]
            assert shelf.models["a"].closed.is_set()
        assert "models" in await manage(client, 4, load="a")
    await manager.close()
    assert shelf.loads == ["a", "a"]


async def test_unload_of_a_model_in_use():
    """MOD-3: the request is refused, and the stream that runs goes on to its end."""
    shelf = Shelf()
    manager = ModelManager(shelf.load, named("a"))
    async with serving(manager, catalogue=manager, control=manager) as served, wire(served) as client:
        await manage(client, 1, load="a")
        await client.send('GENERATE {"prompt": [1], "stream_id": 2}')
        assert "a is in use: 1 stream runs" in (await manage(client, 3, unload="a"))["error"]
        await shelf.models["a"].finish()
        assert (await client.stream(2))[-1]["finish_reason"] == "length"
        assert "models" in await manage(client, 4, unload="a")
    await manager.close()


async def test_models_refused():
    """MOD-2, MOD-3, MOD-4: unknown names, a load that fails, both at once, and a server without models of its own."""
    shelf = Shelf()
    shelf.errors["a"] = ModelLoadError("the file is cut off", "download it again")
    manager = ModelManager(shelf.load, named("a"))
    async with serving(manager, catalogue=manager, control=manager) as served, wire(served) as client:
        assert "'x' is not served here" in (await manage(client, 1, load="x"))["error"]
        assert "'x' is not in memory here" in (await manage(client, 2, unload="x"))["error"]
        assert await manage(client, 3, load="a") == {"stream_id": 3, "error": "the file is cut off; download it again"}
        assert (await manage(client, 4, load="a", lmtp=1))["error_code"] == "model_load"
        assert "both load and unload" in (await manage(client, 5, load="a", unload="a"))["error"]
        assert "load is 5; expected a string" in (await manage(client, 6, load=5))["error"]
    await manager.close()
    model = ScriptedModel()
    async with serving(model, catalogue=model) as served, wire(served) as client:
        assert "not loaded and unloaded on request" in (await manage(client, 1, load="scripted"))["error"]


async def test_client_of_models():
    """MOD-4: our client sends the name as `model` too; what it raises is the server's error of its kind."""
    shelf, frames = Shelf(), []
    manager = ModelManager(shelf.load, named("a"))
    async with (
        serving(manager, catalogue=manager, control=manager) as served,
        LmtpClient(served.url, on_frame=lambda _, frame: frames.append(frame)) as client,
    ):
        assert [entry.phase for entry in await client.load("a")] == ["ready"]
        assert frames[0] == 'MODELS {"model":"a","stream_id":1,"load":"a","lmtp":1,"progress":true}'
        assert [entry.phase for entry in await client.unload("a")] == ["unloaded"]
        with pytest.raises(UnknownModelError, match="'b' is not served here"):
            await client.load("b")
    await manager.close()


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
        "buffers": 256,
        "buffer_bytes": 4 * 1024 * 1024,
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
