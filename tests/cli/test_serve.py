"""`lmtool serve` as a process: what it says, how it ends, and with which exit status."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import UnknownModelError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, TokenOutput
from lmtool.protocol.lmtp.client import LmtpClient

if TYPE_CHECKING:
    from tests.conftest import Run, ServerProcess, StartServer

STORIES = str(Path(__file__).parent.parent / "data/stories260K")


def story(tokens: int) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return GenerateRequest("a", "Once upon a time", sampling, text=True)


def test_it_says_what_it_is_where_it_listens_what_it_loads_and_when_it_is_ready(server: ServerProcess) -> None:
    """Banner, address with a command to try, load, model, ready: in this order, one line each."""
    wanted = [
        r"lmtool \S+  ·  LMTP over WebSocket",
        rf'  listen   {re.escape(server.url)}     try: lmtool chat -e :\d+ "Hello there max_tokens=5"',
        r"loading stories260K.*",
        r"  model    stories260K · 260 K · float32 · cpu · (C kernels \(.+\)|oneDNN|torch) · batch invariant: yes",
        r"ready in \d+\.\d s     Ctrl-C stops \(again: at once\)",
    ]
    said = [line for line in server.lines if re.fullmatch("|".join(wanted), line)]
    assert [next(i for i, pattern in enumerate(wanted) if re.fullmatch(pattern, line)) for line in said] == sorted(
        next(i for i, pattern in enumerate(wanted) if re.fullmatch(pattern, line)) for line in said
    )
    assert all(any(re.fullmatch(pattern, line) for line in said) for pattern in wanted)


async def test_each_request_gets_a_line(server: ServerProcess) -> None:
    """Connection and stream, tokens in and out, time to the first token, ending; never what was said.

    The connection's first id is that of the client's question what the server speaks.
    """
    async with LmtpClient(server.url) as client:
        outputs = [output async for output in stream(client, story(37))]
    assert len(outputs) == 37
    line = server.expect("GENERATE 5 tok in → 37 out")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  #\d+/2 GENERATE 5 tok in → 37 out  ttft [\d.]+ ms  \d+ tok/s  length", line)
    assert "Once upon" not in line


async def test_a_refused_request_gets_a_line_with_the_reason(server: ServerProcess) -> None:
    """An error is a line too."""
    async with LmtpClient(server.url) as client:
        outputs = [output async for output in stream(client, GenerateRequest("a", (99999,)))]
    assert outputs[-1].error is not None
    assert "✗" in server.expect("99999")


async def test_the_first_ctrl_c_lets_streams_end(start_server: StartServer, tmp_path: Path) -> None:
    """Draining: running streams end as they would have, new work is refused, the exit status is 0.

    The ready file is there as long as the server answers; with --json-logs every line is a JSON object.
    """
    ready = tmp_path / "ready"
    ready.write_text("left over")
    with start_server(STORIES, "--json-logs", "--ready-file", str(ready)) as server:
        server.expect('"event": "listening"')
        assert not ready.exists()
        server.expect('"event": "ready"')
        where = ready.read_text().strip()
        async with LmtpClient(where) as client:
            outputs = stream(client, story(500))
            texts = [(await anext(outputs)).text]
            server.interrupt()
            told = json.loads(server.expect('"event": "draining"'))
            async for output in outputs:
                texts.append(output.text)
                last = output
        assert (told["streams"], last.finish_reason, len(texts)) == (1, "length", 500)
        rest = server.rest()
        assert server.wait() == 0
    assert not ready.exists()
    events = [json.loads(line)["event"] for line in [*server.lines, *rest]]
    assert events[0] == "started"
    assert events[-1] == "stopped"


async def test_the_second_ctrl_c_ends_streams_at_once(start_server: StartServer) -> None:
    """Streams still running end with an error, and the exit status is 130."""
    with start_server(STORIES, "--max-streams", "1") as server:
        server.expect("ready in")
        async with LmtpClient(server.url) as client:
            await client.info()  # by which the client knows what the server speaks: nothing waits for that any more
            streams = [asyncio.create_task(_last(client, story(500))) for _ in range(20)]
            await asyncio.sleep(0)  # all are submitted now
            await client.info()  # and have reached the server, which reads in order
            server.interrupt()
            assert re.fullmatch(
                r"draining: (20|1\d) streams left, Ctrl-C again stops at once", server.expect("draining")
            )
            server.interrupt()
            errors = {(await ended).error for ended in streams} - {None}
        assert errors == {"the server is shutting down; connect again when it is back"}
        server.rest()
        assert server.wait() == 130


async def _last(client: LmtpClient, request: GenerateRequest) -> TokenOutput:
    return [output async for output in stream(client, request)][-1]


def test_ctrl_c_while_loading_stops_at_once(start_server: StartServer, tmp_path: Path) -> None:
    """A load cannot be stopped, so the process ends; meanwhile the port answers 503 with the progress.

    A recording in which nothing happened leaves no file.
    """
    record = tmp_path / "a.lmtp.jsonl"
    with start_server(STORIES, "--record", str(record)) as server:
        server.expect(" listen ")
        base = server.url.replace("ws://", "http://")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}health", timeout=30)
        assert refused.value.code == 503
        assert json.load(refused.value)["status"] == "loading"
        server.interrupt()
        assert server.rest()[-1] == "stopped"
        assert server.wait() == 130
    assert not record.exists()


def test_sigterm_drains_like_ctrl_c(start_server: StartServer) -> None:
    """What a container's stop sends: no streams, so it ends at once with status 0."""
    with start_server("auto") as server:
        server.expect("ready in")
        server.process.send_signal(signal.SIGTERM)
        assert server.rest() == ["stopped"]
        assert server.wait() == 0


async def test_auto_loads_what_clients_name(start_server: StartServer) -> None:
    """Under `auto` the port is ready at once and a model is loaded when it is asked for."""
    with start_server("auto", "--json-logs", "--allow-model", STORIES) as server:
        assert "model" not in json.loads(server.expect('"event": "ready"'))
        async with LmtpClient(server.url) as client:
            assert (await client.info(STORIES)).parameters == 260_032
            with pytest.raises(UnknownModelError, match="is not served here"):
                await client.info(str(Path(STORIES).parent))
            with pytest.raises(UnknownModelError, match="is not served here"):
                await client.info("org/model")


async def test_several_models(start_server: StartServer, tmp_path: Path) -> None:
    """All that are named are loaded at the start; the banner names one of them, a damaged one is a warning."""
    broken = tmp_path / "broken"
    shutil.copytree(STORIES, broken)
    (broken / "model.safetensors").write_bytes(b"")
    with start_server(STORIES, "lmtool-tiny", str(broken)) as server:
        assert "try: lmtool chat -e :" in (listening := server.expect(" listen "))
        assert "-m stories260K" in listening
        server.expect("warning: broken is not in memory: ")
        server.expect("  model    stories260K · ")
        server.expect("  model    lmtool-tiny · ")
        server.expect("ready in")
        async with LmtpClient(server.url) as client:
            entries = {entry.name: entry.phase for entry in await client.models()}
            assert entries == {"stories260K": "ready", "lmtool-tiny": "ready", "broken": "failed"}
            assert (await client.info("lmtool-tiny")).model == "lmtool-tiny"


async def test_stdio_is_the_same_protocol_on_a_pipe(tmp_path: Path) -> None:
    """`stdio:COMMAND` starts a server for one client; it ends with the connection."""
    command = f"stdio:{sys.executable} -m lmtool -q serve {STORIES} --stdio"
    async with LmtpClient(command, open_timeout=60) as client:
        outputs = [output async for output in stream(client, story(3))]
        assert "".join(output.text or "" for output in outputs) == ", there was"


def test_stdio_keeps_stdout_for_the_protocol(lmtool: Run) -> None:
    """Everything that a server says goes to stderr; the end of stdin ends it, after all is answered."""
    done = lmtool("serve", "auto", "--stdio", stdin='GENERATE {"stream_id": 7, "prompt": [1]}\n')
    (line,) = done.stdout.splitlines()
    assert line.startswith('TOKEN [{"stream_id":7,"error":"the request names no model')
    assert "LMTP over stdio" in done.stderr
    assert "#0/7 GENERATE ✗ the request names no model" in done.stderr
    assert done.returncode == 0


def test_stdio_passes_over_a_port_that_nobody_typed(lmtool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port in the environment or in settings is a default for servers that have one."""
    monkeypatch.setenv("LMTOOL_PORT", "9000")
    assert lmtool("serve", "auto", "--stdio", stdin="").returncode == 0


def test_a_port_in_use_by_an_lmtp_server(lmtool: Run, served: str) -> None:
    """Says who has it and what to do; exit status 8 and nothing on stdout."""
    port = served.rstrip("/").rpartition(":")[2]
    done = lmtool("serve", STORIES, "--port", port)
    assert (done.returncode, done.stdout) == (8, "")
    assert done.stderr == (
        f"error: port {port} is already in use by an LMTP server (model stories260K)\n"
        f'  use it:         lmtool chat -e :{port} "..."\n'
        f"  other port:     --port {int(port) + 1}     (0 picks a free one)\n"
    )


def test_a_port_in_use_by_somebody_else(lmtool: Run) -> None:
    """Who does not answer the probe is not called an LMTP server."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = lmtool("serve", STORIES, "--port", str(port))
    assert done.returncode == 8
    assert done.stderr.startswith(f"error: port {port} is already in use\n")


def test_a_folder_that_is_not_there(lmtool: Run) -> None:
    """A path that is no folder is refused before anything heavy is loaded."""
    done = lmtool("serve", "./nothing-here", "--port", "0")
    assert done.returncode == 8
    assert done.stderr.startswith("error: there is no model folder './nothing-here'\n")
    assert "Traceback" not in done.stderr


def test_a_load_that_fails_ends_the_server(lmtool: Run, tmp_path: Path) -> None:
    """The port is open by then; the server says why in one line with hints, closes, and leaves no empty recording."""
    model, record = tmp_path / "model", tmp_path / "a.lmtp.jsonl"
    shutil.copytree(STORIES, model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    for _ in range(2):
        done = lmtool("serve", str(model), "--port", "0", "--record", str(record))
        assert done.returncode == 8
        assert " listen " in done.stdout
        assert "ready" not in done.stdout
        assert f"nothing was recorded into {record}\nerror: {weights} is truncated" in done.stderr
        assert "download the model again" in done.stderr
        assert "Traceback" not in done.stderr
        assert not record.exists()


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_a_device_that_is_not_there(lmtool: Run, tmp_path: Path, replicas: str) -> None:
    """Known before the port is open and before a file is made, of replicas as well."""
    record = tmp_path / "a.lmtp.jsonl"
    words = ("serve", STORIES, "--device", "cuda:99", "--port", "0", "--record", str(record), "--replicas", replicas)
    done = lmtool(*words)
    assert done.returncode == 8
    assert done.stdout == ""
    assert done.stderr.startswith("error: device 'cuda:99' is not there")
    assert "--device cpu" in done.stderr
    assert not record.exists()


def test_kernels_that_are_required_and_not_there(lmtool: Run) -> None:
    """Nothing is served another way; the error says what to do."""
    done = lmtool("serve", STORIES, "--kernels", "required", "--port", "0", CC="/nowhere/cc")
    assert done.returncode == 8
    assert done.stderr.startswith("error: --kernels required: no C compiler found")
    assert "--kernels none" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kernels", "some"), "kernels 'some' is not known"),
        (("--cuda", "--device", "cpu"), "error: --cuda and --device cpu contradict each other"),
        (("auto", "--static"), "error: --static serves one model, auto serves any"),
        (("auto", STORIES), "error: auto serves any model that clients name, and takes no other names"),
        ((STORIES, "lmtool-tiny", "--served-model-name", "x"), "error: --served-model-name names one model, but 2 are"),
        (("lmtool-tiny", "--memory", "lots"), "error: --memory is 'lots'; expected a size in bytes"),
        (("lmtool-tiny", "--pin", "x"), "error: --pin x names a model that is not served"),
        (
            ("lmtool-tiny", "--allow-download", "*"),
            "error: --allow-download applies to names that clients send",
        ),
        (("lmtool-tiny", "--static", "--allow-model", "x"), "error: --static loads no other models"),
        (("--stdio", "--port", "9"), "error: --stdio and --port contradict each other"),
        (("--stdio", "--host", "::1"), "error: --stdio and --host contradict each other"),
        (("--stdio", "--grpc-port", "0"), "error: --stdio and --grpc-port contradict each other"),
        (("--allow-ref", "file:/no/such/folder"), "--allow-ref"),
        (("--port", "70000"), "70000"),
        (("--device", "tpu"), "error: device 'tpu' is not known; expected auto, cpu, cuda or cuda:N"),
        (("--dtype", "int3"), "error: dtype 'int3' is not known; expected auto, float32, bfloat16, float16"),
        (("--threads", "100000"), "100000 is more than 1024"),
        (("--max-streams", "0"), "0"),
        (("--nonsense",), "--nonsense"),
    ],
    ids=" ".join,
)
def test_options_that_make_no_sense(lmtool: Run, words: tuple[str, ...], message: str) -> None:
    """Refused with exit status 2 and a sentence with the value."""
    done = lmtool("serve", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_other_machines_need_a_key(lmtool: Run) -> None:
    """Without one the command ends before anything is opened or loaded, and says what to do."""
    done = lmtool("serve", "no-such-model", "--host", "0.0.0.0", "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "error: other machines can connect to 0.0.0.0, and no key is asked for"
    assert all(word in done.stderr for word in ("--api-key KEY", "LMTOOL_API_KEY", "--no-auth", "--host 127.0.0.1"))
    done = lmtool("serve", "--no-auth", "--port", "0", LMTOOL_API_KEY="key")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "environment", "warning"),
    [
        (
            ("--host", "0.0.0.0", "--no-auth"),
            {},
            "warning: other machines can connect, and no key is asked for (--no-auth)",
        ),
        (("--host", "0.0.0.0"), {"LMTOOL_API_KEY": "key"}, None),
        (("--no-auth",), {}, None),
        (("--allow-origin", "*"), {}, "warning: every web page may use this server"),
        (("--allow-host", "*"), {}, "warning: web pages can reach this server by DNS rebinding"),
        (("--allow-host", "*", "--allow-origin", "*"), {"LMTOOL_API_KEY": "key"}, None),
    ],
)
def test_open_doors_are_told(
    start_server: StartServer, words: tuple[str, ...], environment: dict[str, str], warning: str | None
) -> None:
    """A server that lets in what a person may not expect says so, in each case as it is; others say nothing."""
    with start_server("auto", *words, **environment) as server:
        listening = server.expect(" listen ")
        server.expect("ready in")
    told = [line for line in server.lines if line.startswith("warning")]
    assert [line.startswith(str(warning)) for line in told] == ([True] if warning else [])
    assert ("(every interface)" in listening) == ("0.0.0.0" in words)


def test_an_unwritable_ready_file_is_an_error(lmtool: Run, tmp_path: Path) -> None:
    """A missing folder is found before a minute is spent on the model."""
    done = lmtool("serve", STORIES, "--port", "0", "--ready-file", str(tmp_path / "no/such/folder/file"))
    assert done.returncode == 7
    assert "ready file" in done.stderr
    assert done.stdout == ""
