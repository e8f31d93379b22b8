"""One prompt and its answer, against servers that do what a test says."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

INFO: dict[str, Any] = {
    "model": "scripted",
    "constructor": "-",
    "model_type": "script",
    "tokenizer": {"name": "t", "sha256": "0"},
    "chat_template": False,
    "lmtp": 1,
    "extensions": [],
}
PATIENCE = 60
Answer = Callable[[ServerConnection, dict[str, Any]], None]
Run = Callable[..., subprocess.CompletedProcess[str]]


class Script:
    """A server that answers MODEL_INFO, and hands each GENERATE to a test's function."""

    def __init__(self, answer: Answer, info: dict[str, Any] | None = None) -> None:
        self._answer = answer
        self._info = INFO if info is None else info
        self.frames: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Every frame that came, but for MODEL_INFO."""
        self.url = ""

    def __call__(self, connection: ServerConnection) -> None:
        """Serve one connection."""
        for frame in connection:
            assert isinstance(frame, str)
            command, _, text = frame.partition(" ")
            payload = json.loads(text)
            if command == "MODEL_INFO":
                self.tell(connection, "MSG", {"stream_id": payload["stream_id"], "model_info": self._info})
                continue
            self.frames.put(frame)
            if command == "GENERATE":
                self._answer(connection, payload)

    @staticmethod
    def tell(connection: ServerConnection, command: str, payload: dict[str, Any]) -> None:
        """Send one message, unless the client has gone."""
        try:
            connection.send(f"{command} {json.dumps([payload])}")
        except ConnectionClosed:
            return


@contextmanager
def script(answer: Answer, info: dict[str, Any] | None = None) -> Iterator[Script]:
    """Run a scripted server in a thread."""
    made = Script(answer, info)
    with serve(made, "127.0.0.1", 0, compression=None) as server:
        made.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def token(stream_id: int, text: str, **more: Any) -> dict[str, Any]:
    """Return a TOKEN entry."""
    return {"stream_id": stream_id, "token": 1, "logprob": -0.5, "text": text, "finish_reason": None, **more}


def hello(connection: ServerConnection, payload: dict[str, Any]) -> None:
    """Answer `Hello` in two tokens."""
    Script.tell(connection, "TOKEN", token(payload["stream_id"], "Hel"))
    Script.tell(connection, "TOKEN", token(payload["stream_id"], "lo", finish_reason="stop"))


def start(*words: str) -> subprocess.Popen[bytes]:
    """Start lmtool and go on."""
    return subprocess.Popen(
        [sys.executable, "-m", "lmtool", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    )


def begin_only(connection: ServerConnection, payload: dict[str, Any]) -> None:
    """Send one token and nothing more."""
    Script.tell(connection, "TOKEN", token(payload["stream_id"], "begun"))


def test_text_goes_to_stdout_alone(lmtool: Run) -> None:
    """Stdout gets the text, exactly; figures go to stderr."""
    with script(hello) as server:
        result = lmtool("chat", "Hi", "--stats", "-e", server.url)
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert result.stderr.startswith("stop · 2 tokens · ttft ")


def test_warnings(lmtool: Run) -> None:
    """What was not held goes to stderr, also when quiet, and into JSON of both kinds."""

    def cut(connection: ServerConnection, payload: dict[str, Any]) -> None:
        last = token(payload["stream_id"], "Hel", finish_reason="stop", warnings=["it was cut", "and how"])
        Script.tell(connection, "TOKEN", last)

    with script(cut) as server:
        plain = lmtool("-q", "chat", "Hi", "-e", server.url)
        several = lmtool("chat", "Hi", "--n-streams", "2", "-t", "1", "-e", server.url)
        whole, lines = (
            json.loads(lmtool("chat", "Hi", form, "-e", server.url).stdout) for form in ("--json", "--jsonl")
        )
    assert (plain.stdout, plain.stderr) == ("Hel\n", "warning: it was cut\nwarning: and how\n")
    assert {"warning: 1│ it was cut", "warning: 2│ and how"} <= set(several.stderr.splitlines())
    assert whole["warnings"] == lines["warnings"] == ["it was cut", "and how"]


def test_frame(lmtool: Run) -> None:
    """PromptParsing and options become fields; the seed's own example asks for exactly five tokens."""
    with script(hello) as server:
        lmtool("chat", "Hello", "there", "max_tokens=5", "-t", "0.5", "-o", 'stop=["x"]', "-e", server.url)
        command, _, payload = server.frames.get(timeout=PATIENCE).partition(" ")
    sent = json.loads(payload)
    assert command == "GENERATE"
    assert (sent["prompt"], sent["max_tokens"], sent["temperature"], sent["stop"]) == ("Hello there", 5, 0.5, ["x"])


def test_dry_run_sends_nothing(lmtool: Run) -> None:
    """`--dry-run` prints the very frame that is sent without it, and sends none."""
    with script(hello) as server:
        dry = lmtool("chat", "Hi max_tokens=5", "--dry-run", "-e", server.url)
        assert server.frames.empty()
        lmtool("chat", "Hi max_tokens=5", "-e", server.url)
        assert dry.stdout == server.frames.get(timeout=PATIENCE) + "\n"


def test_dry_run_without_a_server(lmtool: Run) -> None:
    """Without a server to ask, the frame for one without a chat template is shown, and that is said."""
    result = lmtool("chat", "Hi", "--dry-run", "-e", "ws://127.0.0.1:1/")
    assert result.returncode == 0
    assert json.loads(result.stdout.partition(" ")[2])["prompt"] == "Hi"
    assert "no chat template" in result.stderr


def test_text_comes_as_it_is_made() -> None:
    """Each frame's text is written at once, also into a pipe."""
    more = threading.Event()

    def answer(connection: ServerConnection, payload: dict[str, Any]) -> None:
        Script.tell(connection, "TOKEN", token(payload["stream_id"], "first"))
        assert more.wait(PATIENCE)
        Script.tell(connection, "TOKEN", token(payload["stream_id"], " second", finish_reason="stop"))

    with script(answer) as server, start("chat", "Hi", "-e", server.url) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"first"
        more.set()
        assert process.stdout.read() == b" second\n"
        assert process.wait(PATIENCE) == 0


def test_first_frame_needs_little() -> None:
    """Before the first GENERATE nothing heavy is loaded: no rich, tokenizers, renderer, ...; prompt_toolkit never."""
    with script(hello) as server:
        code = (
            "import sys, lmtool.cli.main, lmtool.protocol.lmtp.client_session as session\n"
            f"sys.argv = ['lmtool', 'chat', 'Hi', '-e', {server.url!r}]\n"
            "begin = session.ClientSession.open\n"
            "def opened(*words, **more):\n"
            "    heavy = {'rich', 'pydantic', 'tokenizers', 'torch', 'transformers', 'lmtool.terminal.chat.render'}\n"
            "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
            "    return begin(*words, **more)\n"
            "session.ClientSession.open = opened\n"
            "try: lmtool.cli.main.main()\n"
            "finally: assert 'prompt_toolkit' not in sys.modules\n"
        )
        command = [sys.executable, "-c", code]
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=PATIENCE
        )
    assert result.stderr == "[]\n"


@pytest.mark.parametrize("form", ["--raw", "--json", "--jsonl", "--table"])
def test_forms(lmtool: Run, form: str) -> None:
    """Each form shows the same answer."""
    with script(hello) as server:
        lines = lmtool("chat", "Hi", form, "-e", server.url).stdout.splitlines()
    if form == "--raw":
        assert [line.partition(" ")[0] for line in lines] == ["MSG", "TOKEN", "TOKEN"]
        assert json.loads(lines[1].partition(" ")[2])[0]["text"] == "Hel"
    elif form == "--table":
        assert ["'Hel'" in lines[1], "'lo'" in lines[2]] == [True, True]
    elif form == "--json":
        assert json.loads(lines[0])["text"] == "Hello"
    else:
        assert "".join(json.loads(line)["text"] for line in lines) == "Hello"


def test_lost_connection_keeps_what_came(lmtool: Run) -> None:
    """When the connection is lost, the text so far stays, and the status is 3."""

    def answer(connection: ServerConnection, payload: dict[str, Any]) -> None:
        begin_only(connection, payload)
        connection.close(1011)

    with script(answer) as server:
        result = lmtool("chat", "Hi", "-e", server.url)
    assert (result.returncode, result.stdout) == (3, "begun\n")
    assert result.stderr.startswith("error: the connection to ")


def test_error_of_the_server(lmtool: Run) -> None:
    """The server's sentence is shown, and the status is 4; JSON output has it too."""

    def answer(connection: ServerConnection, payload: dict[str, Any]) -> None:
        Script.tell(connection, "TOKEN", {"stream_id": payload["stream_id"], "error": "too much"})

    with script(answer) as server:
        result = lmtool("chat", "Hi", "--json", "-e", server.url)
    assert (result.returncode, result.stderr) == (4, "error: too much\n")
    assert json.loads(result.stdout)["error"] == "too much"


def test_broken_protocol(lmtool: Run) -> None:
    """A server that sends what is no message ends the program with status 5."""
    with script(lambda connection, _: connection.send("TOKEN {{{")) as server:
        result = lmtool("chat", "Hi", "-e", server.url)
    assert result.returncode == 5
    assert "cannot be read" in result.stderr


def test_time_limit(lmtool: Run) -> None:
    """`--timeout` keeps what came, cancels the stream at the server, and ends with status 6."""
    with script(begin_only) as server:
        result = lmtool("chat", "Hi", "--timeout", "3", "-e", server.url)
        assert server.frames.get(timeout=PATIENCE).startswith("GENERATE")
        assert server.frames.get(timeout=PATIENCE).startswith("CANCEL")
    assert (result.returncode, result.stdout) == (6, "begun\n")
    assert "no end within 3 s" in result.stderr


def test_interrupt() -> None:
    """Ctrl-C keeps what came, cancels the stream at the server, and ends with status 130, without a word."""
    with script(begin_only) as server, start("chat", "Hi", "-e", server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 100) == b"begun"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr.read() == b""
        assert server.frames.get(timeout=PATIENCE).startswith("GENERATE")
        assert server.frames.get(timeout=PATIENCE).startswith("CANCEL")


def test_reader_that_leaves() -> None:
    """When the reader of stdout has gone, the program ends quietly with status 141."""
    gone = threading.Event()

    def answer(connection: ServerConnection, payload: dict[str, Any]) -> None:
        Script.tell(connection, "TOKEN", token(payload["stream_id"], "begun", seed=5))  # so that it could go on
        assert gone.wait(PATIENCE)
        Script.tell(connection, "TOKEN", token(payload["stream_id"], "more"))

    with script(answer) as server, start("chat", "Hi", "-e", server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 100) == b"begun"
        process.stdout.close()
        gone.set()
        assert process.wait(PATIENCE) == 141
        assert process.stderr.read() == b""


def test_a_note_amid_the_answer() -> None:
    """A note about a lost connection follows the text received before it, on a line of its own."""

    def answer(connection: ServerConnection, payload: dict[str, Any]) -> None:
        whole = "generated" in payload
        told = token(
            payload["stream_id"], "more" if whole else "begun", seed=5, finish_reason="stop" if whole else None
        )
        Script.tell(connection, "TOKEN", told)
        if not whole:
            connection.socket.shutdown(socket.SHUT_RDWR)

    with script(answer) as server:
        words = [sys.executable, "-m", "lmtool", "chat", "Hi", "-e", server.url]
        both = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    begun, note, more = both.stdout.splitlines()
    assert (begun, more) == ("begun", "more")
    assert note.startswith("the connection to ")
    assert note.endswith("; trying again")


def test_no_server(lmtool: Run) -> None:
    """Where nobody listens, the message says so and what to do, and the status is 3."""
    result = lmtool("chat", "Hi", "-e", "ws://127.0.0.1:1/")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("error: no LMTP server at ws://127.0.0.1:1/ (connection refused)\n")
    assert "lmtool serve" in result.stderr


def test_streams_of_one_prompt(lmtool: Run) -> None:
    """`--n-streams` asks several times at once, with seeds that count up; each line says whose it is."""
    with script(hello) as server:
        result = lmtool("chat", "Hi", "--n-streams", "3", "--seed", "7", "-t", "1", "-e", server.url)
        seeds = [json.loads(server.frames.get(timeout=PATIENCE).partition(" ")[2])["seed"] for _ in range(3)]
    assert seeds == [7, 8, 9]
    assert sorted(result.stdout.splitlines()) == ["1│ Hello", "2│ Hello", "3│ Hello"]


def test_hint(lmtool: Run) -> None:
    """A word that looks like a parameter is sent as text, and asked about."""
    with script(hello) as server:
        result = lmtool("chat", "Hi max_token=5", "-e", server.url)
        assert json.loads(server.frames.get(timeout=PATIENCE).partition(" ")[2])["prompt"] == "Hi max_token=5"
    assert "did you mean max_tokens=5?" in result.stderr
