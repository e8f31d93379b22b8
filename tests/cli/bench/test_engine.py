"""`lmtool bench engine` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.conftest import Run

STORIES = str(Path(__file__).parents[2] / "data/stories260K")


def test_ours_beside_transformers_and_a_peer_that_cannot_run(lmtool: Run) -> None:
    """A card, and one JSON line last: ids equal, ratios of the same rounds; who fails is named, no more.

    Without a dtype everybody has that with which ours is served.

    On a busy machine no round may count; then nothing is said.
    """
    words = ("--peer", "transformers", "--peer", "transformers:int8", "--batch", "2", "--output-len", "33")
    done = lmtool("bench", "engine", STORIES, *words, "--rounds", "1", timeout=120)
    assert done.returncode == 0, done.stderr
    assert "transformers:int8 is left out" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "stories260K · 260 K weights · 1 thread"
    outcome = json.loads(lines[-1])
    kernels = outcome["contestants"]["lmtool:float32"]["kernels"]
    assert f"lmtool:auto is float32 here, by {kernels}\n" in done.stderr
    assert lines[1].startswith(f"lmtool:float32 by {kernels} · memory ")
    assert outcome["machine"]["product_flop_per_s"]["float32"] > 0
    assert list(outcome["failures"]) == ["transformers:int8"]
    assert outcome["contestants"].keys() == {"lmtool:float32", "transformers:float32"}
    rows = {row["contestant"]: row for row in outcome["results"]}
    assert all(row["ids"]["agree"] for row in rows.values())
    if rows:
        assert rows["transformers:float32"]["ours_over_this"]["decode"]["median"] > 0


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    """Workers end, and the folder with converted models is deleted."""
    words = [sys.executable, "-m", "lmtool", "bench", "engine", STORIES, "--peer", "none"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    assert process.stderr.readline() == "loading lmtool:auto\n"
    workers = psutil.Process(process.pid).children()
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "")
    assert not psutil.wait_procs(workers, timeout=20)[1]
    assert not list(tmp_path.glob("lmtool-bench-*"))


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--peer", "exllama"), 2, "there is no peer 'exllama'"),
        (("--peer", "llamacpp=/no/python"), 8, "does not run as a Python"),
        (("random:nothing",), 2, "there is no 'random:nothing'"),
        (("./nothing",), 8, "there is no model folder './nothing'"),
        (("--batch", "one"), 2, "--batch 'one' is not a list of positive numbers"),
        (("--cpus", "9999"), 2, "--cpus '9999'"),
        (("--device", "cuda", "--peer", "llamacpp"), 2, "llamacpp is measured on CPUs only"),
        (("--peer", "sglang"), 2, "sglang is measured on GPUs only"),
        (("--device", "auto"), 2, "--device auto: engines would not agree on it"),
        (("--device", "gpu"), 2, "device 'gpu' is not known"),
        (("random:llama-tiny", "--device", "cuda:99", "--peer", "none"), 8, "device 'cuda:99' is not there"),
        (("--compare", "nothing.json"), 7, "cannot read nothing.json"),
    ],
)
def test_what_cannot_be_measured(lmtool: Run, words: tuple[str, ...], status: int, message: str) -> None:
    """A sentence and the documented exit status, before anything is loaded."""
    done = lmtool("bench", "engine", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
