"""Members behind the real litellm package, over fake providers; the gateway runs in an environment of its own.

python3.11 -m venv ENV && ENV/bin/pip install 'lmtool[gateway,litellm]'    # LMTOOL_LITELLM_PYTHON
"""

import asyncio
import os
import signal
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.fake_answers import CALL, Words
from tests.fake_upstream import BAD, HANG, Behaviour, FakeUpstream
from tests.gateway.pools.running import KEY, MESSAGE, pool
from tests.gateway.pools.test_faults import shown
from tests.gateway.pools.test_server import read_events
from tests.protocol.providers.test_official_clients import TOOL

pytestmark = pytest.mark.peer
PATIENCE = 120.0
ROOT = Path(__file__).parents[2]
MODELS = {"openai/m": "/v1", "anthropic/claude-sonnet-4-5": "", "ollama_chat/m": ""}
"""Models of litellm, and what it wants as a base below a fake's URL. It cannot read Cohere's streams there."""
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}


def member(upstream, model="openai/m", name="lite", **more):
    """The YAML of a member behind litellm."""
    rest = "".join(f", {key}: {value}" for key, value in more.items())
    where = upstream.url + MODELS[model]
    return f"{{id: {name}{rest}, litellm: {{model: {model}, api_key: {KEY}-{name}, base_url: {where!r}}}}}"


def pools(entries):
    """The YAML of a file with these pools, each by its name."""
    return "pools:\n" + "".join(pool(*members, name=name).removeprefix("pools:\n") for name, members in entries.items())


@asynccontextmanager
async def gateway(folder, text):
    """A gateway by the Python of the variable: a function that posts to it, and the file with what it writes."""
    python = os.environ.get("LMTOOL_LITELLM_PYTHON")
    if python is None:
        pytest.skip("LMTOOL_LITELLM_PYTHON names no Python")
    file, ready, log = folder / "pools.yaml", folder / "ready", folder / "log"
    file.write_text(text)
    (folder / ".env").write_text(f"LMTOOL_PORT=1\nOPENAI_API_KEY={KEY}-env\n")
    command = [python, "-m", "lmtool", "gateway", "--config", str(file), "--port", "0", "--ready-file", str(ready)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LMTOOL_")}
    proxy = "http://127.0.0.1:1"  # whatever it would fetch from the network fails at once
    environment = {**kept, "PYTHONPATH": str(ROOT), "HTTPS_PROXY": proxy, "NO_PROXY": "127.0.0.1"}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
    try:
        async with asyncio.timeout(PATIENCE):
            while not ready.exists():
                assert process.poll() is None, log.read_text()
                await asyncio.sleep(0.05)
        url = "http" + ready.read_text().strip().removeprefix("ws").rstrip("/")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:

            async def post(path, body):
                async with session.post(url + path, json=body) as response:
                    is_json = response.content_type == "application/json"
                    return response.status, response.headers, await (response.json() if is_json else response.text())

            yield post, log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


async def test_answers(tmp_path):
    """Text, counts, calls and pictures of every API, whole and streamed; the log stays silent, nothing is fetched."""
    async with FakeUpstream() as upstream:
        text = pools({f"p{number}": [member(upstream, model)] for number, model in enumerate(MODELS)})
        async with gateway(tmp_path, text) as (post, log):
            for number, model in enumerate(MODELS):
                for stream in (False, True):
                    status, headers, reply = await post(f"/v1/p{number}/chat", MESSAGE | {"stream": stream})
                    assert (status, shown(reply, stream=stream)) == (200, "Hello"), model
                    last = read_events(reply)[-1] if stream else reply
                    counts = {"prompt_tokens": 7, "response_tokens": 5, "total_tokens": 12}
                    assert last["provider_response"]["token_count"] == counts
                    assert headers["x-lmtool-attempts"].startswith("lite ok")
            assert {one.key for one in upstream.received if one.method == "POST" and "chat" in one.path} == {
                f"{KEY}-lite"
            }
            seen = [{"type": "text", "text": "What?"}, PICTURE]
            status, _, _ = await post("/v1/multi/p0/multimodal", {"message": {"role": "user", "content": seen}})
            assert (status, upstream.received[-1].json["messages"][0]["content"]) == (200, seen)
            upstream.usual = Behaviour(words=Words((), (CALL,)))
            chat = {"model": "p0", "messages": [{"role": "user", "content": "Weather?"}], "tools": [TOOL]}
            for stream in (False, True):
                _, _, reply = await post("/v1/chat/completions", chat | {"stream": stream})
                assert CALL.name in str(reply)
                assert "tool_calls" in str(reply)
                assert upstream.received[-1].json["tools"] == [TOOL]
            written = log.read_text().lower()
            assert not any(word in written for word in ("litellm", "warn", "127.0.0.1:1/", KEY))


async def test_failures(tmp_path):
    """Each is a fallback after one call, in our words, whole and streamed; what has begun is never glued."""
    cases = [
        (f"{'s' if stream else 'w'}{at}", name, stream)
        for stream in (False, True)
        for at, name in enumerate(sorted(BAD))
    ]
    outcomes = {}
    async with FakeUpstream() as bad, FakeUpstream() as good:
        own = [member(bad, timeouts="{total: 60s, first_token: 5s}"), member(good, name="good")]
        async with gateway(tmp_path, pools({pool: own for pool, _, _ in cases} | {"more": own})) as (post, log):
            for name, case, stream in cases:
                if stream and case == "reset in the body":
                    continue  # it comes after the first words
                bad.usual, before = BAD[case], len(bad.received)
                status, headers, reply = await post(f"/v1/{name}/chat", MESSAGE | {"stream": stream})
                assert (status, shown(reply, stream=stream), len(bad.received) - before) == (200, "Hello", 1), case
                first, *rest = headers["x-lmtool-attempts"].split(", ")
                assert len(rest) == 1
                outcomes[case, stream] = first.removeprefix("lite ").rpartition(" ")[0]
                assert KEY not in str(reply) + str(headers)
            for fault in ("reset", "half", "error"):
                bad.usual, before = Behaviour(fault=fault, after=3), len(good.received)
                _, _, reply = await post("/v1/more/chat", MESSAGE | {"stream": True})
                assert ("broke off" in reply, len(good.received) - before) == (True, 0)
            bad.usual = HANG
            bad.left.clear()
            _, headers, _ = await post("/v1/more/chat", MESSAGE | {"stream": True})
            assert headers["x-lmtool-attempts"].startswith("lite first token timeout")
            async with asyncio.timeout(20):
                await bad.left.wait()
        assert KEY not in log.read_text()
    kinds = {
        "429 in seconds": "rate limit",
        "429 with a date": "rate limit",
        "429 alone": "rate limit",
        "401": "key refused",
        "403": "key refused",
        "400": "status 400",
        "404": "status 404",
        "400 context": "context too long",
        "empty": "empty answer",
        "no choices": "empty answer",
    }
    assert {case: outcomes[case] for case in outcomes if case[0] in kinds} == {
        case: kinds[case[0]] for case in outcomes if case[0] in kinds
    }
