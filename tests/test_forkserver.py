"""A process that the tests fork is what a fresh one is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forkserver import LMTOOL, ForkedProcess, fixed, spawn


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("docs", "nonsense"), ""),
        (("config", "path"), ""),
        (("tokenize", "--json"), "Grüße\n"),
        (("--no-such-option",), ""),
    ],
)
def test_it_says_the_same_and_ends_the_same(clean_environment: None, words: tuple[str, ...], stdin: str) -> None:
    """Output, errors and exit status, by its own folder and variables."""
    Path("lmtool.toml").write_text("[chat]\n")
    env = {**os.environ, "LMTOOL_COLOR": "never"}
    command = [sys.executable, *LMTOOL, *words]
    fresh = subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", env=env, check=False)
    with spawn(words, env=env) as forked:
        assert isinstance(forked, ForkedProcess)
        said = forked.communicate(stdin, 60)
    assert (forked.wait(), *said) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_signals_and_statuses(clean_environment: None) -> None:
    """A signal ends it, and the status says which; a second one goes nowhere."""
    process = spawn(("chat", "-e", "stdio:cat", "Hi"), env=os.environ)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    with process:
        assert process.wait(60) == process.poll() == -signal.SIGKILL
    process.terminate()


def test_what_is_read_at_the_start_needs_a_fresh_one(clean_environment: None) -> None:
    """Variables of the interpreter, and a cache of models that is there."""
    spawn(("--version",), env=os.environ).communicate("", 60)
    process = spawn(("--version",), env={**os.environ, "PYTHONOPTIMIZE": "1"})
    assert isinstance(process, subprocess.Popen)
    process.communicate("", 60)
    (cache := Path(os.environ["HF_HOME"])).mkdir()
    assert fixed(os.environ)["HF_HOME"] == str(cache)
