"""The tests marked `cuda`, in several processes of pytest at once: compiling kernels takes most of their time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.lab.gpu.pytest_lines import VARIABLE

ROOT = Path(__file__).parents[3]
FOLDER = "tests/inference/engine/cuda"
MOST_PROCESSES = 8
MOST_AGAIN = 40
"""Failed tests that are run once more."""
OUTPUT_BYTES = 4000
PLUGIN = "tests.lab.gpu.pytest_lines"
RAN = (0, 1, 5)
"""Statuses of pytest that ran: all passed, some failed, none was marked."""


async def run_marked(seconds: float, root: Path = ROOT, folder: str = FOLDER, mark: str = "cuda") -> dict[str, Any]:
    """Run them; counts, the failed ones with their reasons, and whether all came to their end in this time.

    What fails is run once more, alone: a test of free memory, for one, sees that of the processes beside it. Those that
    pass then are named, and count as passed.

    `left_out` where the folder is not there: a checkout has it, an installed package has not.
    """
    files = sorted((root / folder).rglob("test_*.py"))
    if not files:
        return {"left_out": f"{folder} is not beside this lmtool: run from a checkout"}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="lmtool-bench-") as work:
        shards = [
            _Shard(root, [str(file.relative_to(root)) for file in own], mark, Path(work) / f"{number}")
            for number, own in enumerate(split(files, _processes()))
        ]
        await asyncio.gather(*(shard.run(seconds) for shard in shards))
        lines = [line for shard in shards for line in shard.lines()]
        broken = [shard.broken() for shard in shards]
        failed = [line["test"] for line in lines if line["outcome"] == "failed" and "::" in line["test"]]
        again: list[dict[str, Any]] = []
        if 0 < len(failed) <= MOST_AGAIN and len(shards) > 1:
            alone = _Shard(root, [_from_root(test, root, folder) for test in failed], mark, Path(work) / "alone")
            await alone.run(max(end - time.monotonic(), 0.0))
            again = alone.lines()
    return summary(lines, again) | {"unfinished": [one for one in broken if one]}


def _from_root(test: str, root: Path, folder: str) -> str:
    """A test's name as pytest takes it in `root`; it gives names from the folder of the settings file that it found."""
    return test if (root / test.partition("::")[0]).is_file() else f"{folder}/{test}"


def _processes() -> int:
    return max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) // 2))


def split(files: list[Path], count: int) -> list[list[Path]]:
    """Files in at most `count` lists of about as many bytes each, none empty."""
    lists: list[list[Path]] = [[] for _ in range(min(count, len(files)))]
    sizes = [0] * len(lists)
    for file in sorted(files, key=lambda one: -one.stat().st_size):
        least = sizes.index(min(sizes))
        lists[least].append(file)
        sizes[least] += file.stat().st_size
    return lists


def summary(lines: list[dict[str, Any]], again: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Counts by outcome, and the failed tests; of a test that failed in two phases the first one counts.

    again: of the failed ones, alone.
    """
    by_test: dict[str, dict[str, Any]] = {}
    for line in lines:
        known = by_test.get(line["test"])
        if known is None or (known["outcome"] == "passed" and line["outcome"] == "failed"):
            by_test[line["test"]] = line
    failed_again = {line["test"] for line in again or [] if line["outcome"] == "failed"}
    passed_again = {line["test"] for line in again or [] if line["outcome"] == "passed"} - failed_again
    passed_alone = sorted(test for test in passed_again if by_test.get(test, {}).get("outcome") == "failed")
    by_test |= {test: {**by_test[test], "outcome": "passed"} for test in passed_alone}
    counts = Counter(line["outcome"] for line in by_test.values())
    failed = [line for line in by_test.values() if line["outcome"] == "failed"]
    skipped = Counter(line.get("why", "") for line in by_test.values() if line["outcome"] == "skipped")
    return {
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "passed_alone": passed_alone,
        "failures": failed,
        "skip_reasons": dict(skipped),
        "slowest": sorted(([line["test"], line["seconds"]] for line in lines), key=lambda one: -one[1])[:10],
    }


class _Shard:
    """One process of pytest over some files."""

    def __init__(self, root: Path, names: list[str], mark: str, place: Path) -> None:
        self._names, self._root = names, root
        self._words = [
            sys.executable, "-m", "pytest", *names, "-m", mark, "-q", "--tb=short",
            "--continue-on-collection-errors",
            "-p", "no:cacheprovider", "-p", PLUGIN,
        ]  # fmt: skip
        self._file, self._log = place.with_suffix(".jsonl"), place.with_suffix(".log")
        self._status: int | None = None

    async def run(self, seconds: float) -> None:
        """Run to the end, or for this long."""
        own = str(ROOT)
        path = os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                cwd=self._root,
                env={**os.environ, VARIABLE: str(self._file), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(seconds):
                    self._status = await process.wait()
            except TimeoutError:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    def lines(self) -> list[dict[str, Any]]:
        """What the plugin wrote."""
        if not self._file.is_file():
            return []
        return [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def broken(self) -> dict[str, Any] | None:
        """Why not all of its tests ran to their end; None where they did."""
        if self._status in RAN:
            return None
        tail = self._log.read_bytes()[-OUTPUT_BYTES:].decode(errors="replace")
        why = "its time was over" if self._status is None else f"pytest ended with status {self._status}"
        return {"files": self._names, "why": why, "output": tail.splitlines()[-30:]}
