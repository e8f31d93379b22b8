"""The directory shared with vLLM's engine processes: step reports, settings, log and liveness socket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ServerError
from lmtool.core.types import ModelInfo
from lmtool.inference.backends.vllm.shared_directory import (
    KEY,
    STEP_SOCKET,
    EngineSettings,
    SharedDirectory,
    StepReceiver,
    StepReport,
    StepSender,
    error_from,
    error_parts,
)
from tests.conftest import PATIENCE


@pytest.fixture
def sender(tmp_path: Path):
    sender = StepSender(tmp_path / "steps")
    yield sender
    sender.close()


@pytest.fixture
async def receiver(tmp_path: Path):
    receiver = StepReceiver(tmp_path / "steps")
    yield receiver
    receiver.close()


async def test_reports_are_there_at_once(receiver: StepReceiver, sender: StepSender) -> None:
    """Before the event loop runs again, many streams together, each report once; other streams are dropped."""
    for name in ("a", "b"):
        receiver.subscribe(name)
    reports = [StepReport(name, at, 0.5, ((3, -1.0), (4, -2.0))) for name in ("a", "b", "c") for at in range(9)]
    assert sender.send(reports)
    assert receiver.report("a", 8) == reports[8]
    assert receiver.report("b", 0) == reports[9]
    for name, index in (("a", 8), ("c", 0)):
        with pytest.raises(ServerError, match="sent no report"):
            receiver.report(name, index)
    receiver.unsubscribe("a")
    with pytest.raises(ServerError):
        receiver.report("a", 1)


async def test_an_error_is_raised_at_its_token(receiver: StepReceiver, sender: StepSender) -> None:
    """As the same kind of error, with its hints."""
    receiver.subscribe("a")
    assert sender.send([StepReport("a", 0, error=("constraint_too_complex", "too much", "less"))])
    with pytest.raises(ConstraintTooComplexError) as raised:
        receiver.report("a", 0)
    assert (raised.value.message, raised.value.hints) == ("too much", ("less",))


@pytest.mark.parametrize("error", [ConstraintError("bad", "be good"), ServerError("broken")])
def test_errors_travel(error: LmtoolError) -> None:
    """By their code."""
    copy = error_from(error_parts(error))
    assert (type(copy), copy.message, copy.hints) == (type(error), error.message, error.hints)


def test_a_missing_worker(tmp_path: Path) -> None:
    """Is a result, not an exception: the engine goes on."""
    assert not StepSender(tmp_path / "none").send([StepReport("a", 0)])


async def test_an_engine_that_ends(receiver: StepReceiver, tmp_path: Path) -> None:
    """Is forgotten, and another one is accepted."""
    receiver.subscribe("a")
    first, second = StepSender(tmp_path / "steps"), StepSender(tmp_path / "steps")
    assert first.send([StepReport("a", 0)])
    assert receiver.report("a", 0).token_index == 0
    first.close()
    assert second.send([StepReport("a", 1)])
    receiver._accept()
    assert receiver.report("a", 1).token_index == 1
    second.close()


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


WORKER = """
import os, signal, subprocess, sys
from pathlib import Path
from lmtool.inference.backends.vllm.shared_directory import LivenessSocket
folder = Path(sys.argv[1])
life = LivenessSocket(folder)
life.end_with_reader(1)
if sys.argv[2] == "forked":
    child = os.fork()
    if not child:
        signal.pause()
else:
    engine = "import signal, sys; from pathlib import Path; "
    engine += "from lmtool.inference.backends.vllm.shared_directory import end_with_worker; "
    engine += "end_with_worker(Path(sys.argv[1])); print('up', flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", engine, folder], stdout=subprocess.PIPE)
    process.stdout.readline()
    child = process.pid
print(child, flush=True)
signal.pause()
"""
"""Has one other process, spawned or forked, and says which."""


@pytest.fixture(params=["spawned", "forked"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A worker and its engine."""
    folder = tmp_path / "shared"
    folder.mkdir()
    words = [sys.executable, "-c", WORKER, str(folder), request.param]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as worker:
        assert worker.stdout is not None
        engine = psutil.Process(int(worker.stdout.readline()))
        yield worker, engine
        worker.kill()
    assert not folder.exists()


def ended(process: psutil.Process) -> bool:
    """Whether it ends within some time."""
    psutil.wait_procs([process], PATIENCE)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_worker_that_is_killed(tree: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """Takes its engine with it, which removes their folder."""
    worker, engine = tree
    worker.kill()
    assert ended(engine)


def test_a_server_that_is_killed(tree: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """Closes what the worker writes to: both end, though the worker is writing nothing."""
    worker, engine = tree
    assert worker.stdout is not None
    worker.stdout.close()
    assert ended(engine)
    assert ended(psutil.Process(worker.pid))


def test_an_engine_that_comes_too_late(tmp_path: Path) -> None:
    """Ends before it does anything; the folder is left to nobody."""
    (tmp_path / "shared").mkdir()
    program = "import sys; from pathlib import Path; "
    program += "from lmtool.inference.backends.vllm.shared_directory import end_with_worker; "
    program += "end_with_worker(Path(sys.argv[1])); print('computes')"
    words = [sys.executable, "-c", program, str(tmp_path / "shared")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert not (tmp_path / "shared").exists()
