"""The tests of a checkout, run by several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.gpu import marked_tests
from tests.lab.gpu.marked_tests import run_marked, split, summary

FILES = {
    "pytest.ini": "[pytest]\nmarkers = cuda: on a GPU\n",
    "own/test_good.py": "import pytest\npytestmark = pytest.mark.cuda\ndef test_one(): pass\ndef test_two(): pass\n",
    "own/test_bad.py": (
        "import pytest\n@pytest.mark.cuda\ndef test_wrong():\n    assert 1 == 2, 'by design'\n"
        "@pytest.mark.cuda\ndef test_skipped(): pytest.skip('no such GPU')\ndef test_of_others(): assert False\n"
    ),
    "own/below/test_broken.py": "import no_such_module\n",
}


async def test_counts_and_reasons(tmp_path: Path) -> None:
    """A failed test has its reason and traceback, a file that cannot be read too; others' tests are not run."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = await run_marked(60.0, tmp_path, "own")
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 2, 1)
    reasons = {failure["test"]: failure["why"] for failure in found["failures"]}
    assert "by design" in reasons["own/test_bad.py::test_wrong"]
    assert "no_such_module" in reasons["own/below/test_broken.py"]
    assert any(
        "assert 1 == 2" in line for line in found["failures"][0]["traceback"] + found["failures"][1]["traceback"]
    )
    assert found["skip_reasons"] == {"Skipped: no such GPU": 1}
    assert found["unfinished"] == []


async def test_once_more_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that only fails beside others is found to pass."""
    monkeypatch.setattr(marked_tests, "_processes", lambda: 2)
    seen = tmp_path / "seen"
    flaky = f"import pathlib, pytest\n@pytest.mark.cuda\ndef test_memory():\n    seen = pathlib.Path({str(seen)!r})\n"
    flaky += "    if not seen.exists():\n        seen.touch()\n        assert False, 'others have it'\n"
    texts = {name: FILES[name] for name in ("pytest.ini", "own/test_good.py")} | {"own/test_flaky.py": flaky}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = await run_marked(60.0, tmp_path, "own")
    assert (found["passed"], found["failed"], found["passed_alone"]) == (3, 0, ["own/test_flaky.py::test_memory"])


async def test_over_time(tmp_path: Path) -> None:
    """Processes that do not end in time are ended, and named."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/test_good.py").write_text(FILES["own/test_good.py"])
    found = await run_marked(0.0, tmp_path, "own")
    assert (found["passed"], found["unfinished"][0]["why"]) == (0, "its time was over")


async def test_without_a_checkout(tmp_path: Path) -> None:
    """Nothing is run, and it says where to run from."""
    assert "run from a checkout" in (await run_marked(1.0, tmp_path))["left_out"]


def test_split(tmp_path: Path) -> None:
    """Files in lists of about equal size."""
    files = [tmp_path / f"{size}" for size in (100, 60, 50, 10)]
    for file in files:
        file.write_bytes(b"x" * int(file.name))
    assert [[file.name for file in own] for own in split(files, 2)] == [["100", "10"], ["60", "50"]]
    assert split(files[:1], 8) == [files[:1]]


def test_what_passes_alone() -> None:
    """It counts as passed, and is named: it fails beside others."""
    lines = [{"test": name, "outcome": "failed", "seconds": 0.0, "why": "memory"} for name in ("a", "b")]
    again = [{"test": "a", "outcome": "passed", "seconds": 0.0}, lines[1]]
    found = summary(lines, again)
    assert (found["passed"], found["failed"], found["passed_alone"]) == (1, 1, ["a"])
    assert [failure["test"] for failure in found["failures"]] == ["b"]


def test_a_test_that_fails_twice() -> None:
    """It counts once, and as failed where it failed behind its end."""
    lines = [
        {"test": "a", "outcome": "passed", "seconds": 1.0},
        {"test": "a", "outcome": "failed", "seconds": 0.0, "why": "teardown"},
        {"test": "b", "outcome": "passed", "seconds": 2.0},
    ]
    found = summary(lines)
    assert (found["passed"], found["failed"]) == (1, 1)
    assert found["slowest"][0] == ["b", 2.0]
