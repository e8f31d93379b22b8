"""The processes of `lab gateway`, started and ended: a provider, a bare forwarder, our gateway, LiteLLM's proxy."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from lmtool.core.errors import ConnectError, ResourceError, TimeLimitError
from lmtool.net.http_client import open_client
from tests.lab.gateway.peers import HOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import TextIO

DIRECT, FORWARDER, LITELLM = "direct", "forwarder", "litellm"
UNIFIED, OPENAI = "lmtool", "lmtool (OpenAI)"
"""Our gateway by its unified route, and by OpenAI's."""
PROMPT = "Say twenty words about the sea."
START_SECONDS = 120.0
"""Most time until a process answers: LiteLLM's proxy takes ten to thirty seconds."""
POLL_SECONDS = 0.02
EXIT_SECONDS = 5.0
TAIL_BYTES = 2000
_CHAT = "/v1/chat/completions"
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


@dataclass(frozen=True, slots=True)
class Route:
    """One way from the client to the provider."""

    name: str
    url: str
    body: bytes
    """Of each request."""
    process: int | None
    """Of the gateway; None where there is none between."""
    start_s: float = 0.0
    """From the process's start to its first answer."""
    key: str | None = field(default=None, repr=False)
    """Bearer key of each request."""


class Processes:
    """Starts processes and their routes; all end with the stack."""

    def __init__(self, stack: AsyncExitStack, note: Callable[[str], None], *, stream: bool) -> None:
        self._stack = stack
        self._note = note
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmtool-bench-")))
        self._chat = _body(model="bench", messages=[{"role": "user", "content": PROMPT}], stream=stream)
        self._unified = _body(message={"role": "user", "content": PROMPT}, stream=stream)
        self._upstream = ""

    async def start_all(self, litellm: str | None) -> list[Route]:
        """Start provider and gateways one by one; the routes. litellm: the Python of its environment.

        Raises `ConnectError`, `ResourceError`, `TimeLimitError`.
        """
        ports = _free_ports(4)
        bases = [f"http://{HOST}:{port}" for port in ports]
        python, self._upstream = [sys.executable, "-m", "tests.lab.gateway.peers"], bases[0]
        await self._start("the provider", [*python, "upstream", str(ports[0])], bases[0])
        direct = Route(DIRECT, bases[0] + _CHAT, self._chat, None)
        words = [*python, "forwarder", str(ports[1]), bases[0]]
        number, seconds = await self._start("the bare forwarder", words, bases[1])
        routes = [direct, Route(FORWARDER, bases[1] + _CHAT, self._chat, number, seconds)]
        words = [sys.executable, "-m", "lmtool", "gateway", "--config", self._own_config(), "--port", str(ports[2])]
        number, seconds = await self._start("lmtool gateway", words, f"{bases[2]}/health")
        routes.append(Route(UNIFIED, f"{bases[2]}/v1/language/bench/chat", self._unified, number, seconds))
        routes.append(Route(OPENAI, bases[2] + _CHAT, self._chat, number, seconds))
        if litellm is not None:
            words = [litellm, "-c", "from litellm import run_server; run_server()", "--config", self._litellm_config()]
            words += ["--host", HOST, "--port", str(ports[3]), "--num_workers", "1"]
            key = f"sk-{secrets.token_hex(24)}"  # it does not start without one
            env = {**_OFFLINE, "LITELLM_MASTER_KEY": key}
            number, seconds = await self._start("LiteLLM's proxy", words, f"{bases[3]}/health/liveliness", env)
            routes.append(Route(LITELLM, bases[3] + _CHAT, self._chat, number, seconds, key))
        return routes

    async def _start(
        self, name: str, words: Sequence[str], url: str, env: Mapping[str, str] | None = None
    ) -> tuple[int, float]:
        """The process's id, and the seconds until it answered at the URL, whatever it said."""
        self._note(f"starting {name}")
        begin = time.perf_counter()
        log = (self._folder / f"{name}.log").open("w+", encoding="utf-8", errors="replace")  # closed by the stack
        self._stack.callback(log.close)
        process = await self._stack.enter_async_context(_process(words, log, env or {}))
        async with open_client() as client:
            while not await _answers(client, url):
                if process.returncode is not None:
                    raise ConnectError(f"{name} ended with status {process.returncode}", *_last_lines(log))
                if time.perf_counter() - begin > START_SECONDS:
                    raise TimeLimitError(f"{name} did not answer within {START_SECONDS:g} s", *_last_lines(log))
                await asyncio.sleep(POLL_SECONDS)
        return process.pid, time.perf_counter() - begin

    def _own_config(self) -> str:
        member = {"base_url": f"{self._upstream}/v1", "model": "bench", "api_key": "none"}
        return self._write("pools", {"pools": [{"id": "bench", "models": [{"id": "only", "openai": member}]}]})

    def _litellm_config(self) -> str:
        parameters = {"model": "openai/bench", "api_base": f"{self._upstream}/v1", "api_key": "none"}
        return self._write("litellm", {"model_list": [{"model_name": "bench", "litellm_params": parameters}]})

    def _write(self, name: str, content: Mapping[str, Any]) -> str:
        """Write a configuration as JSON, which is YAML as well; the path."""
        path = self._folder / f"{name}.yaml"
        path.write_text(json.dumps(content), encoding="utf-8")
        return str(path)


def _body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def _answers(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(url) as answer:
            await answer.read()
    except aiohttp.ClientError:
        return False
    return True


@asynccontextmanager
async def _process(
    words: Sequence[str], log: TextIO, env: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running command; at the end SIGTERM, then SIGKILL."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
            start_new_session=True,  # Ctrl-C reaches this program only, which ends it
        )
    except OSError as error:
        raise ResourceError(
            f"cannot start {words[0]!r}: {error.strerror}", "give the Python of an environment"
        ) from None
    try:
        yield process
    finally:
        for signal in (process.terminate, process.kill):
            if process.returncode is None:
                signal()
                try:
                    async with asyncio.timeout(EXIT_SECONDS):
                        await process.wait()
                except TimeoutError:
                    continue


def _last_lines(log: TextIO) -> list[str]:
    log.seek(0)
    return [line for line in log.read()[-TAIL_BYTES:].splitlines() if line.strip()][-3:]
