"""`lmtool evergreen`: a conversation, a script, the list of actions, over WebSocket and gRPC, and what goes wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from tests.cli.terminal import terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run, StartServer

QUESTIONS = "What is the capital of France?\n\nWhat is the capital of Spain?\n"


@pytest.fixture(scope="module")
def addresses(start_server: StartServer) -> Iterator[dict[str, Sequence[str]]]:
    """How the embedded model's server is reached: `-e URL`, `--grpc HOST:PORT`."""
    with start_server("--grpc-port", "0") as process:
        grpc = re.search(r"127\.0\.0\.1:\d+", process.expect("gRPC"))
        process.expect("ready in")
        assert grpc is not None
        yield {"websocket": ("-e", process.url), "grpc": ("--grpc", grpc[0])}


both_wires = pytest.mark.parametrize("wire", ["websocket", "grpc"])


@both_wires
def test_a_conversation(lmtool: Run, addresses: dict[str, Sequence[str]], wire: str) -> None:
    """Each line of stdin is a turn; the counts show that the second one has the first before it."""
    done = lmtool("evergreen", "chat", *addresses[wire], "-n", "30", "--stats", stdin=QUESTIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Paris") == 1
    counts = [int(number) for number in re.findall(r"prompt (\d+) tokens", done.stderr)]
    assert len(counts) == 2
    assert counts[1] > counts[0] + 10


def test_in_a_terminal(addresses: dict[str, Sequence[str]]) -> None:
    """Ctrl-C ends a running answer and not the session; Ctrl-D leaves."""
    for _ in range(5):  # on a busy machine an answer can be whole before its first words are read here
        text = interrupted(addresses["websocket"])
        if "answer 200 tokens" not in text:
            return
        assert "Ctrl-C again or Ctrl-D leaves" in text, text
    pytest.fail(text)


def interrupted(address: Sequence[str]) -> str:
    """What a terminal has of two answers, with Ctrl-C in each."""
    with terminal("evergreen", "chat", *address, "--stats", "-n", "200", "-o", "ignore_eos=true") as screen:
        screen.until(">")
        for line in ("Tell me a story.", "Tell me another."):
            begun = len(screen.text)
            screen.press(f"{line}\r")
            screen.until(f"> {line}", after=begun)
            screen.until(".", after=screen.text.index(f"> {line}", begun) + len(line) + 2)
            screen.press("\x03")
        screen.press("\x04")
        assert screen.end() == 0, screen.text
        return screen.text


def test_ctrl_c_at_the_prompt(addresses: dict[str, Sequence[str]]) -> None:
    """It clears the line, then says what leaves; twice leaves."""
    with terminal("evergreen", "chat", *addresses["websocket"], "--stats", "-n", "3") as screen:
        screen.until(">")
        screen.press("half a line")
        screen.until("half a line")
        screen.press("\x03")
        for _ in range(2):
            begun = len(screen.text)
            screen.press("\x03")
            screen.until("Ctrl-C again or Ctrl-D leaves", after=begun)
            screen.press("Who is it?\r")
            screen.until("answer 3 tokens", after=begun)
        screen.press("\x03" * 8)
        assert screen.end() == 130, screen.text


def script(folder: Path, *lines: object) -> str:
    """A file with these messages."""
    path = folder / "session.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


ACTION = {
    "actions": [
        {
            "name": "GENERATE",
            "inputs": [{"name": "prompt", "id": "prompt_1"}],
            "outputs": [{"name": "response", "id": "response_1"}],
            "configs": [{"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"max_tokens": 4}}],
        }
    ]
}
PROMPT = {
    "nodeFragments": [{"id": "prompt_1", "chunkFragment": {"metadata": {"mimetype": "text/plain"}, "data": "T25jZQ=="}}]
}


@both_wires
def test_a_script(lmtool: Run, addresses: dict[str, Sequence[str]], wire: str, tmp_path: Path) -> None:
    """The messages of a file go out, and what comes is printed until all outputs are whole."""
    done = lmtool("evergreen", "run", script(tmp_path, ACTION, "", PROMPT), *addresses[wire])
    assert done.returncode == 0, done.stderr
    fragments = [one for line in done.stdout.splitlines() for one in json.loads(line)["nodeFragments"]]
    assert {one["id"] for one in fragments} == {"response_1"}
    assert fragments[0]["chunkFragment"]["metadata"] == {"mimetype": "text/plain", "role": "assistant"}
    assert not fragments[-1].get("continued")


def test_a_line_that_is_no_message(lmtool: Run, addresses: dict[str, Sequence[str]], tmp_path: Path) -> None:
    """Exit status 7 with its number; nothing is sent."""
    done = lmtool("evergreen", "run", script(tmp_path, PROMPT, "{half"), *addresses["websocket"])
    assert (done.returncode, "line 2 of" in done.stderr) == (7, True)
    assert lmtool("evergreen", "run", str(tmp_path / "missing"), *addresses["websocket"]).returncode == 7


@both_wires
def test_a_session_that_is_aborted(lmtool: Run, addresses: dict[str, Sequence[str]], wire: str, tmp_path: Path) -> None:
    """The server's reason, exit status 4."""
    for outputs in ([{"name": "up", "id": "o"}], []):
        unknown = {"actions": [{"name": "FLY", "outputs": outputs}]}
        done = lmtool("evergreen", "run", script(tmp_path, unknown), *addresses[wire])
        assert done.returncode == 4
        assert "there is no action 'FLY' here" in done.stderr


@both_wires
def test_actions(lmtool: Run, addresses: dict[str, Sequence[str]], wire: str) -> None:
    """Names with inputs and outputs; as JSON, the schemas."""
    lines = lmtool("evergreen", "actions", *addresses[wire]).stdout.splitlines()
    assert lines[0] == "GENERATE(prompt|text) -> response|text, reasoning, usage, tokens, logprobs, status"
    named = [each["name"] for each in json.loads(lmtool("evergreen", "actions", "--json", *addresses[wire]).stdout)]
    assert named == ["GENERATE", "SCORE", "TOKENIZE", "LIST_ACTIONS", "CANCEL", "DROP", "SET_TTL"]


def test_proto_files(lmtool: Run, tmp_path: Path) -> None:
    """What is printed compiles, for any language."""
    for name, words in (("session.proto", []), ("config.proto", ["--config"])):
        (tmp_path / name).write_text(lmtool("evergreen", "proto", *words).stdout)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--python_out={tmp_path}"]
    subprocess.run([*command, "session.proto", "config.proto"], check=True, cwd=tmp_path)
    assert "GenerateConfig" in (tmp_path / "config_pb2.py").read_text()


def test_two_addresses(lmtool: Run) -> None:
    """`-e` and `--grpc` are one too many: exit status 2. Nobody there: 3."""
    done = lmtool("evergreen", "actions", "-e", "ws://127.0.0.1:9", "--grpc", "127.0.0.1:9")
    assert (done.returncode, "two addresses" in done.stderr) == (2, True)
    assert lmtool("evergreen", "actions", "-e", "ws://127.0.0.1:9").returncode == 3
