"""Outcomes are kept, read and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmtool.core.errors import FileError
from lmtool.measure.bench.result import Change, Metric, changes, outcome, read, save

METRICS = {"speed": Metric(100.0, "higher"), "wait": Metric(10.0, "lower")}


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    """The metrics come back as they were; a link in the file's place is replaced, not followed."""
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "a.json").symlink_to("kept")
    save(tmp_path / "a.json", outcome("serve", {"model": "m"}, METRICS))
    assert read(tmp_path / "a.json", "serve") == METRICS
    assert (tmp_path / "kept").read_text() == "mine"


@pytest.mark.parametrize(
    ("speed", "wait", "worse"),
    [(100, 10, []), (91, 10.9, []), (89, 10, ["speed"]), (100, 11.1, ["wait"]), (500, 1, [])],
)
def test_worse_is_beyond_the_tolerance_in_the_metrics_own_direction(
    speed: float, wait: float, worse: list[str]
) -> None:
    """Better is never worse."""
    now = {"speed": Metric(speed, "higher"), "wait": Metric(wait, "lower"), "new": Metric(1, "lower")}
    found = changes(METRICS, now, 0.1)
    assert [change.name for change in found] == ["speed", "wait"]
    assert [change.name for change in found if change.worse] == worse
    assert found[0] == Change("speed", 100.0, speed, "speed" in worse)


def test_nothing_is_worse_than_zero() -> None:
    """A gap of 0, between tokens that came together, has no share that a later one could exceed it by."""
    (change,) = changes({"gap": Metric(0, "lower")}, {"gap": Metric(2, "lower")}, 0.1)
    assert not change.worse


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no outcome of this version"),
        ('{"lmtool_bench": 99}', "is no outcome of this version"),
        ('{"lmtool_bench": 1, "bench": "engine", "metrics": {}}', "is an outcome of `bench engine`"),
        ('{"lmtool_bench": 1, "bench": "serve", "metrics": {"a": 1}}', "metrics that cannot be read"),
        (
            '{"lmtool_bench": 1, "bench": "serve", "metrics": {"a": {"value": NaN, "better": "lower"}}}',
            "cannot be read",
        ),
    ],
)
def test_files_that_are_no_outcome(tmp_path: Path, text: str, message: str) -> None:
    """Refused with the reason."""
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(FileError, match=message):
        read(tmp_path / "b.json", "serve")


def test_files_that_cannot_be_had(tmp_path: Path) -> None:
    """Refused with the path."""
    with pytest.raises(FileError, match="cannot read"):
        read(tmp_path / "none", "serve")
    with pytest.raises(FileError, match="cannot write"):
        save(tmp_path / "no/folder", {})


def test_the_object_says_what_it_is() -> None:
    """Format, version and kind stand first."""
    assert list(json.loads(json.dumps(outcome("engine", {}, METRICS)))) == ["lmtool_bench", "bench", "time", "metrics"]
