"""`lmtool gateway` and `lmtool pools` as programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil

import lmtool
from lmtool.cli.gateway import lines
from tests.fake_upstream import BAD, FakeUpstream
from tests.gateway.pools.running import KEY, MESSAGE, PATIENCE, member, pool

COMMAND = (sys.executable, "-m", "lmtool")


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=PATIENCE, check=False, env=os.environ | environment
    )


@asynccontextmanager
async def program(file: Path, *words: str) -> AsyncIterator[tuple[subprocess.Popen[str], str, Path]]:
    """A gateway in a process of its own, its URL, and the file with what it writes."""
    ready, log = file.with_suffix(".ready"), file.with_suffix(".log")
    with log.open("w") as output:
        command = [*COMMAND, "gateway", "--config", str(file), "--port", "0", "--ready-file", str(ready), *words]
        process = subprocess.Popen(command, stdout=output, stderr=output, text=True)
        try:
            async with asyncio.timeout(PATIENCE):
                while not ready.exists():
                    assert process.poll() is None, log.read_text()
                    await asyncio.sleep(0.02)
            yield process, "http" + ready.read_text().strip().removeprefix("ws").rstrip("/"), log
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)


def test_a_file_with_faults_stops_the_start(tmp_path: Path) -> None:
    """With all of them, and status 7; `--check` does only that."""
    file = tmp_path / "pools.yaml"
    file.write_text("pools:\n  - id: p\n    stratgy: priority\n    models: []\n")
    for words in (("--check",), ()):
        result = run("gateway", "--config", str(file), *words)
        assert result.returncode == 7
        assert "pools.yaml:3: pools[0].stratgy is not known here; did you mean strategy?" in result.stderr
        assert "pools.yaml:4: pools[0] has no models" in result.stderr
    file.write_text("pools:\n  - id: p\n    models: [{id: a, local: {}}, {id: b, local: {}}]\n")
    result = run("gateway", "--config", str(file), "--check")
    assert (result.returncode, result.stdout) == (0, "p  priority  a, b\n")
    text = file.read_text().replace(
        "{id: b, local: {}}", '{id: c, openai: {model: m, base_url: "http://localhost/v1"}}'
    )
    file.write_text(f"{text}    continue: prefill\n")
    result = run("gateway", "--config", str(file), "--check")
    assert (result.returncode, result.stdout) == (0, "p  priority  a, c  continue: prefill by a\n")


def test_help_says_what_the_endpoint_is_here() -> None:
    """No server to talk to, as for other commands: the one behind local members."""
    help_of_gateway, help_of_pools = (" ".join(run(name, "--help").stdout.split()) for name in ("gateway", "pools"))
    assert "Server whose model the local members of pools use" in help_of_gateway
    assert "API key that clients must send, also sent to the server at -e" in help_of_gateway
    assert "Server to connect to" in help_of_pools
    assert "Server to connect to" not in help_of_gateway


STARTED = r"""
import asyncio, importlib.abc, socket, sys, threading
from lmtool.gateway.pools.config_reader import parse
from lmtool.serving.config import ModelsConfig, PoolsConfig, ServiceConfig
from lmtool.serving.service import Service

imported = threading.Event()

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "aiohttp":
            assert imported.wait(20)

sys.meta_path.insert(0, Slow())

async def request(port, head, body=""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{head} HTTP/1.1", "host: localhost", "connection: close", f"content-length: {len(body)}", "", body]
    writer.write("\r\n".join(lines).encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()

async def main(text, message):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    service = Service(ServiceConfig(ModelsConfig(model="auto"), pools=PoolsConfig(parse(text)), pools_only=True))
    service.listen([listener])
    assert "aiohttp" not in sys.modules
    await service.ready(print)
    assert " 200 " in await request(port, "GET /health")
    chat = asyncio.create_task(request(port, "POST /v1/default/chat", message))
    assert "rests" not in await request(port, "GET /v1/language/")
    imported.set()
    print(await chat)
    await service.close()

asyncio.run(main(*sys.argv[1:]))
heavy = {"torch", "transformers", "llguidance", "textual", "litellm", "jsonschema", "lmtool.protocol.lmtp.client"}
sys.exit(" ".join(sorted(heavy & set(sys.modules))) or 0)
"""


async def test_a_gateway_answers_before_it_has_imported_what_its_members_need() -> None:
    """Its first call of a member waits for the HTTP client and succeeds. Nothing heavy is imported at all."""
    async with FakeUpstream() as upstream:
        words = (pool(member("a", upstream)), json.dumps(MESSAGE))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STARTED, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, errors.decode()
    assert '"content":"Hello"' in output.decode()


async def test_a_gateway_lives_reloads_and_keeps_its_keys(tmp_path: Path) -> None:
    """Small in memory; SIGHUP changes pools, a bad file nothing; no key is in what it writes or shows."""
    file = tmp_path / "pools.yaml"
    async with FakeUpstream(BAD["500"]) as bad, FakeUpstream() as good:
        file.write_text(pool(member("a", bad), member("b", good)))
        async with program(file, "--json-logs") as (process, url, log), aiohttp.ClientSession() as session:
            async with session.post(f"{url}/v1/default/chat", json=MESSAGE) as response:
                assert (response.status, (await response.json())["model_id"]) == (200, "b")
            assert psutil.Process(process.pid).memory_info().rss < 80e6

            async with lmtool.pools(url) as client:
                reply = await client.chat("default", "Hello", history=[{"role": "system", "content": "Be brief."}])
                assert (reply.text, reply.provider, reply.model, reply.cached) == ("Hello", "openai", "model-b", False)
                assert "".join([text async for text in client.stream("default", "Hello")]) == "Hello"

            shown = await asyncio.to_thread(run, "pools", "-e", url)
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout.splitlines()[0].startswith("default  priority  requests 3")
            state = await asyncio.to_thread(run, "pools", "default", "--json", "-e", url)
            assert [one["ok"] for one in json.loads(state.stdout)[0]["models"]] == [0, 3]
            unknown = await asyncio.to_thread(run, "pools", "other", "-e", url)
            assert (unknown.returncode, "pools of this server: default" in unknown.stderr) == (4, True)
            chat = await asyncio.to_thread(run, "chat", "-e", url, "-m", "default", "Hello")
            assert (chat.returncode, chat.stdout.strip()) == (0, "Hello"), chat.stderr

            file.write_text("pools: [")
            process.send_signal(signal.SIGHUP)
            await _written(log, "the pools stay as they were")
            file.write_text(pool(member("c", good), name="other"))
            process.send_signal(signal.SIGHUP)
            await _written(log, '"event": "reloaded", "pools": ["other"]')
            async with session.post(f"{url}/v1/other/chat", json=MESSAGE) as response:
                assert (await response.json())["model_id"] == "c"
        assert process.returncode == 0
        assert KEY not in log.read_text() + shown.stdout + state.stdout + chat.stderr


async def _written(log: Path, text: str) -> None:
    end = time.monotonic() + PATIENCE
    while text not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        await asyncio.sleep(0.02)


def test_pools_for_people() -> None:
    """A line for the pool, one for each model; a rest with its reason."""
    models = [
        {
            "id": "a",
            "provider": "openai",
            "model": "gpt",
            "state": "resting",
            "resting_seconds": 12.0,
            "reason": "rate limit",
            "ok": 4,
            "failed": 3,
            "cost": 0.5,
        },
        {"id": "here", "provider": "local", "model": None, "state": "ready", "ok": 1, "failed": 0, "cost": None},
    ]
    shown = lines(
        {
            "id": "p",
            "strategy": "priority",
            "requests": 8,
            "cached": 2,
            "p50_seconds": 0.9,
            "cost": 0.5,
            "models": models,
        }
    )
    assert shown[0] == "p  priority  requests 8  cached 2  p50 900 ms  cost 0.5000"
    assert "resting 12 s (rate limit)  4 ok  3 failed  cost 0.5000" in shown[1]
    assert shown[2].split() == ["here", "local", "ready", "1", "ok"]
