"""Reports of a contest from known timings: limits, outcome, card."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from lmtool.measure.bench.checkpoint import Checkpoint
from lmtool.measure.bench.contest import Agreement, Round, Timing
from lmtool.measure.bench.contestants import Contestant
from lmtool.measure.bench.engine_report import TITLES, EngineBench, EngineReport, as_outcome, engine_card, ratio
from lmtool.measure.bench.record import Spread

WAITS = {"first_mean": 231.24, "first_last": 0.4471, "itl": 0.0333, "gap": 2.4}


def report(*, peer_wrong: int = 0, steady: bool = True) -> EngineReport:
    """Ours decodes 50 tokens a second, the peer 25; a step reads 4000 bytes of 1e6 a second."""
    names = ("lmtool", "transformers")
    bench = EngineBench("m", tuple(Contestant(name, "float32", "python") for name in names), batch=(2,), rounds=2)
    timings = {
        "lmtool:float32": Timing(100, 32, 0.1, 2.0, 0.1, 2.0, WAITS),
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


def test_auto_is_the_dtype_of_our_engine() -> None:
    """Peers without a dtype get the same; equal contestants take part once."""
    words = [("lmtool", "auto"), ("transformers", "auto"), ("lmtool", "float32"), ("llamacpp", "int8")]
    bench = EngineBench("m", tuple(Contestant(peer, dtype, "python") for peer, dtype in words))
    names = [one.name for one in bench.with_auto_dtype("bfloat16").contestants]
    assert names == ["lmtool:bfloat16", "transformers:bfloat16", "lmtool:float32", "llamacpp:int8"]
    names = [one.name for one in bench.with_auto_dtype("float32").contestants]
    assert names == ["lmtool:float32", "transformers:float32", "llamacpp:int8"]


def test_the_outcome() -> None:
    """A row a contestant and a batch size; ratios are compared, and the share of the limit."""
    outcome = as_outcome(report())
    ours, theirs = outcome["results"]
    assert ours["decode_of_limit"] == pytest.approx(0.1)
    assert theirs["ours_over_this"]["decode"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert theirs["ours_over_this"]["decode_cpu"]["median"] == 4.0
    assert ours["first_token_s"] == {"mean": 231.24, "last": 0.4471}
    assert ours["inter_token_s"] == {"median": 0.0333, "longest": 2.4}
    assert theirs["first_token_s"] is theirs["inter_token_s"] is None
    assert theirs["ids"] == {"agree": True, "checked": 40, "wrong": 0, "of": 64}
    assert outcome["metrics"]["b2.decode_over_transformers:float32"]["value"] == 2.0
    assert outcome["metrics"]["b2.decode_of_limit"]["better"] == "higher"


def test_a_peer_with_other_ids_is_not_valid() -> None:
    """Its row says so, and nothing is compared with it."""
    outcome = as_outcome(report(peer_wrong=1))
    assert outcome["results"][1]["ids"]["agree"] is False
    assert "b2.decode_over_transformers:float32" not in outcome["metrics"]


def test_unsteady_rounds_have_no_figures() -> None:
    """No rows, no metrics."""
    outcome = as_outcome(report(steady=False))
    assert (outcome["results"], outcome["metrics"]) == ([], {})


def render(columns: int, shown: EngineReport) -> str:
    stream = StringIO()
    Console(file=stream, width=columns, color_system=None).print(engine_card(shown, columns))
    return stream.getvalue()


@pytest.mark.parametrize("columns", [44, 60, 80, 120, 150])
def test_the_card_fits(columns: int) -> None:
    """No line is longer than the terminal is wide."""
    assert max(map(len, render(columns, report()).splitlines())) <= columns


def test_no_figure_is_cut_short() -> None:
    """A terminal gets the columns that fit, each row on one line: the fewest in 60, all in 150."""
    lines = {len(render(columns, report()).splitlines()) for columns in range(60, 160)}
    assert len(lines) == 1
    shown = [[title in render(columns, report()) for title in TITLES[1:]] for columns in (60, 80, 115, 150)]
    assert [sum(titles) for titles in shown] == [3, 5, 7, 11]  # "ours ÷ it" stands for one and for two


def test_the_card_has_every_figure() -> None:
    """Rates, share of the limit, ratios with their spread, prefill, waits, ids compared."""
    text = render(150, report())
    for part in (
        "50.0",
        "25.0",
        "10%",
        "5%",
        "2.00 (2.00-2.00)",
        "4.00 (4.00-4.00)",
        "320",
        "160",
        "231",
        "0.447",
        "0.0333",
        "2.4",
        "40/64",
        "batch 2",
        "2 rounds",
    ):
        assert part in text


def test_the_card_names_what_is_not_valid() -> None:
    """Other ids, a peer that failed, unsteady rounds."""
    other = report(peer_wrong=1)
    other.failures["vllm:float32"] = "no room"
    text = render(120, other)
    assert "differ" in text
    assert "vllm:float32: no room" in text
    assert "its figures are not valid" in text
    assert "no round was steady" in render(120, report(steady=False))


def test_ids_that_nobody_compared_are_not_said_to_differ() -> None:
    """All were near ties."""
    other = report()
    other.agreements["transformers:float32"] = Agreement(0, 0, 64)
    text = render(60, other)
    assert "transformers:float32: no ids could be compared with" in text
    assert "differ" not in text


def test_the_card_has_the_models_size() -> None:
    """Thousands or millions of weights."""
    assert "1 K weights" in render(120, report())
    large = replace(report(), checkpoint=Checkpoint(124_400_000, 1000, 100))
    assert "124 M weights" in render(120, large)


def test_ratio() -> None:
    """Median and extremes, or nothing."""
    assert ratio(Spread(1.9, 1.85, 2.0)) == "1.90 (1.85-2.00)"
    assert ratio(None) == ""
