"""The end of a benchmark: card, JSON line, comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from lmtool.cli.bench import Report, parse_numbers
from lmtool.core.errors import FileError, UsageError
from lmtool.measure.bench.result import Metric, outcome
from lmtool.settings.terminal import Output

RESULT = outcome("serve", {}, {"speed": Metric(50.0, "higher")})
OUT = Output(color=False, note_color=False, terminal=False)


def end(before: dict[str, Metric], capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    Report(**more).finish(OUT, lambda _columns: Text("the card"), RESULT, before)
    return capsys.readouterr().out.splitlines()


def test_the_card_first_one_json_line_last(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the line alone."""
    card, line = end({}, capsys)
    assert card == "the card"
    assert json.loads(line)["metrics"]["speed"]["value"] == 50.0
    assert end({}, capsys, json_only=True) == [line]


def test_worse_is_status_1_after_everything_was_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The outcome is kept all the same."""
    with pytest.raises(typer.Exit) as ended:
        end({"speed": Metric(60.0, "higher")}, capsys, save=tmp_path / "kept.json")
    assert ended.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert "worse: speed 60 → 50" in lines
    assert json.loads(lines[-1])["compared"][0]["worse"] is True
    assert (tmp_path / "kept.json").is_file()


def test_as_good_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Within the tolerance."""
    assert "as good: speed 52 → 50" in end({"speed": Metric(52.0, "higher")}, capsys)


def test_runs_that_cannot_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in common is a mistake, not a success."""
    with pytest.raises(UsageError, match="no figure in common"):
        end({"other": Metric(1.0, "lower")}, capsys)


def test_the_earlier_outcome_is_read_before_anything_is_measured(tmp_path: Path) -> None:
    """A missing file costs no time."""
    assert Report().before("serve") == {}
    with pytest.raises(FileError):
        Report(compare=tmp_path / "none.json").before("serve")


def test_lists_of_numbers() -> None:
    """Each once, in order; refused with the option's name."""
    assert parse_numbers("1, 8,8,32", "--batch") == (1, 8, 32)
    for text in ("", "0", "1,", "a", "-1", "1.5"):
        with pytest.raises(UsageError, match="--batch"):
            parse_numbers(text, "--batch")
