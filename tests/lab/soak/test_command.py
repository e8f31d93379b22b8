"""`lab soak` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from tests.conftest import Run

SHORT = (
    "--minutes",
    "0.1",
    "--connections",
    "8",
    "--good",
    "7",
    "--output-len",
    "8",
    "--only",
    "churn",
    "--only",
    "hostile",
)


def test_a_server_that_holds(lab: Run, served: str) -> None:
    """A card and one JSON line last; 0, because nothing broke."""
    done = lab("soak", served, *SHORT, timeout=3 * PATIENCE)  # its two parts, and the streams that compare
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it speaks LMTP, Evergreen, completions;" in done.stderr
    assert "left out, because a plain request fails there: chat: status 400" in done.stderr
    *card, last = done.stdout.splitlines()
    assert "no breach" in card
    outcome = json.loads(last)
    assert outcome["breaches"] == []
    assert outcome["sent"]["hostile"] > 0 < outcome["sent"]["churn"]
    assert outcome["good_streams"]["equal"] == outcome["good_streams"]["ended"] >= 7
    assert outcome["memory_bytes"]["late"] > 10**7


def test_ctrl_c_shows_what_was_found(served: str, lab: Run) -> None:
    """The load ends, the card comes, and the status says that it was ended."""
    words = [sys.executable, "-m", "tests.lab", "soak", served, *SHORT[2:], "--minutes", "600", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = next(line for line in process.stderr if "warming up" in line)
        assert "600 min" in line
        process.send_signal(signal.SIGINT)
        outcome = json.loads(process.stdout.read())
        assert process.wait(60) == 130, process.stderr.read()
    assert outcome["interrupted"] is True


@pytest.mark.parametrize("scenario", ["crowd", "idle", "slow-reader"])
def test_a_scenario(lab: Run, served: str, scenario: str) -> None:
    """Its figures beside their bars; whether these are kept is for a quiet machine to say."""
    minutes = "0.1" if scenario == "slow-reader" else "0.02"  # a sixth for each run, in which tokens have to come
    words = ("--scenario", scenario, "--connections", "20", "--minutes", minutes, "--rounds", "2")
    done = lab("soak", served, *words, "--json")
    assert done.returncode in {0, 1}, done.stderr
    figures = json.loads(done.stdout)["figures"]
    if scenario == "crowd":
        assert figures["served"] == figures["streams"] == 40
    else:
        assert figures["cpu_share" if scenario == "idle" else "difference_s"] is not None


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((":1",), 3, "no server at ws://127.0.0.1:1/"),
        (("stdio:lmtool serve --stdio",), 2, "has one client"),
        ((":1", "--only", "all"), 2, "--only 'all' is no part"),
        ((":1", "--max-rss", "many"), 2, "--max-rss"),
    ],
)
def test_what_cannot_be_measured(lab: Run, words: tuple[str, ...], status: int, message: str) -> None:
    """A sentence and the documented exit status, at once."""
    done = lab("soak", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
