"""Claude Code and Codex themselves hold three turns with a server, and with gateways in front of it.

    npm install --prefix FOLDER @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0
    LMTOOL_AGENTS=FOLDER pytest -m peer tests/peer/test_coding_agents.py

Neither needs an account; 2.1.197 is the last Claude Code for Node 20. Whatever they would fetch from elsewhere fails at
once: their proxy is a closed port.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.gateway.pools.running import gateway
from tests.protocol.http.saying import SayingModel, application

FOLDER = os.environ.get("LMTOOL_AGENTS")
PATIENCE = 300.0
pytestmark = [pytest.mark.peer, pytest.mark.skipif(FOLDER is None, reason="LMTOOL_AGENTS names no folder of programs")]
TURNS = ("Say hello", "Read a.txt with a tool", "Now do what is cut off")
OFFLINE = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "HTTPS_PROXY": "http://127.0.0.1:1",
    "NO_PROXY": "127.0.0.1",
}
CODEX_CONFIG = """
model = {model}
model_provider = "local"
check_for_update_on_startup = false
analytics.enabled = false
feedback.enabled = false
[model_providers.local]
name = "local"
base_url = {url}
wire_api = "responses"
"""


def _run(command: list[str], home: Path, **environment: str) -> str:
    """What a program prints in its working folder, which has a file."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    (work / "a.txt").write_text("sesame\n")
    paths = {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [f"{FOLDER}/node_modules/.bin/{command[0]}", *command[1:]],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=work,
        env=paths | OFFLINE | environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.strip()


def claude(url: str, model: str, home: Path) -> list[str]:
    """The answers of Claude Code's turns, each a program of its own that goes on with the conversation."""
    there = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": model}
    first = ["claude", "-p", "--allowedTools", "Bash Read"]
    return [_run([*first, *["-c"] * (at > 0), "--", turn], home, **there) for at, turn in enumerate(TURNS)]


def codex(url: str, model: str, home: Path) -> list[str]:
    """The same of Codex."""
    config = CODEX_CONFIG.format(model=json.dumps(model), url=json.dumps(f"{url}/v1"))
    (home / "config.toml").write_text(config)
    first = ["codex", "exec", "--skip-git-repo-check"]
    last = ["resume", "--last"]
    return [_run([*first, *last * (at > 0), turn], home, CODEX_HOME=str(home)) for at, turn in enumerate(TURNS)]


CALLS: dict[Callable[[str, str, Path], list[str]], tuple[str, dict[str, str]]] = {
    claude: ("Bash", {"command": "cat a.txt"}),
    codex: ("exec_command", {"cmd": "cat a.txt"}),
}
"""The call by which each reads the file."""
PROGRAMS = pytest.mark.parametrize("program", CALLS, ids=["claude", "codex"])


@contextmanager
def saying(model: SayingModel) -> Iterator[str]:
    """The URL of a server of this model."""
    server = uvicorn.Server(uvicorn.Config(application(model), log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        end = time.monotonic() + 30
        while not server.started and time.monotonic() < end:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


@asynccontextmanager
async def reached(url: str, kind: str) -> AsyncIterator[tuple[str, str]]:
    """The URL at which a program reaches a server, through a gateway by its API of this kind, and the model."""
    if kind == "server":
        yield url, "sayer"
        return
    target = f'{kind}: {{model: sayer, api_key: none, base_url: "{url}/v1"}}'
    async with gateway(f"pools:\n  - id: default\n    models:\n      - {{id: main, {target}}}\n") as served:
        yield served.url, "default"


@PROGRAMS
@pytest.mark.parametrize("kind", ["server", "openai", "anthropic"])
async def test_three_turns(program: Callable[[str, str, Path], list[str]], kind: str, tmp_path: Path) -> None:
    """A text, a call with its result, and a call that the model does not end: each turn ends with the model's text."""
    name, arguments = CALLS[program]
    call = json.dumps({"name": name, "arguments": arguments})
    cut = call[: call.index(" a.txt")]
    model = SayingModel("Hello.", f"<tool_call>{call}</tool_call>", "It is sesame.", f"<tool_call>{cut}", "The end.")
    with saying(model) as url:
        async with reached(url, kind) as (where, served):
            answers = await asyncio.to_thread(program, where, served, tmp_path)
    assert answers == ["Hello.", "It is sesame.", "The end."]
    prompts = [bytes(model.letters.encode_prompt(one.prompt)).decode() for one in model.requests]
    assert len(prompts) == 5
    assert "sesame" in prompts[2].rpartition("calls")[2]


@PROGRAMS
async def test_three_turns_with_the_command(
    program: Callable[[str, str, Path], list[str]], start_server: Any, tmp_path: Path
) -> None:
    """`lmtool serve`, and `lmtool gateway` in front of it: each turn is answered, be it nonsense."""
    context = ("--backend-option", "context_length=200000", "--max-context", "200000")
    with start_server("lmtool-tiny", "--backend", "random", *context) as server:
        server.expect("ready in")
        url = "http" + server.url.removeprefix("ws").rstrip("/")
        (tmp_path / "pools.yaml").write_text(
            f"pools:\n  - id: lmtool-tiny\n    models:\n      - {{id: main, lmtp: {{endpoint: {server.url!r}}}}}\n"
        )
        with start_server("--config", str(tmp_path / "pools.yaml"), command="gateway") as front:
            front.expect("ready in")
            for where in (url, "http" + front.url.removeprefix("ws").rstrip("/")):
                home = tmp_path / where.rpartition(":")[2]
                home.mkdir()
                answers = await asyncio.to_thread(program, where, "lmtool-tiny", home)
                assert len(answers) == 3
                assert all(answers)
