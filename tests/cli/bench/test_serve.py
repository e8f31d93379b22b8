"""`lmtool bench serve` as a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run

SHORT = ("--concurrency", "1,4", "--requests", "4", "--output-len", "6", "--prompt-len", "4", "--warmup", "1")


def test_a_real_server(lmtool: Run, served: str, tmp_path: Path) -> None:
    """A card with a row a load, one JSON line last, the same in the file; the next run is compared with it."""
    done = lmtool("bench", "serve", served, *SHORT, "--save", "kept.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines if " at once" in line][:2] == ["1 at once", "4 at once"]
    outcome = json.loads(lines[-1])
    assert outcome == json.loads((tmp_path / "kept.json").read_text())
    assert [result["completed"] for result in outcome["results"]] == [4, 4]
    assert all({"ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"} <= set(result) for result in outcome["results"])
    assert {"p50", "p90", "p99"} == set(outcome["results"][0]["ttft_ms"])
    again = lmtool("bench", "serve", served, *SHORT, "--json", "--compare", "kept.json", "--tolerance", "1000")
    assert again.returncode == 0, again.stderr
    assert len(json.loads(again.stdout)["compared"]) > 8
    impossible = json.loads((tmp_path / "kept.json").read_text())
    impossible["metrics"]["1 at once: output_throughput"]["value"] = 1e12
    (tmp_path / "kept.json").write_text(json.dumps(impossible))
    assert lmtool("bench", "serve", served, *SHORT, "--compare", "kept.json", "--tolerance", "0.9").returncode == 1


def test_scoring_and_open_loop(lmtool: Run, served: str) -> None:
    """The other kinds of load, on the same server."""
    words = ("bench", "serve", served, "--json", "--prompt-len", "8", "--warmup", "1")
    scored = lmtool(*words, "--scenario", "S5", "--concurrency", "8")
    assert json.loads(scored.stdout)["results"][0]["output_tokens"] == 64 * 8
    opened = lmtool(*words, "--rate", "200", "--requests", "5", "--output-len", "3")
    assert json.loads(opened.stdout)["results"][0]["load"] == "200 a second"


def test_constrained_streams(lmtool: Run, embedded: str) -> None:
    """S7 compares a model with itself, and waits for the first tokens of schemas that are new to it."""
    done = lmtool("bench", "serve", embedded, "--scenario", "S7", "--concurrency", "2", "--output-len", "20")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["results"][0]["output_tokens"] == 2 * 20 * 5
    assert set(outcome["metrics"]) >= {"2 with a schema: constrained_over_free", "2 with a schema: output_throughput"}
    assert "times the tokens a second of free streams" in " ".join(done.stdout.split())


def test_constrained_streams_over_http(lmtool: Run, embedded: str) -> None:
    """The same of any server that knows `structured_outputs`: the streams that are held say JSON of the schema."""
    url = embedded.replace("ws://", "http://") + "v1"
    words = ("--scenario", "S7", "--concurrency", "2", "--output-len", "20", "--vocab-size", "1000", "--json")
    done = lmtool("bench", "serve", url, *words)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert (result["completed"], result["failed"], result["output_tokens"]) == (10, 0, 200)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((":1",), 3, "no LMTP server"),
        (("http://127.0.0.1:1/v1",), 3, "no OpenAI-compatible server"),
        ((":1", "--rate", "fast"), 2, "--rate 'fast' is not a list of numbers"),
        ((":1", "--concurrency", "0"), 2, "--concurrency '0' is not a list of positive numbers"),
        ((":1", "--compare", "nothing.json"), 7, "cannot read nothing.json"),
    ],
)
def test_what_cannot_be_measured(lmtool: Run, words: tuple[str, ...], status: int, message: str) -> None:
    """A sentence and the documented exit status."""
    done = lmtool("bench", "serve", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
