"""`lmtool trace diff`."""

from __future__ import annotations

import json
from pathlib import Path

from lmtool.trace.comparison import Comparison, Finding
from tests.cli.trace_runner import trace

HEAD = '{"lmtp_trace": 1}\n[0, ">", 1, "GENERATE", {"model": "m", "prompt": [1], "stream_id": 1}]\n'
ENTRY = '{"token": %d, "stream_id": 1, "logprob": %s, "finish_reason": "stop", "top_logprobs": {}}'
TOKEN = f'[1, "<", 1, "TOKEN", [{ENTRY}]]\n'


def files(folder: Path, *answers: tuple[int, str]) -> list[Path]:
    """A trace for each answer."""
    paths = [folder / f"{i}" for i in range(len(answers))]
    for path, answer in zip(paths, answers, strict=True):
        path.write_text(HEAD + TOKEN % answer)
    return paths


def test_equal_traces_pass(tmp_path: Path) -> None:
    """Status 0, a line a request."""
    result = trace("diff", *files(tmp_path, (7, "-0.5"), (7, "-0.5004")))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("pass       1/1     GENERATE")


def test_what_differs_is_told_with_status_1(tmp_path: Path) -> None:
    """The level decides; the finding names stream, token, expected and got; as JSON too."""
    both = files(tmp_path, (7, "-0.5"), (7, "-0.6"))
    result = trace("diff", *both)
    assert result.exit_code == 1
    assert "fail (numbers) stream 1/1 token 0: expected logprob -0.5, got -0.6" in result.stdout
    assert trace("diff", *both, "--level", "ids").exit_code == 0
    assert trace("diff", *both, "--tol-logprob", "0.2").exit_code == 0
    found = json.loads(trace("diff", *both, "--json").stdout)
    assert (found["verdict"], found["findings"][0]["token"]) == ("fail", 0)


def test_a_comparison_as_text_and_json() -> None:
    """The verdict and the request on one line, each finding on one below; or one JSON object."""
    one = Comparison("1/1", "GENERATE", (Finding("fail", "ids", "1/1", 2, "expected token 7, got 8"),))
    assert str(one).split("\n") == [
        "fail       1/1     GENERATE",
        "    fail (ids) stream 1/1 token 2: expected token 7, got 8",
    ]
    finding = {"verdict": "fail", "level": "ids", "token": 2, "message": "expected token 7, got 8"}
    assert json.loads(one.as_json()) == {"stream": "1/1", "kind": "GENERATE", "verdict": "fail", "findings": [finding]}
