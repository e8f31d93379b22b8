"""The author's sampling parameters are those of HTTP requests that leave them out, and of no others."""

from __future__ import annotations

import json
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import httpx2
import pytest

import lmtool
from lmtool.core.errors import FileError
from lmtool.gateway.pools.config_reader import parse
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.config import ModelsConfig, PoolsConfig, ReplicasConfig, ServiceConfig
from lmtool.serving.replicas import commands
from tests.serving.running import running

LIMIT = 7
AUTHORS = {"do_sample": True, "temperature": 0.01, "top_k": 1, "repetition_penalty": 1.2, "max_new_tokens": LIMIT}
IN_FORCE = {"temperature": 0.01, "top_k": 1, "repetition_penalty": 1.2, "max_tokens": LIMIT}
HELLO = [{"role": "user", "content": "Tell me a story."}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": LIMIT},
    "/v1/responses": {"input": HELLO[0]["content"]},
    "/v1/messages": {"messages": HELLO, "max_tokens": LIMIT},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An author's recommendations, in place of those of the included model, which has none."""
    found = tmp_path_factory.mktemp("author") / "generation_config.json"
    found.write_text(json.dumps(AUTHORS), encoding="utf-8")
    return found


def config_of(file: Path) -> ServiceConfig:
    return ServiceConfig(ModelsConfig(generation_config=str(file)), EngineConfig(threads=1))


async def posted(url: str, path: str, **body: Any) -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=url.replace("ws", "http", 1), timeout=60) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def text_of(answer: dict[str, Any]) -> str:
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    if "choices" not in answer:
        return str(answer["content"][0]["text"])
    [choice] = answer["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def test_a_gguf_file(tmp_path: Path) -> None:
    """Its metadata has the author's values, unless the command line or a file beside it says otherwise."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_float32("general.sampling.temp", 0.6)
    writer.add_int32("general.sampling.top_k", 20)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert ModelsConfig(str(path)).sampling_defaults(str(path), None) == {"temperature": 0.6, "top_k": 20}
    assert ModelsConfig(str(path), generation_config="none").sampling_defaults(str(path), None) == {}
    shutil.copy(MODEL_DIR / "generation_config.json", tmp_path)
    assert "top_k" not in ModelsConfig(str(path)).sampling_defaults(str(path), None)


async def test_every_route(file: Path) -> None:
    """All APIs take the author's values, `max_new_tokens` where a route has no limit of its own; the request's win."""
    async with running(config_of(file)) as (_, url):
        for path, body in ROUTES.items():
            answers = [text_of(await posted(url, path, **body)) for _ in range(3)]
            assert len(set(answers)) == 1, path
            explicit = {name: value for name, value in IN_FORCE.items() if name in {"temperature", "top_k"}}
            if path != "/v1/messages":  # which knows no such parameter
                explicit["repetition_penalty"] = IN_FORCE["repetition_penalty"]
            assert text_of(await posted(url, path, **body, **explicit)) == answers[0], path
            wild = {"temperature": 1.0, "top_k": 0, "max_tokens": LIMIT}
            if path == "/v1/responses":
                wild["max_output_tokens"] = wild.pop("max_tokens")
            drawn = {text_of(await posted(url, path, **{**body, **wild})) for _ in range(6)}
            assert len(drawn) > 1, path
        chat = await posted(url, "/v1/chat/completions", messages=HELLO)
        assert (chat["usage"]["completion_tokens"], chat["choices"][0]["finish_reason"]) == (LIMIT, "length")
        assert (await posted(url, "/v1/completions", prompt="Once upon"))["usage"]["completion_tokens"] == 16
        response = await posted(url, "/v1/responses", input="Hello")
        assert (response["temperature"], response["top_p"], response["usage"]["output_tokens"]) == (0.01, 1.0, LIMIT)


async def test_what_is_in_force_is_said(file: Path) -> None:
    """`/v1/models`, MODEL_INFO, `/v1/models` of a balancer and the start-up lines have it; a balancer applies it."""
    async with AsyncExitStack() as stack:
        service, url = await stack.enter_async_context(running(config_of(file)))
        [info] = service.loaded
        assert info.sampling_defaults == IN_FORCE
        front = ServiceConfig(workers=(url,), balances=True)
        _, balanced = await stack.enter_async_context(running(front))
        for where in (url, balanced):
            async with httpx2.AsyncClient(base_url=where.replace("ws", "http", 1), timeout=60) as http:
                [card] = (await http.get("/v1/models")).json()["data"]
            assert card["sampling_defaults"] == IN_FORCE
            async with lmtool.connect(where) as connected:
                assert (await connected.info()).sampling_defaults == IN_FORCE
        answers = {text_of(await posted(balanced, "/v1/chat/completions", messages=HELLO)) for _ in range(3)}
        assert answers == {text_of(await posted(url, "/v1/chat/completions", messages=HELLO))}


async def test_lmtp_keeps_its_own(file: Path) -> None:
    """Over LMTP a parameter that is left out has the document's default, whatever the author recommends."""
    async with running(config_of(file)) as (_, url), lmtool.connect(url) as connected:
        explicit = {"max_tokens": 20, "temperature": 0.0, "repetition_penalty": 1.0}
        plain = [one.token async for one in connected.generate("Once upon a time", max_tokens=20)]
        assert len(plain) == 20
        assert plain == [one.token async for one in connected.generate("Once upon a time", **explicit)]


async def test_a_pool_with_the_model(file: Path) -> None:
    """A pool's request to a model of its own process has them, too."""
    pools = "pools: [{id: one, models: [{id: own, local: {}}]}]"
    config = replace(config_of(file), pools=PoolsConfig(parse(pools)))
    async with running(config) as (_, url):
        bodies = [await posted(url, "/v1/chat/completions", model="one", messages=HELLO) for _ in range(3)]
        assert len({text_of(body) for body in bodies}) == 1
        assert {body["usage"]["completion_tokens"] for body in bodies} == {LIMIT}


async def test_choices(file: Path, tmp_path: Path) -> None:
    """`auto` takes the model's own file, whatever backend computes it; `none` and `vllm` none; a bad one is refused."""
    folder = tmp_path / "author"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 100}', encoding="utf-8")
    shutil.copy(file, folder)
    for choice, in_force in (("auto", IN_FORCE), ("none", {}), ("vllm", {})):
        models = ModelsConfig(str(folder), generation_config=choice)
        async with running(ServiceConfig(models, backend=BackendConfig("random"))) as (service, _):
            [info] = service.loaded
            assert (info.sampling_defaults, info.batch_invariant) == (in_force, True), choice
    assert ModelsConfig("auto", generation_config=str(file)).sampling_defaults("any/model", None) == IN_FORCE
    (folder / file.name).write_text('{"temperature": "warm"}', encoding="utf-8")
    with pytest.raises(FileError, match="temperature is 'warm'"):
        ModelsConfig.of(None, generation_config=str(folder))
    with pytest.raises(FileError, match="temperature is 'warm'"):
        async with running(ServiceConfig(ModelsConfig(str(folder)), backend=BackendConfig("random"))):
            pass


async def test_in_python(file: Path) -> None:
    """`lmtool.serve` takes the choice as `lmtool serve` does."""
    async with lmtool.serve(generation_config=str(file)) as server:
        assert server.info is not None
        assert server.info.sampling_defaults == IN_FORCE


def test_workers(file: Path) -> None:
    """Replicas are started with the choice."""
    [command, _] = commands(ReplicasConfig(2), config_of(file), {})
    assert f"--generation-config {file}" in command
