"""What is judged beside the load: what stays open, memory, order, and what is told of it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from subprocess import PIPE
from typing import Any

import pytest
from rich.console import Console

from lmtool.core.errors import UsageError
from lmtool.measure.bench.targets import process_memory
from tests.lab.soak.connection import Address
from tests.lab.soak.finding import Finding
from tests.lab.soak.good_streams import GoodStreams
from tests.lab.soak.lmtp_client import StreamTimes
from tests.lab.soak.report import as_outcome, finding_card, soak_card
from tests.lab.soak.run import SoakReport, _breaches
from tests.lab.soak.scenarios import overtaken, waited
from tests.lab.soak.settings import SoakBench
from tests.lab.soak.tally import MOST_BREACHES, Tally
from tests.lab.soak.watch import ServerState, Watch, family, leaks
from tests.lab.soak.wires import SoakTarget
from tests.lab.soak.worker import Load

ADDRESS = Address.of("ws://user:secret@127.0.0.1:8080/")
TARGET = SoakTarget(("LMTP", "chat"), "m")


def test_what_is_more_than_before_is_a_leak() -> None:
    """Descriptors, processes and what /metrics counts as open; not memory, which is judged by its growth."""
    before = ServerState(100, 10, 5, 1, {"connections": 1.0, "streams_running": 0.0})
    assert leaks(before, before) == []
    assert leaks(before, ServerState(900, 14, 13, 1)) == []  # what pools of threads may keep
    after = ServerState(900, 15, 5, 1, {"connections": 1.0, "streams_running": 2.0, "evergreen_sessions": 1.0})
    assert leaks(before, after) == [
        "descriptors: 10 before, 15 after",
        "streams_running: 0 before, 2 after",
        "evergreen_sessions: 0 before, 1 after",
    ]
    assert leaks(ServerState(), ServerState(1, 2, 3, 4)) == []
    assert leaks(ServerState(), ServerState(open={"connections": 3.0})) == []  # before it could not be asked


def test_memory_of_this_process() -> None:
    """Its own and that of its children, what they share left out; the median around a moment."""
    watch = Watch(ADDRESS, os.getpid())
    assert family(os.getpid())[0] == os.getpid()
    program = "held = b'x' * 50_000_000; print(1, flush=True); input()"
    before = watch.memory() or 0  # with other children, such as servers that tests share
    assert before >= (process_memory(os.getpid()) or 0) > 0
    with subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        more = (watch.memory() or 0) - before
        child.kill()
    assert 50_000_000 < more < 55_000_000  # without libraries: 59 with them
    watch.samples = [(9.5, 100), (10.0, 110), (10.4, 990), (50.0, 5), (99.5, 200), (100.0, 300)]
    assert watch.memory_at(0.1, 100.0) == 110
    assert watch.memory_at(1.0, 100.0) == 250
    assert watch.memory_at(0.7, 100.0) is None


def judged(**changes: Any) -> list[str]:
    """The breaches of a run of 30 minutes."""
    bench = changes.pop("bench", SoakBench(minutes=30, max_rss="500MB"))
    report = SoakReport(bench, ADDRESS, TARGET, 1, **{"seconds": 60 * bench.minutes, **changes})
    return _breaches(report, GoodStreams(ADDRESS, TARGET, 1, 2))


def test_memory_is_judged() -> None:
    """By its growth from 10 % of the time on, in a run that is long enough, and by the most that is allowed."""
    assert judged(early_memory=400_000_000, late_memory=419_000_000) == []
    assert "grew by 10.0%" in judged(early_memory=400_000_000, late_memory=440_000_000)[0]
    assert "memory is 501 MB" in judged(early_memory=500_000_000, late_memory=501_000_000)[0]
    short = SoakBench(minutes=5)
    assert judged(bench=short, early_memory=1, late_memory=900_000_000) == []


def test_what_the_load_found_is_a_breach() -> None:
    """All of it, and what stays open."""
    tally = Tally()
    for number in range(MOST_BREACHES + 2):
        tally.breach(str(number))
    found = judged(tally=tally, before=ServerState(processes=1), after=ServerState(processes=2))
    assert found[:1] + found[-2:] == ["0", "and 2 more of the load", "left open: processes: 1 before, 2 after"]
    silent = judged(before=ServerState(open={"connections": 1.0}), after=ServerState())
    assert silent == ["/metrics tells nothing any more"]
    copy = Tally()
    copy.update(tally.as_json())
    assert copy.breaches == tally.breaches


def test_settings_travel_to_the_loading_process() -> None:
    """With the key, over its stdin."""
    load = Load(ADDRESS, TARGET, {"hostile": 3}, 5, 60.0, 100)
    again = Load.of(load.as_line())
    assert replace(again, tally=load.tally) == load
    assert again.address.authorization == "Basic dXNlcjpzZWNyZXQ="


def stream(first: float | None) -> StreamTimes:
    return StreamTimes(0.0, [] if first is None else [first], ended=True)


def test_who_is_overtaken() -> None:
    """A stream that begins after a younger one of its own priority, by how much."""
    in_order = [(0, stream(1.0)), (1, stream(9.0)), (0, stream(1.0)), (0, stream(2.0)), (1, stream(9.5))]
    assert overtaken(in_order) == []
    assert overtaken([(0, stream(5.0)), (0, stream(None)), (1, stream(1.0)), (0, stream(3.0)), (0, stream(3.5))]) == [
        2.0
    ]


def test_who_could_have_been_overtaken() -> None:
    """A stream behind which a younger one of its priority was sent before it began; else order says nothing."""
    quick = [(0, StreamTimes(sent, [sent + 0.5])) for sent in (1.0, 2.0, 3.0)]
    assert waited(quick) == 0
    slow = [(priority, StreamTimes(sent, [9.0])) for priority, sent in ((0, 1.0), (1, 2.0), (0, 3.0), (1, 9.5))]
    assert waited([*slow, (0, StreamTimes(4.0))]) == 2


@pytest.mark.parametrize(
    ("bench", "problem"),
    [
        (SoakBench(only=("all",)), "--only 'all' is no part"),
        (SoakBench(scenario="idle", only=("churn",)), "--only chooses parts of the mixed load"),
        (SoakBench(only=("churn",), frames=5), "--frames counts hostile frames"),
    ],
)
def test_contradictions(bench: SoakBench, problem: str) -> None:
    """A sentence each, before anything is asked."""
    with pytest.raises(UsageError, match=problem):
        bench.check()


def test_connections_are_shared_out() -> None:
    """Among the parts that are wanted."""
    assert SoakBench().places == {"churn": 25, "faults": 12, "slow": 12, "hostile": 50}
    assert SoakBench(only=("hostile",), connections=100).places == {"hostile": 100}


def printed(card: Any, columns: int) -> str:
    out = io.StringIO()
    Console(file=out, width=columns).print(card)
    assert all(len(line) <= columns for line in out.getvalue().splitlines())
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize("columns", [60, 120])
def test_the_card(columns: int) -> None:
    """What was sent, how it was answered, what it cost and what broke; no secret in it or in the JSON."""
    tally = Tally()
    tally.count("hostile", "chat", "400", 1234)
    report = SoakReport(SoakBench(minutes=30), ADDRESS, TARGET, 7, 1800.0, tally=tally)
    report.quiet = report.beside = {"ttft_p50": 0.1, "ttft_p99": 0.2, "gap_p50": 0.01, "gap_p99": 0.0304}
    report.before, report.after = ServerState(1, 10, 5, 1), ServerState(1, 12, 5, 1)
    report.early_memory, report.late_memory = 300_000_000, 330_000_000
    report.breaches = ["left open: descriptors: 10 before, 12 after"]
    text = printed(soak_card(report), columns)
    for part in ("hostile", "1,234", "400 1,234", "100.0/200.0", "10.0/30.4", "300 MB", "330 MB (+10.0%)", "1 breach:"):
        assert part in text
    outcome = as_outcome(report)
    assert outcome["metrics"]["beside the load: gap_p99 ms"] == {"value": 30.4, "better": "lower"}
    assert outcome["sent"]["hostile"] == 1234
    assert "dXNlcjpzZWNyZXQ" not in f"{outcome}{text}{report!r}"
    report.breaches = []
    assert "no breach" in printed(soak_card(report), columns)


def test_the_card_of_a_scenario() -> None:
    """Each figure beside its bar; one that misses it is a breach."""
    finding = Finding("1000 idle connections")
    finding.judge("share of a core", "0.004", "at most 0.01", ok=True)
    finding.judge("others", "3", "at most 2", ok=False)
    text = printed(finding_card(finding, ADDRESS, TARGET), 80)
    assert "share of a core 0.004 at most 0.01" in text
    assert "1 breach: others: 3; expected at most 2" in text
