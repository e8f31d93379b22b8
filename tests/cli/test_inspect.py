"""`lmtool inspect` where there is no terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.cli import inspect

if TYPE_CHECKING:
    from tests.conftest import Run

RECORDING = str(Path(__file__).parents[2] / "recordings/two_streams_interleaved.lmtp.jsonl")
NOWHERE = "ws://127.0.0.1:1/"


def test_a_trace_in_lines(lmtool: Run) -> None:
    """Not a terminal: lines, with a filter; the alias does the same."""
    result = lmtool("inspect", RECORDING, "--filter", "sid:2")
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert all("1/2" in line for line in result.stdout.splitlines())
    assert lmtool("tui", RECORDING, "--filter", "sid:2").stdout == result.stdout


def test_sentences(lmtool: Run) -> None:
    """For a reader that speaks: a paragraph a stream."""
    assert lmtool("inspect", RECORDING, "--accessible").stdout.count("Stream 1/") == 2


def test_prompts_on_a_server(lmtool: Run, embedded: str, tmp_path: Path) -> None:
    """Prompts run side by side, are recorded, and the program ends with them."""
    words = ("--prompt", "Hi", "--prompt", "Who are you?", "-n", "4", "--record", "r.lmtp.jsonl")
    result = lmtool("inspect", embedded, *words)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("GENERATE") == 2
    assert "recorded into r.lmtp.jsonl" in result.stderr
    assert lmtool("inspect", "r.lmtp.jsonl", "--accessible").stdout.count("ended with") == 2


def test_the_demo(lmtool: Run) -> None:
    """Nothing named, no server: the embedded model, four streams."""
    result = lmtool("inspect", "-n", "3", LMTOOL_ENDPOINT="")
    if "connect" not in result.stdout:
        assert result.stdout.count("GENERATE") == 4


def test_mistakes(lmtool: Run) -> None:
    """Each ends with the documented status and says what to do."""
    for words, status, part in (
        (("nonsense",), 7, "no file 'nonsense'"),
        ((NOWHERE, "--prompt", "x"), 3, "refused"),
        ((NOWHERE,), 3, "refused"),
        ((RECORDING, "--filter", "p<x"), 2, "gap>50ms"),
        ((RECORDING, RECORDING), 2, "trace diff"),
        ((RECORDING, RECORDING, RECORDING), 2, "3 traces were given, but at most two can be compared"),
        (("--proxy", ":0"), 2, "--to"),
        (("--snapshot", "a.svg"), 2, "needs a trace"),
        ((RECORDING, "--snapshot", "a.svg", "--size", "9"), 2, "120x36"),
        ((RECORDING, "--export", "a.doc"), 2, ".html"),
        ((RECORDING, "--speed", "no"), 2, "--speed"),
    ):
        result = lmtool("inspect", *words)
        assert (result.returncode, part in result.stderr) == (status, True), (words, result)


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word becomes traces and folders, and no other files."""
    for name in ("one.lmtp.jsonl", "two.lmtp.jsonl.gz", "other.txt", ".hidden.lmtp.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old/three.lmtp.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert inspect._traces("") == ["old/", "one.lmtp.jsonl", "two.lmtp.jsonl.gz"]
    assert inspect._traces("old/t") == ["old/three.lmtp.jsonl"]
    assert inspect._traces(f"{tmp_path}/on") == [f"{tmp_path}/one.lmtp.jsonl"]
    assert inspect._traces("missing/x") == []


def test_a_trace_that_is_cut(lmtool: Run, tmp_path: Path) -> None:
    """What is there is printed, and stderr says that it is cut."""
    whole = Path(RECORDING).read_bytes()
    (tmp_path / "cut.lmtp.jsonl").write_bytes(whole[: len(whole) // 2])
    result = lmtool("inspect", "cut.lmtp.jsonl")
    assert result.returncode == 0
    assert "is cut" in result.stderr
