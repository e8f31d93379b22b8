"""What a contest says."""

from __future__ import annotations

import pytest

from lmtool.bench.checkpoint import Checkpoint
from lmtool.bench.contest import Agreement, Round, Timing
from lmtool.bench.contestants import Contestant
from lmtool.bench.engine_report import EngineBench, EngineReport, as_outcome


def report(*, peer_wrong: int = 0, steady: bool = True) -> EngineReport:
    """Ours decodes 50 tokens a second, the peer 25; a step reads 4000 bytes of 1e6 a second."""
    names = ("lmtool", "transformers")
    bench = EngineBench("m", tuple(Contestant(name, "float32", "python") for name in names), batch=(2,), rounds=2)
    timings = {
        "lmtool:float32": Timing(100, 32, 0.1, 2.0, 0.1, 2.0),
        "transformers:float32": Timing(100, 32, 0.2, 4.0, 0.2, 8.0),
    }
    rounds = [Round(timings, 1.0, 1.0 if steady else 0.5)] * 2
    return EngineReport(
        bench,
        "m",
        Checkpoint(1000, 1000, 100),
        1e6,
        {"float32": 1e9},
        {name: {"versions": {}} for name in timings},
        {name: Agreement(40, peer_wrong if "trans" in name else 0, 64) for name in timings},
        rounds={2: rounds},
    )


def test_limits_are_those_of_the_measured_machine() -> None:
    """Two streams a step of 4 ms."""
    assert report().limit("lmtool:float32", 2) == pytest.approx(500.0)


def test_auto_is_what_ours_is_served_with() -> None:
    """Peers that were given no dtype get the same; who is there twice takes part once."""
    words = [("lmtool", "auto"), ("transformers", "auto"), ("lmtool", "float32"), ("llamacpp", "int8")]
    bench = EngineBench("m", tuple(Contestant(peer, dtype, "python") for peer, dtype in words))
    names = [one.name for one in bench.decided("bfloat16").contestants]
    assert names == ["lmtool:bfloat16", "transformers:bfloat16", "lmtool:float32", "llamacpp:int8"]
    names = [one.name for one in bench.decided("float32").contestants]
    assert names == ["lmtool:float32", "transformers:float32", "llamacpp:int8"]


def test_the_outcome() -> None:
    """A row a contestant and a batch size; ratios are compared, and the share of the limit."""
    told = as_outcome(report())
    ours, theirs = told["results"]
    assert ours["decode_of_limit"] == pytest.approx(0.1)
    assert theirs["ours_over_this"]["decode"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert theirs["ours_over_this"]["decode_cpu"]["median"] == 4.0
    assert theirs["ids"] == {"agree": True, "checked": 40, "wrong": 0, "of": 64}
    assert told["metrics"]["b2.decode_over_transformers:float32"]["value"] == 2.0
    assert told["metrics"]["b2.decode_of_limit"]["better"] == "higher"


def test_a_peer_with_other_ids_does_not_count() -> None:
    """Its row says so, and nothing is compared with it."""
    told = as_outcome(report(peer_wrong=1))
    assert told["results"][1]["ids"]["agree"] is False
    assert "b2.decode_over_transformers:float32" not in told["metrics"]


def test_disturbed_rounds_say_nothing() -> None:
    """No rows, no metrics."""
    told = as_outcome(report(steady=False))
    assert (told["results"], told["metrics"]) == ([], {})
