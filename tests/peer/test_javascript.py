"""`lmtp.js`, the client for pages and Node, holds streams with a real server.

    pytest -m peer tests/peer/test_javascript.py

Needs node, 20.10 or later: where it is older than 22, its WebSocket has to be switched on, which the test does.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import lmtool
from lmtool.core.types import ChatMessage, ChatPrompt
from tests.protocol.lmtp.document_server import document_server

CLIENT = Path(lmtool.__file__).parent / "protocol/lmtp/lmtp.js"
KEY = "a/b+c~d?"
SCRIPT = Path(__file__).parent / "lmtp_client.mjs"

pytestmark = pytest.mark.peer


async def text_of(model, prompt, max_tokens):
    """A greedy answer of the Python client."""
    outputs = model.generate(prompt, max_tokens=max_tokens, temperature=0.0, text=True)
    return "".join([output.text or "" async for output in outputs])


async def test_streams_of_node(start_server, tmp_path):
    """Streams alone and at once, a cancelled one, scores, refusals, no server: as the Python client has them."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    module = tmp_path / "lmtp.mjs"  # Node takes the name for what it is: pages do not care
    shutil.copyfile(CLIENT, module)
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    switches = [] if int(version.strip("v").partition(".")[0]) >= 22 else ["--experimental-websocket"]
    with start_server("lmtool-tiny", "--api-key", KEY) as server:
        server.expect("ready")
        command = [node, *switches, str(SCRIPT), str(module), server.url, KEY]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        await check(done, server.url)


async def check(done, url):
    """What the script wrote is what the Python client gets."""
    assert done.returncode == 0, done.stderr[-3000:]
    got = json.loads(done.stdout)
    assert got["info"] == "lmtool-tiny"
    assert got["texts"][-1]["finish_reason"] in {"length", "stop"}
    async with lmtool.connect(url, api_key=KEY) as model:
        chat = ChatPrompt((ChatMessage("user", "Hello there"),))
        assert "".join(entry.get("text", "") for entry in got["texts"]) == await text_of(model, chat, 8)
        for prompt, text in zip(("Once upon", "The cat", "One, two,"), got["many"], strict=True):
            assert await text_of(model, prompt, 6) == text
        scored = await model.score("Once upon a", " time,")
        assert got["scored"] == pytest.approx([output.logprob for output in scored], abs=1e-4)
    negative, unknown, refused, missing = got["errors"]
    assert "max_tokens" in negative
    assert "nobody" in unknown
    assert f"no connection to {url}" in refused
    assert "no connection to ws://127.0.0.1:9/" in missing


async def test_silence(tmp_path):
    """A server that takes no connection, one that answers nothing, and one that falls silent: errors in time."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    module, script = tmp_path / "lmtp.mjs", tmp_path / "silent.mjs"
    shutil.copyfile(CLIENT, module)
    script.write_text(SILENT)
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    switches = [] if int(version.strip("v").partition(".")[0]) >= 22 else ["--experimental-websocket"]

    async def hold(reader, writer):
        await reader.read()
        writer.close()

    closed = await asyncio.start_server(hold, "127.0.0.1", 0)
    nobody = f"ws://127.0.0.1:{closed.sockets[0].getsockname()[1]}/"
    async with document_server(deaf=True) as deaf, document_server(silent_after=[2]) as silent, closed:
        command = [node, *switches, str(script), str(module), nobody, deaf.url, silent.url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [
        f"no connection to {nobody} within 0.3 s",
        "nothing came within 0.3 s",
        "nothing came within 0.3 s",
        2,
    ]


SILENT = """
const [, , file, ...urls] = process.argv;
const { connect } = await import(file);
const limits = { open: 0.3, silence: 0.3 }, got = [];
const refused = async (what) => { try { await what(); } catch (error) { got.push(error.message); } };
await refused(() => connect(urls[0], "", limits));
let entries = 0;
for (const url of urls.slice(1)) {
  const model = await connect(url, "", limits);
  await refused(async () => {
    for await (const _ of model.generate({ prompt: [1], model: "m", lmtp: undefined })) entries++;
  });
  model.close();
}
console.log(JSON.stringify([...got, entries]));
process.exit();
"""
