"""The directory that a worker shares with vLLM's engine: model description, step channel, log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lmtool.core.types import ModelInfo
from lmtool.inference.backends.vllm.shared_directory import KEY, STEP_SOCKET, EngineSettings, SharedDirectory
from lmtool.inference.backends.vllm.step_channel import StepReport, StepSender

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from lmtool.inference.backends.vllm.shared_directory import EngineLog
log = EngineLog(Path(sys.argv[1]), verbose=sys.argv[2] == "verbose")
print("printed", flush=True)
subprocess.run([sys.executable, "-c", "import os; os.write(2, b'by a child')"])
print(repr(log.tail()), file=log.wire)
log.trim(9)
print(len(log.tail()), file=log.wire)
os.write(2, b"more")
print(repr(log.tail()), file=log.wire, flush=True)
log.report("error", "no room", "make some")
"""


def run(directory: Path, how: str) -> tuple[list[str], str]:
    """Run the program; its lines on stdout, and its stderr."""
    words = [sys.executable, "-c", PROGRAM, str(directory), how]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


def test_the_log_is_a_file(tmp_path: Path) -> None:
    """Of all processes, emptied when it is too large; stderr gets reports only, stdout the protocol."""
    wire, stderr = run(tmp_path, "quiet")
    assert wire == [repr("printed\nby a child"), "0", repr("more")]
    assert stderr == "error: no room\n  make some\n"


def test_a_verbose_log_goes_to_stderr(tmp_path: Path) -> None:
    """And nothing is in a file."""
    wire, stderr = run(tmp_path, "verbose")
    assert wire == ["''", "0", "''"]
    assert stderr == "printed\nby a childmoreerror: no room\n  make some\n"
    assert not list(tmp_path.iterdir())


def test_settings_survive_the_way() -> None:
    """To another process, as a text."""
    settings = EngineSettings.of(ModelInfo("m", "m", "vllm", vocab_size=9, eos_token_ids=(1, 2)), None)
    assert (settings.vocab_size, settings.eos_ids, settings.tokenizer) == (9, (1, 2), None)
    assert EngineSettings.from_json(settings.to_json()) == settings


async def test_an_engines_process_finds_a_socket(tmp_path: Path) -> None:
    """In the directory that vLLM's configuration names."""
    shared = SharedDirectory(tmp_path)
    directory = shared.engine_options["additional_config"][KEY]
    sender = StepSender(Path(directory) / STEP_SOCKET)
    shared.steps.subscribe("a")
    assert sender.send([StepReport("a", 0)])
    assert shared.steps.report("a", 0).request_id == "a"
    sender.close()
    shared.steps.close()
