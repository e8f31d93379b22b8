"""`lab gpu` as a process, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run

SECTIONS = ("ceilings", "load", "decode", "bits", "prefill", "samplers", "arrival", "second_load")


def test_sections_on_a_cpu(lab: Run, tmp_path: Path) -> None:
    """Each section has its figures in the file, the card shows goals, and nothing is met on a CPU."""
    file = tmp_path / "gpu.json"
    done = lab("gpu", "--device", "cpu", "--only", ",".join(SECTIONS), "--json", str(file), timeout=240)
    assert done.returncode == 0, done.stderr
    saved = json.loads(file.read_text())
    found = saved["sections"]
    wanted = dict.fromkeys(SECTIONS, "done") | {"bits": "left out"}
    assert {name: one["state"] for name, one in found.items()} == wanted, done.stderr
    assert found["ceilings"]["copy_bytes_per_s"] > 0
    assert found["load"]["model"] == "random:llama-tiny"
    rows = {(row["streams"], row["context"]): row for row in found["decode"]["rows"]}
    assert rows.keys() == {(1, 20), (3, 20), (1, 40), (3, 40)}
    assert all(row["engine_ms"] > 0 and row["runner_ms"] > 0 for row in rows.values())
    assert rows[3, 40]["bytes"] - rows[3, 20]["bytes"] == 3 * 20 * found["load"]["block_bytes"] / 16
    assert {"greedy", "temperature", "top_k and top_p", "top_p"} <= {
        row["sampling"] for row in found["samplers"]["rows"]
    }
    assert all(row["longest_gap_ms"] > 0 and not row["compiled"] for row in found["arrival"]["rows"])
    assert len({one["blocks"] for one in found["second_load"]["loads"]}) == 1
    assert [bar["is_met"] for bar in saved["bars"]] == [None] * 8
    assert "samplers: done after" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cpu · random:llama-tiny · float32"
    assert sum(line.rstrip().endswith("not measured") for line in lines) == 8
    assert lines[-1] == f"all figures: {file}"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--only", "speed"), 2, "there is no section 'speed'"),
        (("--model", "gpt2"), 2, "'gpt2' is no random model"),
        (("--compare", "nothing.json"), 7, "cannot read nothing.json"),
        (("--device", "cuda:99"), 8, "nothing can be measured: device 'cuda:99' is not there"),
    ],
)
def test_what_cannot_be_measured(lab: Run, tmp_path: Path, words: tuple[str, ...], status: int, message: str) -> None:
    """A sentence and the documented exit status, before anything is measured."""
    done = lab("gpu", "--json", str(tmp_path / "gpu.json"), *words, timeout=120)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert message in done.stderr
    assert 'File "' not in done.stderr  # no traceback
