"""Sections that fail, die or hang: they are recorded, the others go on, and the file has everything at once."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lmtool.core.errors import ResourceError, UsageError
from tests.lab.gpu import worker_process
from tests.lab.gpu.run import run
from tests.lab.gpu.settings import SECTIONS, GpuBench, chosen
from tests.lab.gpu.worker import PLACES

BENCH = GpuBench(device="cpu")


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "MODULE", "tests.lab.gpu.toy_worker")
    monkeypatch.setattr(worker_process, "DUMP_SECONDS", 0.0)


async def test_each_section_for_itself(tmp_path: Path) -> None:
    """An error, a death and a section whose time is over cost the others nothing but a new process."""
    names = ["ceilings", "selfcheck", "small", "load", "bits", "deterministic"]
    sections = [replace(one, seconds=1.0) if one.name == "load" else one for one in chosen([*names, "decode"])]
    lines: list[str] = []
    file = tmp_path / "gpu.json"
    report = await run(BENCH, tuple(sections), file, lines.append, asyncio.Event())
    states = {name: report.states[name]["state"] for name in names}
    assert states == dict.fromkeys(names, "done") | dict.fromkeys(("selfcheck", "small", "load"), "failed")
    assert report.states["selfcheck"]["error"] == "ValueError: by design"
    assert report.states["small"]["output"] == ["killed by design"]
    assert "its time was over" in report.states["load"]["error"]
    assert report.results["load"]["seen"] == [1]
    assert report.states["decode"] == {"state": "not run", "error": "it needs load, which failed"}
    assert "selfcheck: failed after 0 s: ValueError: by design" in lines
    pids = [report.results[name]["pid"] for name in names]
    assert pids[0] == pids[1] != pids[2]
    assert pids[2] != pids[3] != pids[4] != pids[5]  # deterministic runs alone
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)
    saved = json.loads(file.read_text())
    assert saved["bench"] == "gpu"
    assert saved["sections"]["load"] == {**report.states["load"], "pid": pids[3], "seen": [1]}


async def test_a_run_has_its_time(tmp_path: Path) -> None:
    """What does not fit into it is not begun, and says so."""
    report = await run(replace(BENCH, seconds=1.0), chosen(["ceilings"]), None, [].append, asyncio.Event())
    assert report.states["ceilings"] == {"state": "not run", "error": "the time of the whole run was over"}


async def test_stopped(tmp_path: Path) -> None:
    """A signal ends the run; what was measured is in the file, and no process is left."""
    stop, file = asyncio.Event(), tmp_path / "gpu.json"

    def note(line: str) -> None:
        if line.startswith("load:"):
            stop.set()

    report = await run(BENCH, chosen(["ceilings", "load", "decode"]), file, note, stop)
    assert report.interrupted
    saved = json.loads(file.read_text())["sections"]
    assert (saved["ceilings"]["state"], saved["decode"]["state"]) == ("done", "not run")
    with pytest.raises(ProcessLookupError):
        os.kill(saved["ceilings"]["pid"], 0)


async def test_no_such_device() -> None:
    """Nothing is measured, and the reason is the worker's."""
    with pytest.raises(ResourceError, match="nothing can be measured: device 'cuda:9' is not there"):
        await run(replace(BENCH, device="cuda:9"), chosen(["ceilings"]), None, [].append, asyncio.Event())


def test_sections() -> None:
    """Each but the tests has its function in the worker; a name that is none is refused."""
    assert [section.name for section in SECTIONS] == ["tests", *PLACES]
    with pytest.raises(UsageError, match="there is no section 'speed'"):
        chosen(["speed"])
