"""What compiles, in its process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lmtool.errors import ResourceError
from lmtool.guide.xgrammar.worker import EmptyError, RefusedError, SlowError, compile_constraint, prepare
from lmtool.subprocesses.process import CrashError, Process, TimeOverError
from tests.guide.xgrammar.fakes import FAKE, SETTINGS


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process over the library's stand-in."""
    monkeypatch.syspath_prepend(str(FAKE))
    made = Process(partial(prepare, SETTINGS))
    made.ready()
    yield made
    made.close()


def compiled(process: Process, text: str, kind: str = "grammar") -> object:
    return json.loads(process.call(20, compile_constraint, kind, text))


def test_compiled(process: Process) -> None:
    """A grammar and a structural tag come back as the library's text."""
    assert compiled(process, 'root ::= "yes" | "no"') == [["yes", "no"], ""]
    tag = json.dumps({"type": "structural_tag", "format": {"value": "a"}})
    assert compiled(process, tag, "structural_tag") == [["a"], ""]


@pytest.mark.parametrize(
    ("text", "error"), [('root ::= "slow slow"', SlowError), ('root ::= "stuck"', EmptyError), ("refuse", RefusedError)]
)
def test_what_is_wrong_is_told(process: Process, text: str, error: type[Exception]) -> None:
    """What the library refuses, what is slow, and what no text matches; the process goes on."""
    with pytest.raises(error):
        compiled(process, text)
    assert compiled(process, 'root ::= "a"')


def test_a_library_that_hangs_or_crashes(process: Process) -> None:
    """Costs its own question only."""
    with pytest.raises(TimeOverError):
        process.call(0.5, compile_constraint, "grammar", "hang")
    with pytest.raises(CrashError, match="SIGABRT"):
        compiled(process, "crash")
    assert compiled(process, 'root ::= "a"')


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process says that it cannot start, and what to do."""
    (tmp_path / "xgrammar.py").write_text("raise ImportError('broken here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Process(partial(prepare, SETTINGS))
    with pytest.raises(ResourceError, match="ImportError: broken here") as refused:
        made.ready()
    assert "--structured-backend llguidance" in refused.value.hints[0]
    made.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the memory of a process")
def test_memory_is_bounded(process: Process) -> None:
    """What takes more than the settings allow fails alone."""
    with pytest.raises(MemoryError):
        process.call(20, bytes, 5 << 30)
